"""One product of the network, in the form that the machine multiplies fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from rmscore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

ACTIVATIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str, str]] = {
    "gelu": (functional.gelu, "gelu", "none"),
    "gelu_new": (lambda x: functional.gelu(x, approximate="tanh"), "gelu", "tanh"),
    "gelu_pytorch_tanh": (lambda x: functional.gelu(x, approximate="tanh"), "gelu", "tanh"),
    "relu": (functional.relu, "relu", ""),
    "silu": (functional.silu, "swish", ""),
    "swish": (functional.silu, "swish", ""),
    "tanh": (torch.tanh, "tanh", ""),
}
"""transformers' name → the function, and the name and algorithm oneDNN has for it."""


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the activation function that transformers calls ``name``; BackendError for one that is not known here."""
    if name not in ACTIVATIONS:
        raise BackendError(f"packed has no activation {name!r} (it has: {', '.join(ACTIVATIONS)}); use --backend eager")
    return ACTIVATIONS[name][0]


class Linear:
    """``act(x W^T + b)``, then ``+ add`` or ``* times``, over [tokens, in] → [tokens, out].

    On a CPU the weight is kept in oneDNN's blocked layout, and activation, sum and product happen while the result is
    still in registers.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, act: str | None = None) -> None:
        self._act = activation(act) if act else None
        _, self._name, self._algorithm = ACTIVATIONS[act] if act else (None, "none", "")
        self._fused = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        self._bias = bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._fused else weight  # noqa: SLF001

    def __call__(
        self, x: torch.Tensor, *, add: torch.Tensor | None = None, times: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return [tokens, out]."""
        other = add if add is not None else times
        if not self._fused:
            y = functional.linear(x, self._weight, self._bias)
            y = self._act(y) if self._act else y
            return y if other is None else (y.add_(other) if add is not None else y.mul_(other))
        pointwise = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        if other is not None and self._act is None:
            kind = "add" if add is not None else "mul"
            fused: torch.Tensor = pointwise.binary(x, other, self._weight, self._bias, kind)
            return fused
        y = pointwise(x, self._weight, self._bias, self._name, [], self._algorithm)
        return y if other is None else (y.add_(other) if add is not None else y.mul_(other))
