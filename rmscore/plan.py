"""Lengths → batches: which rows are scored together, in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rmscore.errors import SettingError, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmscore.types import Backend, Encoded

POLICIES = ("one", "naive", "bucketed", "tokens")


@dataclass(frozen=True, slots=True)
class Batching:
    """A batching policy: ``one``, ``naive:N``, ``bucketed:N`` or ``tokens:B``."""

    policy: str
    size: int = 1

    def __str__(self) -> str:
        """Return the policy as it is written on the command line."""
        return self.policy if self.policy == "one" else f"{self.policy}:{self.size}"


def parse_batching(text: str) -> Batching:
    """Read ``one``, ``naive:8``, ``bucketed:8`` or ``tokens:4096``; SettingError says what is wrong."""
    policy, colon, size = text.strip().partition(":")
    if policy not in POLICIES:
        raise SettingError(f"unknown batching {text!r} {nearest(policy, ('one', 'naive:N', 'bucketed:N', 'tokens:B'))}")
    if policy == "one":
        if colon:
            raise SettingError(f"batching {text!r}: 'one' takes no size; write 'one' or 'naive:{size or 8}'")
        return Batching("one")
    if not (size.isascii() and size.isdigit() and int(size) > 0):
        raise SettingError(
            f"batching {text!r}: needs a size of at least 1, such as '{policy}:{8 if policy != 'tokens' else 4096}'"
        )
    return Batching(policy, int(size))


def plan_for(backend: Backend, rows: Sequence[Encoded], batching: Batching) -> list[list[int]]:
    """Return batches for a backend: by :func:`plan_shared` where it can share beginnings, else by :func:`plan`."""
    if batching.policy == "tokens" and getattr(backend, "shares_prefixes", False):
        return plan_shared([row.ids for row in rows], batching.size)
    return plan([len(row.ids) for row in rows], batching, padded=backend.padded)


def plan_shared(ids: Sequence[NDArray[np.int64]], budget: int) -> list[list[int]]:
    """Return batches for a backend that computes a beginning shared by rows of a batch once.

    Rows that begin alike come together, and a batch holds at most ``budget`` tokens as such a backend counts them: those
    that a row has beyond what it shares with the one before. A longer row is a batch of its own.
    """
    keys = [row.astype(">u4").tobytes() for row in ids]  # big-endian, so that bytes sort as the ids do
    batches: list[list[int]] = []
    used = 0
    for index in sorted(range(len(ids)), key=keys.__getitem__):
        cost = len(ids[index]) - (_common(ids[batches[-1][-1]], ids[index]) if batches else 0)
        if not batches or used + cost > budget:
            batches.append([])
            used, cost = 0, len(ids[index])
        batches[-1].append(index)
        used += cost
    return batches


def _common(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    shorter = min(len(a), len(b))
    different = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(different[0]) if len(different) else shorter


def plan(lengths: Sequence[int], batching: Batching, *, padded: bool) -> list[list[int]]:
    """Return batches as lists of row indices; every row is in exactly one batch.

    ``lengths`` are tokens per row. ``one`` and ``naive`` keep arrival order; ``bucketed`` and ``tokens`` go from the
    longest row to the shortest, equal lengths in arrival order. A ``tokens:B`` batch holds at most B tokens as the
    backend counts them (``padded``: rows × longest row; else their sum); a longer row is a batch of its own.
    """
    arrival = list(range(len(lengths)))
    if batching.policy in ("one", "naive"):
        return list(_chunks(arrival, batching.size))
    by_length = sorted(arrival, key=lambda index: -lengths[index])
    if batching.policy == "bucketed":
        return list(_chunks(by_length, batching.size))
    return list(_fill(by_length, lengths, batching.size, padded=padded))


def padded_tokens(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> int:
    """Return how many padding tokens these batches cost a padded backend."""
    return sum(len(rows) * max(lengths[i] for i in rows) - sum(lengths[i] for i in rows) for rows in batches if rows)


def group_size(batching: Batching) -> int:
    """Return the rows to encode, score and write together: about 16 batches (of 256-token rows for ``tokens``).

    Sixteen batches let sorting by length bring most of its gain; a stop waits for no more than a group.
    """
    return 16 * (batching.size if batching.policy != "tokens" else max(1, batching.size // 256))


def _chunks(indices: list[int], size: int) -> Iterator[list[int]]:
    return (indices[start : start + size] for start in range(0, len(indices), size))


def _fill(by_length: list[int], lengths: Sequence[int], budget: int, *, padded: bool) -> Iterator[list[int]]:
    batch: list[int] = []
    used = 0
    for index in by_length:
        # rows come longest first, so the batch's first row is its longest
        cost = lengths[batch[0]] if batch and padded else lengths[index]
        if batch and used + cost > budget:
            yield batch
            batch, used, cost = [], 0, lengths[index]
        batch.append(index)
        used += cost
    if batch:
        yield batch
