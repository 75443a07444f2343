"""Scoring from Python and into files: order, groups, records, resuming, stopping."""

import io
import json
import os
import signal

import numpy as np
import pytest

import rmscore
from rmscore.backends import BackendSpec, Settings, find, specs
from rmscore.errors import BackendError, EngineMissing, RowError, SettingError, UnknownBackend
from rmscore.output import OutputWriter, StreamWriter
from rmscore.rows import read_rows
from rmscore.score_file import score_file

pytest.importorskip("torch")

ROWS = [{"prompt": f"Question {i}?", "response": "word " * (i * 7 % 11), "tag": i} for i in range(40)]


@pytest.fixture(scope="module")
def scorer(tiny):
    with rmscore.load(tiny("electra-small"), backend="eager", batching="bucketed:2", threads=1) as loaded:
        yield loaded


def test_scores_are_in_input_order_and_raw(scorer, tiny):
    """Whatever the batching, a row's score is at the row's place and equals the reference's."""
    with rmscore.load(tiny("electra-small"), backend="reference", threads=1) as judge:
        want = judge.score(ROWS).values
    got = scorer.score(ROWS)
    assert got.values.dtype == np.float32
    assert got.ids == list(range(40))
    assert np.abs(got.values - want).max() <= 1e-5
    assert got.record["activation"] == "none"


def test_empty_input_gives_no_scores(scorer):
    """No rows in, no scores out, of the right shape and type."""
    scores = scorer.score([])
    assert (len(scores), scores.values.shape, scores.values.dtype) == (0, (0,), np.float32)


def test_one_row_instead_of_a_list_is_refused(scorer):
    """A single string or mapping is not taken for a list of its letters or keys."""
    for wrong in ("text", {"text": "x"}):
        with pytest.raises(RowError, match="a list of rows is needed"):
            scorer.score(wrong)


def test_sigmoid_only_on_request_and_named(tiny):
    """The activation is applied where asked for, and the record names it."""
    folder = tiny("electra-small")
    with (
        rmscore.load(folder, backend="eager", threads=1) as raw,
        rmscore.load(folder, backend="eager", threads=1, activation="sigmoid") as squeezed,
    ):
        a, b = raw.score(ROWS[:5]), squeezed.score(ROWS[:5])
    assert np.allclose(1 / (1 + np.exp(-a.values)), b.values, atol=1e-6)
    assert b.record["activation"] == "sigmoid"


def test_several_objectives_are_a_row_each(tiny, tmp_path):
    """A head of three outputs gives three scores a row, and a list in the output."""
    import shutil

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny("electra-small"), tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    for name in ("classifier.out_proj.weight", "classifier.out_proj.bias"):
        weights[name] = weights[name].repeat_interleave(3, 0) * (
            weights[name].new_tensor([1, 2, 3]).view(3, *[1] * (weights[name].ndim - 1))
        )
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {str(i): f"L{i}" for i in range(3)}, "label2id": {f"L{i}": i for i in range(3)}}
    (folder / "config.json").write_text(json.dumps(config))
    with rmscore.load(folder, backend="eager", threads=1) as scorer:
        values = scorer.score(ROWS[:4]).values
    assert values.shape == (4, 3)
    assert np.allclose(values[:, 1], 2 * values[:, 0], rtol=1e-4, atol=1e-5)


def run(scorer, writer, rows):
    return score_file(scorer, read_rows(rows), writer, tally=None, tick=lambda _: None, say=lambda _: None)


def test_a_stream_gets_one_line_a_row(scorer):
    """Standard output holds one object a row in input order."""
    out = io.StringIO()
    run(scorer, StreamWriter(out), ROWS)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["id"] for line in lines] == list(range(40))
    assert np.allclose([line["score"] for line in lines], scorer.score(ROWS).values, atol=1e-6)


@pytest.mark.parametrize("kept", [0, 1, 31, 32, 33, 39, 40])
def test_resuming_anywhere_gives_the_undisturbed_file(scorer, tmp_path, kept):
    """An output cut after any row, in the middle of the next line, is completed without a row twice or lost."""
    out = tmp_path / "o.jsonl"
    run(scorer, OutputWriter(out, scorer.decides()), ROWS)
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.rename(tmp_path / "o.jsonl.part")
    (tmp_path / "o.jsonl.meta.json").rename(tmp_path / "o.jsonl.part.meta.json")
    (tmp_path / "o.jsonl.part").write_bytes(b"".join(lines[:kept]) + b"".join(lines[kept : kept + 1])[:9])
    finished = run(scorer, OutputWriter(out, scorer.decides(), resume=True), ROWS)
    assert (finished.resumed, finished.scored) == (kept, 40 - kept)
    got, want = ([json.loads(line) for line in data.splitlines()] for data in (out.read_bytes(), whole))
    assert [line["id"] for line in got] == [line["id"] for line in want]
    assert np.allclose([line["score"] for line in got], [line["score"] for line in want], atol=1e-5)


