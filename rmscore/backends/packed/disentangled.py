"""DeBERTa's disentangled attention without padding, without projections of positions, without a gather.

He et al. 2021 (arXiv 2006.03654), equation 4: a score is content · content + content · position + position · content.
The positions' keys and queries depend on no input and are made once (:class:`Positions`). The bucket of a pair of
tokens depends on their distance alone, so the products of a token with the positions of all distances hold every score
it needs, one place further along for each next token: read with the right strides they *are* the [query, key] matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from rmscore.backends.packed.layout import Layout, Run

BLOCK = 96
"""Tokens whose products with positions are made together: of the distances, a block needs row + block, all need 2 rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Distances:
    """For distances from ``longest - 1`` down to ``1 - longest``: the row of the position table that serves each.

    ``keys`` serves content → position, ``queries`` position → content, both int64 [2 longest - 1].
    """

    keys: torch.Tensor
    queries: torch.Tensor
    longest: int

    def to(self, device: str) -> Distances:
        """Return the same on another device."""
        return Distances(self.keys.to(device), self.queries.to(device), self.longest)


def distances(longest: int, *, buckets: int, span: int, max_distance: int) -> Distances:
    """Return the table rows, as ``DebertaV2`` in transformers picks them.

    ``buckets`` is ``position_buckets`` (at most 0: none), ``span`` half the rows of the table.
    """
    down = torch.arange(longest - 1, -longest, -1)
    near = bucket(down, buckets, max_distance) if buckets > 0 and max_distance > 0 else down
    keys, queries = ((index + span).clamp(0, 2 * span - 1) for index in (near, -near))
    return Distances(keys, queries, longest)


def bucket(distance: torch.Tensor, buckets: int, max_distance: int) -> torch.Tensor:
    """Return int64 buckets of distances: themselves up to half the buckets, logarithmic beyond (both signs)."""
    middle = buckets // 2
    far = distance.abs().clamp(min=middle).float()
    scale = torch.log(torch.tensor((max_distance - 1) / middle))
    logarithmic = torch.ceil(torch.log(far / middle) / scale * (middle - 1)) + middle
    return torch.where(distance.abs() <= middle, distance, (logarithmic * distance.sign()).long())


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """One layer's position tables [heads, 2 span, width]: ``keys`` (None without c2p), ``queries`` (None without p2c)."""

    keys: torch.Tensor | None
    queries: torch.Tensor | None


def disentangled(qkv: torch.Tensor, layout: Layout, table: Positions, index: Distances, heads: int) -> torch.Tensor:
    """Return the context [tokens, hidden] of [tokens, 3 hidden] queries (already scaled), keys and values."""
    tokens = len(qkv)
    width = qkv.shape[1] // (3 * heads)
    q, k, v = qkv.view(tokens, 3, heads, width).permute(1, 2, 0, 3).unbind(0)
    out = torch.empty(tokens, heads, width, dtype=qkv.dtype, device=qkv.device)
    near = _by_distance(table, index, max(run.length for run in layout.runs))
    for run in layout.runs:
        part = slice(run.start, run.stop)
        context = _run(q[:, part], k[:, part], v[:, part], run, near)
        out[part].view(run.rows, run.length, heads, width).copy_(context.permute(1, 2, 0, 3))
    return out.view(tokens, heads * width)


def _by_distance(table: Positions, index: Distances, length: int) -> Positions:
    """Return the tables with a row for each distance from ``length - 1`` down to ``1 - length``."""
    middle = slice(index.longest - length, index.longest + length - 1)
    return Positions(
        None if table.keys is None else table.keys.index_select(1, index.keys[middle]),
        None if table.queries is None else table.queries.index_select(1, index.queries[middle]),
    )


def _run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, run: Run, near: Positions) -> torch.Tensor:
    """Return [heads, rows, length, width] for [heads, rows · length, width] of one run."""
    heads, _, width = q.shape
    shape = (heads, run.rows, run.length, width)
    if run.rows == 1:
        scores = torch.bmm(q, k.transpose(1, 2))[:, None]
    else:
        scores = torch.matmul(q.reshape(shape), k.reshape(shape).transpose(2, 3))
    block = run.length if run.rows > 1 else BLOCK
    for positions, content, target in ((near.keys, q, scores), (near.queries, k, scores.transpose(2, 3))):
        if positions is not None:
            middle = (positions.shape[1] + 1) // 2
            used = positions[:, middle - run.length : middle + run.length - 1]
            _add_by_distance(target, content, used, run, block)
    probabilities = torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype)
    return torch.matmul(probabilities, v.reshape(shape))


def _add_by_distance(
    scores: torch.Tensor, content: torch.Tensor, positions: torch.Tensor, run: Run, block: int
) -> None:
    """Add ``content[i] · positions[distance(i, j)]`` to ``scores[..., i, j]``, in blocks of i.

    Position row c serves the pairs with j - i = c + 1 - length, so that along j the product lies in order.
    """
    heads = len(content)
    for start in range(0, run.length, block):
        stop = min(start + block, run.length)
        count = stop - start
        wide = count + run.length - 1
        used = positions[:, run.length - stop : run.length - stop + wide]
        if run.rows == 1:
            products = torch.bmm(content[:, start:stop], used.transpose(1, 2))
        else:
            products = torch.bmm(content, used.transpose(1, 2))
        scores[:, :, start:stop] += products.as_strided(
            (heads, run.rows, count, run.length),
            (run.rows * count * wide, count * wide, wide - 1, 1),
            count - 1,
        )
