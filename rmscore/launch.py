"""Start a worker in a fresh process with a stated environment, and turn whatever becomes of it into a result."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rmscore.errors import BackendError
from rmscore.worker import Job, Outcome

INHERITED = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH",
    "RMSCORE_CACHE", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "CUDA_VISIBLE_DEVICES", "SYSTEMROOT",
)  # fmt: skip
"""What a worker takes from its parent; all else is set below or absent."""

LAST_WORDS = 300
"""Characters kept of what a failed worker said last."""


class WorkerFailure(BackendError):
    """A worker that died, hung or refused; the message is its last words."""


def worker_environment(threads: int, scratch: Path) -> dict[str, str]:
    """Return the whole environment of a worker: threads set before any library is imported, no network, own caches."""
    return (
        {name: os.environ[name] for name in INHERITED if name in os.environ}
        | worker_settings(threads)
        | {
            "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        }
    )


def worker_settings(threads: int) -> dict[str, str]:
    """Return the variables that decide how a worker runs, for the record."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads)) | {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": "ignore",
    }


def launch(job: Job, scratch: Path, *, timeout_seconds: float) -> Outcome:
    """Run a job in a fresh process; WorkerFailure says how it ended when it gave no outcome.

    ``scratch`` is a folder shared by the workers of one run (compiler caches); the worker writes nowhere else.
    """
    with tempfile.TemporaryDirectory(dir=scratch, prefix="launch-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "rmscore.worker", str(folder / "job.json"), str(folder / "outcome.json")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                env=worker_environment(job.threads, scratch),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code = _wait(process, timeout_seconds)
        log_text = (folder / "log").read_text(encoding="utf-8", errors="replace")
        if code is None:
            raise WorkerFailure(f"gave no answer within {timeout_seconds:g} s and was stopped{_said(log_text)}")
        if code != 0:
            raise WorkerFailure(_ending(code) + _said(log_text))
        return Outcome(**_read(folder / "outcome.json", log_text))


def _wait(process: subprocess.Popen[bytes], timeout_seconds: float) -> int | None:
    try:
        return process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # whatever ends the waiting, Ctrl-C included, no worker stays behind
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ending(code: int) -> str:
    if code == 2:  # noqa: PLR2004 - the worker's own refusal speaks for itself
        return "refused"
    if code > 0:
        return f"exited with {code}"
    name = signal.Signals(-code).name
    return f"was killed by {name}" + (", most likely for want of memory" if name == "SIGKILL" else "")


def _said(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f": {lines[-1][-LAST_WORDS:]}" if lines else ""


def _read(path: Path, log: str) -> Mapping[str, Any]:
    try:
        outcome: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkerFailure(f"ended without an outcome{_said(log)}") from error
    return outcome


@functools.cache
def cuda_works() -> bool:
    """Ask a child whether PyTorch finds a CUDA device, so that this process never holds a context; no PyTorch means no."""
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", probe], check=False, capture_output=True).returncode == 0  # noqa: S603