def test_ctrl_c_finishes_the_group_and_leaves_a_resumable_output(scorer, tmp_path):
    """The first Ctrl-C ends the run after the rows in hand; resuming completes the file."""
    out = tmp_path / "o.jsonl"
    said = []

    def interrupted():
        for number, row in enumerate(read_rows(ROWS)):
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield row

    finished = score_file(
        scorer, interrupted(), OutputWriter(out, scorer.decides()), tally=None, tick=lambda _: None, say=said.append
    )
    assert finished.stopped
    assert said == ["stopping after the rows in hand; press Ctrl-C again to stop at once"]
    assert not out.exists()
    assert len((tmp_path / "o.jsonl.part").read_text().splitlines()) == finished.scored == 32
    assert run(scorer, OutputWriter(out, scorer.decides(), resume=True), ROWS).scored == 8
    assert len(out.read_text().splitlines()) == 40


def test_a_bad_row_loses_nothing_scored(scorer, tmp_path):
    """Rows before a malformed one are kept and resumed once it is mended."""
    source, out = tmp_path / "rows.jsonl", tmp_path / "o.jsonl"
    lines = [json.dumps(row) for row in ROWS]
    source.write_text("\n".join([*lines[:35], "{broken", *lines[36:]]) + "\n")
    with pytest.raises(RowError, match=r"rows\.jsonl, line 36"):
        run(scorer, OutputWriter(out, scorer.decides()), source)
    source.write_text("\n".join(lines) + "\n")
    assert run(scorer, OutputWriter(out, scorer.decides(), resume=True), source).resumed == 32


def test_unknown_and_missing_backends_say_what_to_do(monkeypatch):
    """A mistyped name gets the nearest match; an engine that is not installed gets its pip line."""
    with pytest.raises(UnknownBackend, match="did you mean 'onnxruntime'"):
        find("onxruntime")
    missing = BackendSpec("ghost", "nowhere:load", ("no_such_engine",), "pip install ghost")
    monkeypatch.setattr("rmscore.backends.BUILT_IN", {"ghost": missing})
    with pytest.raises(EngineMissing, match="needs no_such_engine: pip install ghost"):
        find("ghost")


def test_impossible_settings_name_the_possible():
    """A precision or device that a backend lacks is answered with those it has."""
    for settings, hint in (
        (Settings(precision="int4"), r"choose from: fp32, bf16"),
        (Settings(device="tpu"), "unknown device 'tpu'"),
        (Settings(device="cuda"), None),
    ):
        if hint:
            with pytest.raises(SettingError, match=hint):
                find("eager", settings)
    with pytest.raises(SettingError, match="does not run on cuda"):
        find("reference", Settings(device="cuda"))


class Constant:
    """A backend of somebody else: scores are the number of tokens."""

    padded = False

    def __init__(self, model, settings):
        self.closed = False

    def score(self, batch):
        return np.array([len(row.ids) for row in batch.rows], np.float32)

    def close(self):
        self.closed = True


def third_party(monkeypatch, load):
    class Entry:
        name, value, group = "constant", "theirs:spec", "rmscore.backends"

        def load(self):
            return load

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Entry()] if group == Entry.group else [])


def test_an_installed_package_adds_a_backend(tiny, monkeypatch):
    """A backend published under the entry point group is found by name and scores like any other."""
    third_party(monkeypatch, BackendSpec("constant", Constant))
    assert "constant" in specs()
    with rmscore.load(tiny("electra-small"), backend="constant", batching="tokens:64") as scorer:
        scores = scorer.score(ROWS)
    assert scores.values.tolist() == [
        len(row.ids) for row in rmscore.score.encode(scorer.encoder, list(read_rows(ROWS)))
    ]
    assert scorer.backend.closed


def test_an_entry_point_that_is_no_backend_is_told(monkeypatch):
    """An entry point of the group that holds something else is named."""
    third_party(monkeypatch, object())
    with pytest.raises(BackendError, match=r"'constant' \(theirs:spec\) is no rmscore"):
        specs()


def test_importing_the_package_is_light():
    """``import rmscore`` brings in no engine, no statistics and no plotting."""
    import subprocess
    import sys

    heavy = [
        "torch",
        "transformers",
        "onnxruntime",
        "openvino",
        "scipy",
        "pyarrow",
        "sentencepiece",
        "rich",
        "typer",
        "jinja2",
        "pytest",
    ]
    code = f"import rmscore, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_memory_does_not_grow_with_the_file(tiny, monkeypatch, tmp_path):
    """Scoring five times as many rows into a file takes no more memory at its peak."""
    import tracemalloc

    third_party(monkeypatch, BackendSpec("constant", Constant))
    peaks = []
    with rmscore.load(tiny("electra-small"), backend="constant", batching="naive:8", threads=1) as scorer:
        for count in (1000, 1000, 5000):
            source = tmp_path / f"rows{len(peaks)}.jsonl"
            source.write_text('{"prompt": "some words", "response": "and some more words"}\n' * count)
            tracemalloc.start()
            finished = run(scorer, OutputWriter(tmp_path / f"o{len(peaks)}.jsonl", scorer.decides()), source)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert finished.scored == count
    assert peaks[2] < 1.2 * peaks[1]
