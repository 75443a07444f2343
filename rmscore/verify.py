"""Prove that a backend gives the reference's scores, whatever the order, the batch and the padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rmscore.backends import Settings, load_backend
from rmscore.plan import parse_batching, plan
from rmscore.score import check_finite
from rmscore.tolerance import MAX_DELTA, RANKED_DELTA_OF_SPREAD, Agreement, agreement
from rmscore.types import Backend, Batch, Encoded, Row
from rmscore.worker import preference_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmscore.checkpoint import RewardModel

PROBES = 16
"""Rows that the invariances are tried on: the shortest, the longest, and those between at equal steps."""

EXTRA_PADDING = 7


@dataclass(frozen=True, slots=True)
class Check:
    """What was found of one backend; the three invariances are the largest |difference| between two ways of scoring."""

    backend: str
    settings: Settings
    effective_precision: str
    agreement: Agreement
    permutation: float
    batch: float
    padding: float
    limit: float
    """The largest difference an invariance may show."""

    @property
    def passes(self) -> bool:
        """Whether agreement and invariances are within the table; NaN never passes."""
        invariant = all(value <= self.limit for value in (self.permutation, self.batch, self.padding))
        return invariant and self.agreement.passes(self.settings.device, self.effective_precision)


def reference_scores(
    model: RewardModel, encoded: Sequence[Encoded], threads: int, tick: Callable[[int], None]
) -> NDArray[np.float32]:
    """Return the judge's scores [rows, objectives]; ``tick`` is told the number of rows just scored."""
    judge = load_backend("reference", model, Settings(threads=threads))
    try:
        return _score(judge, model, encoded, "one", tick=tick)
    finally:
        judge.close()


def check(
    model: RewardModel,
    rows: Sequence[Row],
    encoded: Sequence[Encoded],
    reference: NDArray[np.float32],
    backend: str,
    settings: Settings,
    tick: Callable[[int], None] = lambda _: None,
) -> Check:
    """Load a backend, score the rows in padded batches and hold them to the reference and to themselves.

    Raises BackendError where the engine fails or gives NaN.
    """
    engine = load_backend(backend, model, settings)
    try:
        scores = _score(engine, model, encoded, "bucketed:8", tick=tick)
        check_finite(rows, scores)
        probes = _probes(encoded)
        some = [encoded[i] for i in probes]
        alone = _score(engine, model, some, "one")
        backwards = _score(engine, model, some[::-1], "naive:8")[::-1]
        together = _score(engine, model, some, "naive:8")
        padded = _score(engine, model, some, "one", extra=EXTRA_PADDING)
    finally:
        engine.close()
    precision = getattr(engine, "record", {}).get("effective_precision", settings.precision)
    fixed = MAX_DELTA.get((settings.device, precision))
    return Check(
        backend,
        settings,
        precision,
        agreement(scores, reference, [(chosen, rejected) for chosen, rejected in preference_pairs(rows)]),
        _largest(backwards, together),
        _largest(together, alone),
        _largest(padded, alone),
        fixed if fixed is not None else RANKED_DELTA_OF_SPREAD * float(reference[:, 0].std()),
    )


def _score(
    engine: Backend,
    model: RewardModel,
    encoded: Sequence[Encoded],
    batching: str,
    *,
    extra: int = 0,
    tick: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    out = np.full((len(encoded), model.objectives), np.nan, np.float32)
    for indices in plan([len(row.ids) for row in encoded], parse_batching(batching), padded=engine.padded):
        scores = engine.score(Batch([encoded[i] for i in indices], model.pad_id, extra))
        out[indices] = np.asarray(scores).reshape(len(indices), -1)
        tick(len(indices))
    return out


def _probes(encoded: Sequence[Encoded]) -> list[int]:
    by_length = sorted(range(len(encoded)), key=lambda i: len(encoded[i].ids))
    steps = np.linspace(0, len(by_length) - 1, min(PROBES, len(by_length))).round().astype(int)
    # long next to short, so that padding has something to spoil
    chosen = [by_length[i] for i in dict.fromkeys(steps.tolist())]
    return [chosen[i // 2] if i % 2 == 0 else chosen[-1 - i // 2] for i in range(len(chosen))]


def _largest(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.abs(a - b).max()) if a.size else 0.0
