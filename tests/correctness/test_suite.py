"""A run of the suite: which cells, in which order, what is refused, what is saved."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmscore.errors import SettingError, UnknownBackend
from rmscore.suite import SuiteSettings

pytest.importorskip("torch")
pytest.importorskip("pytest_benchmark")

PERF = Path(__file__).parent.parent / "perf" / "test_launches.py"


def settings(**changes):
    return SuiteSettings(**{"model": "m", "rows": "r", "backends": ("eager", "compile")} | changes)


def test_launches_are_interleaved_in_shuffled_blocks():
    """Every block holds each cell once; blocks differ in order; the seed decides it all."""
    given = settings(batching=("one", "naive:8", "bucketed:8"), launches=4, seed=7)
    order = given.order()
    blocks = [[cell for cell, number in order if number == block] for block in range(4)]
    assert [number for _, number in order] == sorted(number for _, number in order)
    assert all(sorted(map(str, block)) == sorted(map(str, given.cells())) for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1
    assert order == settings(batching=("one", "naive:8", "bucketed:8"), launches=4, seed=7).order()
    assert order != settings(batching=("one", "naive:8", "bucketed:8"), launches=4, seed=8).order()


def test_a_backend_can_have_one_batching_of_its_own():
    """``eager@one`` is measured with ``one`` alone; the others with every batching."""
    cells = settings(backends=("eager@one", "compile"), batching=("one", "naive:8")).cells()
    assert [f"{cell.backend} {cell.batching}" for cell in cells] == ["eager one", "compile one", "compile naive:8"]


def test_impossible_combinations_are_left_out_and_impossible_backends_refused():
    """A precision that one backend lacks costs that cell only; a backend that can run nothing is an error."""
    cells = settings(precisions=("fp32", "bf16"), backends=("eager", "reference")).cells()
    assert [f"{cell.backend} {cell.precision}" for cell in cells] == ["eager fp32", "eager bf16", "reference fp32"]
    with pytest.raises(SettingError, match="has no precision 'bf16'"):
        settings(precisions=("bf16",), backends=("reference",)).cells()
    with pytest.raises(UnknownBackend, match="did you mean 'eager'"):
        settings(backends=("eagre",)).cells()
    with pytest.raises(SettingError, match="must be at least 1"):
        settings(launches=0).order()


def pytest_run(tmp_path, *words):
    command = [sys.executable, "-m", "pytest", str(PERF), "-q", "-p", "no:cacheprovider", "-c", "/dev/null", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300)


def test_a_failed_launch_is_recorded_and_the_run_goes_on(tiny, tmp_path):
    """One backend whose worker dies fails its launch with its last words; the other's launch is measured and saved."""
    broken = tmp_path / "m"
    broken.mkdir()
    for path in tiny("electra-small").iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    plugin = tmp_path / "dying.py"
    plugin.write_text(
        "import rmscore.suite as suite\n"
        "real = suite.launch\n"
        "def launch(job, scratch, **how):\n"
        "    if job.backend == 'eager' and job.batching == 'naive:2':\n"
        "        raise suite.WorkerFailure('was killed by SIGKILL')\n"
        "    return real(job, scratch, **how)\n"
        "suite.launch = launch\n"
    )
    out = tmp_path / "run.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", str(PERF), "-q", "-p", "dying", "-p", "no:cacheprovider", "-c", "/dev/null"),
            *("--rm-model", str(broken), "--rm-backends", "eager", "--rm-batching", "one,naive:2", "--rm-launches", "1"),
            *("--rm-limit", "2", "--benchmark-json", str(out)),
        ],
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert "1 passed" in done.stdout
    assert "1 error" in done.stdout
    assert "was killed by SIGKILL" in done.stdout
    saved = json.loads(out.read_text())
    assert saved["rmscore"]["failures"] == [
        {"cell": "eager cpu fp32 naive:2", "launch": 0, "last_words": "was killed by SIGKILL"}
    ]
    (entry,) = saved["benchmarks"]
    info = entry["extra_info"]["rmscore"]
    assert (info["backend"], info["batching"], info["launch"], info["rows_per_batch"]) == ("eager", "one", 0, [1] * 4)
    assert len(entry["stats"]["data"]) == 4
    assert info["rows_per_second"] == pytest.approx(4 / sum(entry["stats"]["data"]), rel=1e-6)
    assert info["max_abs_delta"] <= 1e-5
    for text in ("Human:", "Assistant:"):
        assert text not in out.read_text()


def test_running_in_parallel_is_refused(tmp_path):
    """Under xdist every launch fails at once and says how to run instead."""
    pytest.importorskip("xdist")
    done = pytest_run(tmp_path, "-n", "2", "--rm-launches", "1", "--rm-backends", "eager")
    assert done.returncode == 1
    assert "measurements run one at a time" in done.stdout


def test_wrong_options_are_usage_errors(tmp_path):
    """A mistyped backend or number is one line, before anything runs."""
    for words, hint in (
        (("--rm-backends", "eagre"), "did you mean 'eager'"),
        (("--rm-launches", "five"), "--rm-launches 'five': give a number"),
        (("--rm-batching", "bucket:8"), "did you mean 'bucketed:N'"),
    ):
        done = pytest_run(tmp_path, *words)
        assert done.returncode == 2
        assert hint in done.stderr + done.stdout


def test_cuda_cells_are_skipped_where_there_is_no_gpu(tmp_path):
    """Without a GPU a CUDA cell is skipped with its reason."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = pytest_run(tmp_path, "--rm-devices", "cuda", "--rm-backends", "eager", "--rm-launches", "1", "-rs")
    assert "no CUDA device that PyTorch can use" in done.stdout
    assert done.returncode == 0
