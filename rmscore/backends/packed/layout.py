"""Rows laid end to end without padding: where each begins, which lie together, which begin with the same tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rmscore.types import Encoded

TOGETHER = 64
"""Up to this many tokens, equally long rows share one call of attention; longer ones fill the machine alone."""

WORTH_SHARING = 8
"""Tokens that rows must have in common before computing them once pays for one more call of attention."""


@dataclass(frozen=True, slots=True)
class Run:
    """``rows`` stretches of ``length`` tokens each, the first token at ``start``.

    ``before`` are the (start, stop) of tokens that come before each of them in its row: a prefix that rows share.
    """

    start: int
    rows: int
    length: int
    before: tuple[tuple[int, int], ...] = ()

    @property
    def stop(self) -> int:
        """The token after the last."""
        return self.start + self.rows * self.length


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A batch as one sequence of tokens: ``ids``, ``types`` and ``positions`` int64 [tokens], ``runs`` in order.

    ``pooled`` int64 [rows] is the token that the head reads for each row of the batch.
    """

    ids: torch.Tensor
    types: torch.Tensor
    positions: torch.Tensor
    pooled: torch.Tensor
    runs: tuple[Run, ...]

    def replace_positions(self, positions: torch.Tensor) -> Layout:
        """Return the same layout with other positions."""
        return replace(self, positions=positions)


def lay_out(rows: Sequence[Encoded], device: str = "cpu") -> Layout:
    """Lay rows end to end, longest first; the head reads each row's first token."""
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
    pooled = np.zeros(len(rows), np.int64)
    runs: list[Run] = []
    for index in order:
        pooled[index] = runs[-1].stop if runs else 0
        _append(runs, len(rows[index].ids), ())
    laid = [rows[index] for index in order]
    return Layout(
        _tensor([row.ids for row in laid], device),
        _tensor([row.type_ids for row in laid], device),
        _tensor([np.arange(len(row.ids)) for row in laid], device),
        torch.from_numpy(pooled).to(device),
        tuple(runs),
    )


def lay_out_shared(rows: Sequence[Encoded], device: str = "cpu", worth: int = WORTH_SHARING) -> Layout:
    """Lay rows of a causal model end to end, beginnings that several share once, however they are nested.

    The head reads each row's ``last`` token. ``worth`` is the fewest tokens to share.
    """
    tree = _Tree(rows, worth)
    tree.grow(sorted(range(len(rows)), key=lambda index: rows[index].ids.tolist()), 0, ())
    return Layout(
        _tensor([rows[index].ids[start:stop] for index, start, stop in tree.pieces], device),
        _tensor([rows[index].type_ids[start:stop] for index, start, stop in tree.pieces], device),
        _tensor([np.arange(start, stop) for _, start, stop in tree.pieces], device),
        torch.from_numpy(tree.pooled).to(device),
        tuple(tree.runs),
    )


class _Tree:
    """Grows the runs: ``pieces`` are (row, from, to) of the tokens in the order they are laid."""

    def __init__(self, rows: Sequence[Encoded], worth: int) -> None:
        self.ids = [row.ids for row in rows]
        self.last = [row.last % len(row.ids) for row in rows]
        self.worth = worth
        self.pieces: list[tuple[int, int, int]] = []
        self.runs: list[Run] = []
        self.pooled = np.zeros(len(rows), np.int64)

    def grow(self, rows: list[int], done: int, before: tuple[tuple[int, int], ...]) -> None:
        """Lay the tokens from ``done`` on of these rows, which are sorted and equal up to there."""
        if len(rows) == 1:
            self._lay(rows, done, len(self.ids[rows[0]]), before)
            return
        common = _common(self.ids[rows[0]], self.ids[rows[-1]])
        if common - done >= self.worth:
            before = (*before, self._lay(rows, done, common, before))
            done = common
        for branch in self._branches(rows, common):
            if len(self.ids[branch[0]]) > done:
                self.grow(branch, done, before)

    def _branches(self, rows: list[int], common: int) -> list[list[int]]:
        """Part sorted rows by the token after the common ones; a row that ends there is a part of its own."""
        parts: dict[int, list[int]] = {}
        for row in rows:
            ids = self.ids[row]
            parts.setdefault(int(ids[common]) if len(ids) > common else -1, []).append(row)
        ended = [[row] for row in parts.pop(-1, [])]
        return ended + sorted(parts.values(), key=lambda part: -len(self.ids[part[0]]))

    def _lay(self, rows: list[int], start: int, stop: int, before: tuple[tuple[int, int], ...]) -> tuple[int, int]:
        at = self.runs[-1].stop if self.runs else 0
        self.pieces.append((rows[0], start, stop))
        _append(self.runs, stop - start, before)
        for row in rows:
            if start <= self.last[row] < stop:
                self.pooled[row] = at + self.last[row] - start
        return at, at + stop - start


def _append(runs: list[Run], length: int, before: tuple[tuple[int, int], ...]) -> None:
    latest = runs[-1] if runs else None
    if latest and latest.length == length <= TOGETHER and latest.before == before:
        runs[-1] = Run(latest.start, latest.rows + 1, length, before)
    else:
        runs.append(Run(latest.stop if latest else 0, 1, length, before))


def _common(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    shorter = min(len(a), len(b))
    different = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(different[0]) if len(different) else shorter


def _tensor(parts: Sequence[NDArray[np.int64]], device: str) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device)
