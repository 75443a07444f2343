"""The command line as a user meets it: output, exit codes, and one clear line for every mistake."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("torch")


def rmscore(*words, stdin=None, cwd=None, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "rmscore.cli", *map(str, words)],
        input=stdin, capture_output=True, text=True, cwd=cwd, check=False, timeout=300,
        env=os.environ | {"COLUMNS": "80", "HF_HUB_OFFLINE": "1"} | environment,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def rows_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"q{i}", "response": "a " * i, "tag": i}) + "\n" for i in range(6)))
    return path


def test_score_writes_a_line_a_row_and_carries_fields(tiny, rows_file, tmp_path):
    """Scores come in input order with the fields asked for; a second run needs --resume or --overwrite."""
    out = tmp_path / "o.jsonl"
    words = ("score", rows_file, "--model", tiny("electra-small"), "--backend", "eager", "-o", out, "--carry", "tag")
    assert rmscore(*words).returncode == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["id"], line["tag"]) for line in lines] == [(i, i) for i in range(6)]
    again = rmscore(*words)
    assert again.returncode == 2
    assert "go on with it by --resume or start again by --overwrite" in again.stderr
    assert "found 6 rows already scored" in rmscore(*words, "--resume").stderr


def test_standard_input_and_output(tiny, rows_file):
    """``-`` reads rows from standard input; without -o the lines go to standard output and nothing else does."""
    done = rmscore("score", "-", "--model", tiny("llama"), "--backend", "eager", stdin=rows_file.read_text())
    assert done.returncode == 0
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == list(range(6))


def test_dialogues_are_scored_twice_and_joined(tiny, tmp_path):
    """A preference pair gives two lines and counts for the accuracy; cut rows and empty answers are told."""
    path = tmp_path / "hh.jsonl.gz"
    start = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Well?\n\nAssistant:"
    pairs = [
        {"chosen": start + " Yes.", "rejected": start + " No."},
        {"chosen": start + " ", "rejected": start + " x" * 900},
    ]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(pair) + "\n" for pair in pairs)
    done = rmscore("score", path, "--model", tiny("electra-small"), "--backend", "eager")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [
        "0/chosen",
        "0/rejected",
        "1/chosen",
        "1/rejected",
    ]
    assert "of 2 pairs" in done.stderr
    assert "1 rows were over the limit and lost" in done.stderr
    assert "1 responses are empty, scored as such" in done.stderr


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('{"prompt": "a", "response": "b"', "line 2"),
        ('{"promt": "a", "response": "b"}', "line 2"),
    ],
)
def test_a_bad_line_is_named_and_what_was_scored_is_kept(tiny, tmp_path, line, hint):
    """Exit code 2, file and line in the message; mended, the run is resumed."""
    path, out = tmp_path / "bad.jsonl", tmp_path / "o.jsonl"
    good = json.dumps({"prompt": "a", "response": "b"})
    path.write_text(f"{good}\n{line}\n{good}\n")
    words = ("score", path, "--model", tiny("electra-small"), "--backend", "eager", "-o", out)
    done = rmscore(*words)
    assert done.returncode == 2
    assert f"error: {path}" in done.stderr
    assert hint in done.stderr
    path.write_text(f"{good}\n{good}\n{good}\n")
    assert rmscore(*words, "--resume").returncode == 0
    assert len(out.read_text().splitlines()) == 3


def test_mistakes_are_one_line_and_exit_2(tiny, rows_file, tmp_path):
    """Wrong names and files of every kind: exit code 2 and one line that helps."""
    model = tiny("electra-small")
    (tmp_path / "empty").mkdir()
    (tmp_path / "not.json").write_text("{}")
    (tmp_path / "half.json").write_text('{"benchmarks": [')
    for words, hint in (
        (("score", rows_file, "--model", tmp_path / "empty"), "config.json: missing"),
        (("score", rows_file, "--model", "nobody/nothing"), "not in the hub cache"),
        (("score", rows_file, "--model", model, "--backend", "onxruntime"), "did you mean 'onnxruntime'"),
        (
            ("score", rows_file, "--model", model, "--backend", "eager", "--precision", "fp33"),
            "has no precision 'fp33'",
        ),
        (("score", rows_file, "--model", model, "--device", "tpu"), "unknown device 'tpu'"),
        (("score", rows_file, "--model", model, "--batching", "bucket:8"), "did you mean 'bucketed:N'"),
        (("score", rows_file, "--model", model, "--carry", "score"), "the output has its own 'score'"),
        (("score", rows_file, "--model", model, "--resume"), "name it with -o"),
        (("score", tmp_path / "none.jsonl", "--model", model), "none.jsonl"),
        (("score", rows_file, "--model", model, "--backend", "eager", "-o", tmp_path / "no" / "o.jsonl"), "no folder"),
        (("make-model", "deberta-v4", tmp_path / "m"), "deberta-v3"),
        (("make-model", "electra-small", model), "exists and is not an empty folder"),
        (("compare", tmp_path / "not.json"), "not.json"),
        (("compare", tmp_path / "half.json"), "half.json"),
        (("compare", tmp_path / "gone.json"), "gone.json"),
        (("compare", tmp_path / "not.json", "--fail-on", "slowest"), "did you mean 'slower'"),
        (
            ("bench", "--model", model, "--rows", rows_file, "--backends", "eagr", "-o", tmp_path / "r.json"),
            "did you mean 'eager'",
        ),
        (("verify", "--model", model, "--rows", rows_file, "--backends", "nope"), "unknown backend 'nope'"),
    ):
        done = rmscore(*words)
        assert done.returncode == 2, words
        assert hint in done.stderr, words
        assert len(done.stderr.strip().splitlines()) <= 2, done.stderr


def test_a_full_disk_is_one_line_and_resumable(tiny, rows_file):
    """Where nothing can be written, the error names the output and is one line."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rmscore.cli", "score", rows_file, "--model", tiny("electra-small"), "--backend", "eager"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "error: standard output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_leaves_a_resumable_output(tiny, tmp_path):
    """SIGINT ends the run with 130 and a .part file; --resume completes it to the rows of the input."""
    path, out = tmp_path / "many.jsonl", tmp_path / "o.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"q{i}", "response": "word " * 400}) + "\n" for i in range(3000)))
    words = ["score", str(path), "--model", str(tiny("electra-small")), "--backend", "eager", "-o", str(out)]
    running = subprocess.Popen([sys.executable, "-m", "rmscore.cli", *words], stderr=subprocess.PIPE, text=True)
    part = tmp_path / "o.jsonl.part"
    deadline = time.monotonic() + 120
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "go on with the same command and --resume" in said
    written = len(part.read_text().splitlines())
    assert 0 < written < 3000
    path.write_text("".join(path.read_text().splitlines(keepends=True)[: written + 5]))
    assert rmscore(*words, "--resume").returncode == 0
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == list(range(written + 5))


