"""What one run of ``tests/perf`` does: its settings, its cells, each launch through a worker, and what is recorded."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rmscore.backends import Settings, find
from rmscore.cache import cached
from rmscore.checkpoint import content_hash, open_checkpoint
from rmscore.environment import affinity_cores, environment
from rmscore.errors import RowError, SettingError
from rmscore.launch import WorkerFailure, launch, worker_settings
from rmscore.plan import parse_batching
from rmscore.results import Cell
from rmscore.tolerance import Agreement, agreement
from rmscore.worker import Job, Outcome


@dataclass(frozen=True, slots=True)
class SuiteSettings:
    """The settings of a run; lists are in the order given. ``threads`` 0 means the cores of the affinity mask."""

    model: str
    rows: str
    backends: tuple[str, ...] = ("eager", "compile", "onnxruntime")
    devices: tuple[str, ...] = ("cpu",)
    precisions: tuple[str, ...] = ("fp32",)
    batching: tuple[str, ...] = ("one",)
    launches: int = 5
    passes: int = 1
    limit: int = 0
    seed: int = 0
    threads: int = 0
    timeout_seconds: float = 1800.0

    def cells(self) -> tuple[Cell, ...]:
        """Return every combination that its backend can run, checked; SettingError where a backend can run none.

        Combinations a backend does not have (a precision it lacks) are left out; batching names are normalised. A
        backend written ``eager@one`` is measured with that batching alone.
        """
        cells: list[Cell] = []
        for named in self.backends:
            backend, _, own = named.partition("@")
            policies = [str(parse_batching(text)) for text in ([own] if own else self.batching)]
            spec = find(backend)
            able = [(d, p) for d in self.devices for p in self.precisions if p in spec.precisions.get(d, ())]
            if not able:
                find(backend, Settings(self.devices[0], self.precisions[0]))  # raises, saying what it can run
            cells += [Cell(backend, device, precision, policy) for device, precision in able for policy in policies]
        return tuple(dict.fromkeys(cells))

    def order(self) -> tuple[tuple[Cell, int], ...]:
        """Return (cell, launch) in running order: blocks of one launch of every cell, shuffled by the seed."""
        if self.launches < 1 or self.passes < 1:
            raise SettingError(f"launches {self.launches}, passes {self.passes}: both must be at least 1")
        shuffle = random.Random(self.seed)  # noqa: S311 - an order, not a secret
        cells = self.cells()
        return tuple((cell, number) for number in range(self.launches) for cell in shuffle.sample(cells, len(cells)))


@dataclass(slots=True)
class Suite:
    """A run in progress: what is shared between its launches."""

    settings: SuiteSettings
    scratch: Path
    model_hash: str
    threads: int
    prepared: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    reference: Outcome | WorkerFailure | None = None
    started: int = 0
    say: Callable[[str], object] = str
    """Told what a person would wait for without a word: the reference, the first start of an engine."""

    def run(self, cell: Cell, number: int) -> tuple[Outcome, Agreement]:
        """Run one launch. A worker that dies, hangs or refuses is recorded and raised as WorkerFailure."""
        self.started += 1
        try:
            reference = self._reference()
            self._prepare(cell)
            outcome = launch(
                self._job(cell, self.settings.passes), self.scratch, timeout_seconds=self.settings.timeout_seconds
            )
        except WorkerFailure as error:
            self.failures.append({"cell": str(cell), "launch": number, "last_words": str(error)})
            raise WorkerFailure(f"{cell}, launch {number}: the worker {error}") from error
        pairs = [(chosen, rejected) for chosen, rejected in outcome.pairs]
        return outcome, agreement(outcome.scores, reference.scores, pairs)

    def extra_info(self, cell: Cell, number: int, outcome: Outcome, agreed: Agreement) -> dict[str, Any]:
        """Return what is saved with a launch beside its raw samples."""
        record = dict(outcome.record)
        return {
            **asdict(cell),
            "launch": number,
            "seed": self.settings.seed,
            "order": self.started - 1,
            "model_hash": self.model_hash,
            "rows_hash": outcome.rows_hash,
            "rows_per_batch": outcome.rows_per_batch,
            "passes": outcome.passes,
            "rows_per_second": sum(outcome.rows_per_batch) / sum(outcome.seconds_per_batch),
            "tokens": outcome.tokens,
            "padded_tokens": outcome.padded_tokens,
            "truncated": outcome.truncated,
            "max_abs_delta": agreed.max_abs_delta,
            "kendall_tau": agreed.kendall_tau,
            "flips": agreed.flips,
            "load_seconds": outcome.load_seconds,
            "first_call_seconds": outcome.first_call_seconds,
            "encode_seconds": outcome.encode_seconds,
            "peak_rss_bytes": outcome.peak_rss_bytes,
            "gpu_bytes": outcome.gpu_bytes,
            "effective_precision": record.pop("effective_precision", None),
            "threads": record.pop("threads", self.threads),
            "engine": record,
            "versions": environment()["versions"],
        }

    def header(self) -> dict[str, Any]:
        """Return what is saved once for the run."""
        return {
            "environment": environment(),
            "worker_environment": worker_settings(self.threads),
            "settings": asdict(self.settings)
            | {"model": Path(self.settings.model).name, "rows": Path(self.settings.rows).name},
            "seed": self.settings.seed,
            "prepared": self.prepared,
            "failures": self.failures,
        }

    def _job(self, cell: Cell, passes: int) -> Job:
        settings = self.settings
        return Job(
            settings.model, settings.rows, **asdict(cell), threads=self.threads, passes=passes, limit=settings.limit
        )

    def _reference(self) -> Outcome:
        """Return the judge's scores, computed once per checkpoint, rows and versions, and kept in the cache."""
        if isinstance(self.reference, WorkerFailure):
            raise self.reference
        if self.reference is None:
            job = Job(
                self.settings.model, self.settings.rows, "reference", threads=self.threads, limit=self.settings.limit
            )
            with Path(job.rows).open("rb") as file:
                rows_file = hashlib.file_digest(file, "sha256").hexdigest()
            key = {
                "model": self.model_hash,
                "rows": [rows_file, job.limit],
                "threads": job.threads,
                "versions": {name: version(name) for name in ("rmscore", "torch", "transformers", "tokenizers")},
            }
            try:
                folder = cached("reference", key, lambda draft: self._score_reference(job, draft))
            except WorkerFailure as error:
                self.reference = WorkerFailure(f"of the reference {error}")
                raise self.reference from error
            self.reference = Outcome(**json.loads((folder / "outcome.json").read_text(encoding="utf-8")))
        return self.reference

    def _score_reference(self, job: Job, draft: Path) -> None:
        self.say("scoring the rows with the reference, once for this checkpoint and these rows")
        outcome = launch(job, self.scratch, timeout_seconds=10 * self.settings.timeout_seconds)
        (draft / "outcome.json").write_text(json.dumps(asdict(outcome)), encoding="utf-8")

    def _prepare(self, cell: Cell) -> None:
        """Run a cell's cold pass once before its first launch: exports are made, and the really cold figures recorded.

        Its launches then all find the same warm caches, as the second start of any program does.
        """
        if str(cell) not in self.prepared:
            self.prepared[str(cell)] = None
            self.say(f"first start of {cell}: exporting and compiling where the cache has nothing")
            cold = launch(self._job(cell, 0), self.scratch, timeout_seconds=self.settings.timeout_seconds)
            self.prepared[str(cell)] = {
                "load_seconds": cold.load_seconds,
                "first_call_seconds": cold.first_call_seconds,
            }


def open_suite(settings: SuiteSettings, scratch: Path) -> Suite:
    """Check model, rows and cells before anything runs, and return the run; errors say what to change."""
    settings.cells()
    model = open_checkpoint(settings.model)
    if not Path(settings.rows).is_file():
        raise RowError(f"{settings.rows}: no such file; the suite needs rows in a file that every launch can read")
    return Suite(settings, scratch, content_hash(model), settings.threads or affinity_cores())
