"""The one table of tolerances against ``reference``; every check in the package and its suite reads it here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_DELTA = {
    ("cpu", "fp32"): 1e-5,
    ("cuda", "fp32"): 1e-4,
    ("cuda", "tf32"): 5e-3,
}
"""Largest |score − reference| where a precision is judged by its values alone."""

RANKED_DELTA_OF_SPREAD = 0.25
RANKED_KENDALL_TAU = 0.9
RANKED_FLIPS = 0.02
"""bf16, fp16 and int8 are judged by ranking as well: max |Δ| over the spread (standard deviation) of the reference
scores, Kendall τ over rows, and the share of preference pairs whose order flips."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How scores agree with the reference; ``flips`` and ``ties`` are shares of the preference pairs (None without)."""

    max_abs_delta: float
    delta_of_spread: float
    kendall_tau: float
    flips: float | None
    ties: float | None
    scale: float
    """Slope of the scores over the reference scores: 1 for equal scores, else "same order, wrong scale" is told by it."""

    def passes(self, device: str, precision: str) -> bool:
        """Whether this device and precision are within the table; NaN never passes."""
        limit = MAX_DELTA.get((device, precision))
        if limit is not None:
            return self.max_abs_delta <= limit
        return (
            self.delta_of_spread <= RANKED_DELTA_OF_SPREAD
            and self.kendall_tau >= RANKED_KENDALL_TAU
            and (self.flips is None or self.flips <= RANKED_FLIPS)
        )


def agreement(scores: ArrayLike, reference: ArrayLike, pairs: Sequence[tuple[int, int]] = ()) -> Agreement:
    """Compare scores [rows] or [rows, objectives] with the reference's; ``pairs`` are (chosen, rejected) row indices.

    Kendall's τ-b (Kendall 1945) over the first objective. With fewer than two distinct reference scores τ is 1 where
    the scores agree in that, else 0.
    """
    got, want = np.asarray(scores, np.float64), np.asarray(reference, np.float64)
    if got.shape != want.shape:
        raise ValueError(f"scores have shape {got.shape}, reference {want.shape}")
    if not got.size:
        return Agreement(0.0, 0.0, 1.0, None, None, 1.0)
    delta = float(np.abs(got - want).max())
    first, judge = got.reshape(len(got), -1)[:, 0], want.reshape(len(want), -1)[:, 0]
    spread = float(judge.std())
    centred = judge - judge.mean()
    scale = float(centred @ (first - first.mean()) / (centred @ centred)) if spread else 1.0
    of_spread = delta / spread if spread else (0.0 if delta == 0 else float("inf"))
    flips, ties = _flips(first, judge, pairs)
    return Agreement(delta, of_spread, _tau(first, judge), flips, ties, scale)


def _tau(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    if np.isnan(a).any() or np.isnan(b).any():
        return float("nan")
    rows, columns = np.triu_indices(len(a), 1)
    x, y = np.sign(a[rows] - a[columns]), np.sign(b[rows] - b[columns])
    weight = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / weight) if weight else float(np.array_equal(x, y))


def _flips(
    got: NDArray[np.float64], want: NDArray[np.float64], pairs: Sequence[tuple[int, int]]
) -> tuple[float | None, float | None]:
    if not pairs:
        return None, None
    chosen, rejected = np.array(pairs).T
    ours, theirs = np.sign(got[chosen] - got[rejected]), np.sign(want[chosen] - want[rejected])
    return float((ours * theirs < 0).mean()), float(((ours == 0) | (theirs == 0)).mean())
