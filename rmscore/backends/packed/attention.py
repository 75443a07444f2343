"""Attention within rows: softmax over the tokens of the row, in both directions, some within a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from rmscore.backends.packed.layout import Layout, Run


def bidirectional(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, *, window: int | None = None
) -> torch.Tensor:
    """Return the context [tokens, hidden] of queries, keys and values [tokens, heads, width].

    ``window`` is the largest distance at which tokens see each other.
    """
    tokens, heads, width = q.shape
    out = torch.empty(tokens, heads, width, dtype=q.dtype, device=q.device)
    for run in layout.runs:
        q_run, k_run, v_run = (
            t[run.start : run.stop].view(run.rows, run.length, heads, width).transpose(1, 2) for t in (q, k, v)
        )
        mask = None
        if window is not None and run.length > window + 1:
            positions = torch.arange(run.length, device=q.device)
            mask = (positions[:, None] - positions[None]).abs() <= window
        context = functional.scaled_dot_product_attention(q_run, k_run, v_run, attn_mask=mask)
        out[run.start : run.stop].view(run.rows, run.length, heads, width).copy_(context.transpose(1, 2))
    return out.view(tokens, heads * width)


def causal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: Layout,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the context [tokens, hidden] of queries [tokens, heads, width] over keys and values of as many or fewer heads.

    A token sees those before it in its row, itself included, the shared ones among them. ``window`` is how many of them
    at most; ``softcap`` bounds the scores before the softmax (Gemma 2).
    """
    tokens, heads, width = q.shape
    out = torch.empty(tokens, heads, width, dtype=q.dtype, device=q.device)
    for run in layout.runs:
        own = slice(run.start, run.stop)
        queries = q[own].view(run.rows, run.length, heads, width).transpose(1, 2)
        keys, values = (_with_before(t, run, heads) for t in (k, v))
        mask = _mask(run, keys.shape[2], window, q.device)
        context = _softmax(queries, keys, values, mask, scale, softcap)
        out[own].view(run.rows, run.length, heads, width).copy_(context.transpose(1, 2))
    return out.view(tokens, heads * width)


def _with_before(t: torch.Tensor, run: Run, heads: int) -> torch.Tensor:
    """Return [rows, heads, before + length, width]: what comes before the run's rows, then their own."""
    own = t[run.start : run.stop].view(run.rows, run.length, *t.shape[1:])
    if run.before:
        shared = torch.cat([t[start:stop] for start, stop in run.before])
        own = torch.cat([shared.expand(run.rows, *shared.shape), own], 1)
    return own.transpose(1, 2).repeat_interleave(heads // t.shape[1], 1)


def _mask(run: Run, keys: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Return which keys [length, keys] each token of a run sees; None where that is all up to itself."""
    if keys == run.length and (window is None or keys <= window):
        return None
    distance = torch.arange(keys - run.length, keys, device=device)[:, None] - torch.arange(keys, device=device)
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


def _softmax(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    if softcap is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
    if mask is None:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    scores = torch.matmul(q, k.transpose(2, 3)).float() * scale
    scores = (torch.tanh(scores / softcap) * softcap).masked_fill_(~mask, -torch.inf)
    return torch.matmul(torch.softmax(scores, -1).to(v.dtype), v)