def test_verify_passes_a_good_model_and_prints_80_columns(tiny, rows_file):
    """Every backend named is in the table, the tokenizers agree, exit code 0."""
    done = rmscore("verify", "--model", tiny("deberta-v3-xsmall"), "--rows", rows_file, "--backends", "eager")
    assert done.returncode == 0
    assert "everything passed" in done.stdout
    assert "the same ids" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_verify_fails_with_1_when_the_tokenizer_is_not_the_models(tiny, rows_file, tmp_path):
    """A tokenizer.json that disagrees with the SentencePiece model beside it is a failure."""
    import shutil

    folder = shutil.copytree(tiny("deberta-v3-xsmall"), tmp_path / "m")
    spec = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = spec["model"]["vocab"]
    spec["model"]["vocab"] = [*vocabulary[:10], *vocabulary[10:200][::-1], *vocabulary[200:]]
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    done = rmscore("verify", "--model", folder, "--rows", rows_file, "--backends", "eager")
    assert done.returncode == 1
    assert "FAILED" in done.stdout


def test_backends_lists_every_engine(tmp_path):
    """Every built-in backend has a row."""
    done = rmscore("backends")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("reference", "eager", "compile", "onnxruntime", "openvino"))
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_bench_then_compare_then_gate(tiny, rows_file, tmp_path):
    """A run is saved, compared with itself by cells, and two runs are gated; a file against itself is refused."""
    pytest.importorskip("pytest_benchmark")
    runs = [tmp_path / name for name in ("a.json", "b.json")]
    for run in runs:
        words = ("bench", "--model", tiny("electra-small"), "--rows", rows_file, "--backends", "eager", "--launches", 2)
        done = rmscore(*words, "-o", run)
        assert done.returncode == 0, done.stderr
        assert "[2/2] launch 2  eager cpu fp32 one" in done.stderr
    assert rmscore("compare", runs[0]).returncode == 0
    reports = (tmp_path / "c.json", tmp_path / "c.md")
    gated = rmscore("compare", *runs, "--fail-on", "slower", "--json", reports[0], "--markdown", reports[1])
    assert gated.returncode in (0, 1)
    (pair,) = json.loads(reports[0].read_text())["comparisons"]
    assert (gated.returncode == 1) == (pair["verdict"] == "slower")
    assert pair["verdict"] in reports[1].read_text()
    itself = rmscore("compare", runs[0], runs[0])
    assert itself.returncode == 2
    again = rmscore(*words, "-o", runs[0])
    assert again.returncode == 2
    assert "pass --overwrite" in again.stderr
