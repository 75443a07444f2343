"""One product in eight bits: weights per output channel, activations per token.

A token's scale and offset come from that token alone, at run time, so that a score never depends on what else is in its
batch. The products of whole numbers are exact; what is lost is the rounding of weights and activations.
"""

from __future__ import annotations

import torch

from rmscore.backends.packed.linear import activation
from rmscore.errors import BackendError

LEVELS = 255
SMALLEST, TINY = 1e-6, 1e-30


class Int8Linear:
    """``act(x W^T + b)``, then ``+ add`` or ``* times``, over fp32 [tokens, in] → [tokens, out].

    With x = step · u + low (u in 0 … 255) and W = scale · s (s in -127 … 127), x W^T is step · scale · (u s^T) and a
    term of rank one, low times the sums of the weights.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, act: str | None = None) -> None:
        if not torch.cpu._is_vnni_supported():  # noqa: SLF001
            raise BackendError(
                "packed int8 needs a CPU with VNNI instructions, and this one has none; use fp32 or bf16"
            )
        self._act = activation(act) if act else None
        self._scale = weight.abs().amax(1).clamp_(min=TINY) / 127
        whole = (weight / self._scale[:, None]).round_().to(torch.int8)
        self._sums = whole.sum(1, dtype=torch.float32) * self._scale
        self._weight = torch.ops.onednn.qlinear_prepack(whole, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = torch.zeros(len(weight)) if bias is None else bias

    def __call__(
        self, x: torch.Tensor, *, add: torch.Tensor | None = None, times: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return [tokens, out]."""
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        # not below what fp32 can tell apart at this distance from zero: a token may have one value everywhere
        least = torch.maximum(high.abs(), low.abs()).mul_(SMALLEST).clamp_(min=TINY)
        step = torch.maximum((high - low).div_(LEVELS), least)
        inverse = step.reciprocal()
        # half a level more, because the conversion cuts off
        levels = torch.addcmul(torch.addcmul(torch.tensor(0.5), low, inverse, value=-1), x, inverse).to(torch.uint8)
        products = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, 0, self._weight, self._scale, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        y = torch.addcmul(self._bias, products, step).addr_(low[:, 0], self._sums)
        y = self._act(y) if self._act else y
        if add is not None:
            y.add_(add)
        return y if times is None else y.mul_(times)
