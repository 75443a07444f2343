"""One isolated process: loads a backend, scores all rows, reports its own clock and memory. Run by ``rmscore.launch``."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmscore.errors import RmscoreError, RowError
from rmscore.plan import padded_tokens, plan_for
from rmscore.rows import read_rows
from rmscore.types import Backend, Batch, Encoded, Row

if TYPE_CHECKING:
    from rmscore.score import Scorer


@dataclass(frozen=True, slots=True)
class Job:
    """What one worker does. ``limit`` rows of the file are read, 0 means all; ``passes`` 0 means only the cold pass."""

    model: str
    rows: str
    backend: str
    device: str = "cpu"
    precision: str = "fp32"
    batching: str = "one"
    threads: int = 1
    passes: int = 1
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one worker reports, JSON-ready; times in seconds, memory in bytes, ``scores`` in input order.

    ``seconds_per_batch`` and ``rows_per_batch`` cover the measured passes in the order they ran.
    """

    load_seconds: float
    first_call_seconds: float
    encode_seconds: float
    seconds_per_batch: list[float]
    rows_per_batch: list[int]
    passes: int
    scores: list[Any]
    pairs: list[list[int]]
    tokens: int
    padded_tokens: int
    truncated: int
    peak_rss_bytes: int
    gpu_bytes: int | None
    rows_hash: str
    record: Mapping[str, Any]


def run(job: Job) -> Outcome:
    """Load, score a cold pass, then the measured passes.

    The cold pass is the first batch, whose time is ``first_call_seconds``, then the longest and the shortest batch, so
    that compilation and the largest allocation are behind before the first measured batch.
    """
    from rmscore.score import check_finite, load

    started = time.perf_counter()
    scorer = load(
        job.model,
        backend=job.backend,
        device=job.device,
        precision=job.precision,
        batching=job.batching,
        threads=job.threads,
    )
    load_seconds = time.perf_counter() - started
    rows, encoded, encode_seconds = _encoded(scorer, job)
    lengths = [len(row.ids) for row in encoded]
    planned = plan_for(scorer.backend, encoded, scorer.batching)
    batches = [Batch([encoded[i] for i in indices], scorer.model.pad_id) for indices in planned]
    first_call = _cold_pass(scorer.backend, batches)
    values = np.full((len(rows), scorer.model.objectives), np.nan, np.float32)
    seconds: list[float] = []
    for _ in range(job.passes):
        for indices, batch in zip(planned, batches, strict=True):
            begun = time.perf_counter()
            scores = scorer.backend.score(batch)
            seconds.append(time.perf_counter() - begun)
            values[indices] = np.asarray(scores).reshape(len(indices), -1)
        check_finite(rows, values)
    outcome = Outcome(
        load_seconds=load_seconds,
        first_call_seconds=first_call,
        encode_seconds=encode_seconds,
        seconds_per_batch=seconds,
        rows_per_batch=[len(batch) for batch in batches] * job.passes,
        passes=job.passes,
        scores=(values[:, 0] if values.shape[1] == 1 else values).tolist() if job.passes else [],
        pairs=preference_pairs(rows),
        tokens=sum(lengths),
        padded_tokens=padded_tokens(lengths, planned) if scorer.backend.padded else 0,
        truncated=sum(row.cut > 0 for row in encoded),
        peak_rss_bytes=_peak_rss_bytes(),
        gpu_bytes=_gpu_bytes(job.device),
        rows_hash=_hash(rows),
        record=getattr(scorer.backend, "record", {}),
    )
    scorer.close()
    return outcome


def preference_pairs(rows: Sequence[Row]) -> list[list[int]]:
    """Return [chosen, rejected] positions of the preference pairs among the rows."""
    halves = {(row.pair, row.side): index for index, row in enumerate(rows) if row.side}
    return [
        [i, halves[pair, "rejected"]]
        for (pair, side), i in halves.items()
        if side == "chosen" and (pair, "rejected") in halves
    ]


def _encoded(scorer: Scorer, job: Job) -> tuple[list[Row], list[Encoded], float]:
    from rmscore.encode import encode

    started = time.perf_counter()
    rows = list(read_rows(job.rows, limit=job.limit or None))
    if not rows:
        raise RowError(f"{job.rows}: holds no rows, so there is nothing to measure")
    return rows, encode(scorer.encoder, rows), time.perf_counter() - started


def _cold_pass(backend: Backend, batches: list[Batch]) -> float:
    started = time.perf_counter()
    backend.score(batches[0])
    seconds = time.perf_counter() - started
    by_size = sorted(batches[1:], key=lambda batch: len(batch) * batch.longest)
    for batch in by_size[-1:] + by_size[:1]:
        backend.score(batch)
    return seconds


def _hash(rows: Sequence[Row]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(f"{row.id!r} {row.content!r}\n".encode())
    return digest.hexdigest()


def _peak_rss_bytes() -> int:
    """Return this process's own high-water mark; ``getrusage`` would count the parent's from before ``exec``."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _gpu_bytes(device: str) -> int | None:
    torch = sys.modules.get("torch")
    return int(torch.cuda.max_memory_allocated()) if device == "cuda" and torch is not None else None


def _die_first() -> None:
    """Ask the kernel to end this process, not the one that measures, when memory runs out."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    except OSError:
        return


def main() -> int:
    """Read a job from the file named first, write the outcome to the one named second; 2 for a refusal."""
    _die_first()
    job = Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    try:
        outcome = run(job)
    except RmscoreError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    Path(sys.argv[2]).write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
