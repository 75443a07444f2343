"""A worker is a process of its own, and however it ends its parent learns how and goes on."""

import sys

import pytest

from rmscore import launch as launching
from rmscore.launch import WorkerFailure, launch, worker_environment
from rmscore.worker import Job

pytest.importorskip("torch")


def job(tiny, rows_file, **changes):
    return Job(**{"model": str(tiny("electra-small")), "rows": str(rows_file), "backend": "eager"} | changes)


@pytest.fixture
def rows_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "a", "response": "{"word " * n}"}}\n' for n in range(1, 7)))
    return path


def test_an_outcome_holds_what_was_measured(tiny, rows_file, tmp_path):
    """Two passes in batches of four give two samples each, one score a row, and figures of this process alone."""
    outcome = launch(job(tiny, rows_file, batching="naive:4", passes=2), tmp_path, timeout_seconds=120)
    assert outcome.rows_per_batch == [4, 2, 4, 2]
    assert len(outcome.seconds_per_batch) == 4
    assert all(seconds > 0 for seconds in outcome.seconds_per_batch)
    assert len(outcome.scores) == 6
    assert outcome.padded_tokens == 3 + 2 + 1 + 1
    assert outcome.load_seconds > 0
    assert 50e6 < outcome.peak_rss_bytes < 4e9
    assert outcome.record["effective_precision"] == "fp32"


def test_a_refusal_is_the_workers_last_words(tiny, tmp_path):
    """A worker that refuses says why, in one line."""
    with pytest.raises(WorkerFailure, match=r"refused: .*nothing\.jsonl") as caught:
        launch(job(tiny, tmp_path / "nothing.jsonl"), tmp_path, timeout_seconds=120)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "was killed by SIGKILL, most likely for want of memory",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("raise MemoryError('no room for 9 GiB')", "exited with 1: MemoryError: no room for 9 GiB"),
        ("print('odd'); raise SystemExit(0)", "ended without an outcome: odd"),
        (
            "import time; print('waiting', flush=True); time.sleep(60)",
            "gave no answer within 1 s and was stopped: waiting",
        ),
    ],
)
def test_every_end_is_told(tiny, rows_file, tmp_path, monkeypatch, code, words):
    """Killed, crashed, out of memory, silent or hanging: the failure says which, with the last words."""
    real = launching.subprocess.Popen
    monkeypatch.setattr(launching.subprocess, "Popen", lambda command, **how: real([sys.executable, "-c", code], **how))
    with pytest.raises(WorkerFailure) as caught:
        launch(job(tiny, rows_file), tmp_path, timeout_seconds=1 if "sleep" in code else 60)
    assert str(caught.value) == words


def test_the_environment_is_stated_not_inherited(monkeypatch, tmp_path):
    """Threads are set, and a variable that would change a measurement does not reach the worker."""
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("MKL_DYNAMIC", "TRUE")
    got = worker_environment(3, tmp_path)
    assert got["OMP_NUM_THREADS"] == got["MKL_NUM_THREADS"] == "3"
    assert "MKL_DYNAMIC" not in got
    assert got["HF_HUB_OFFLINE"] == "1"
