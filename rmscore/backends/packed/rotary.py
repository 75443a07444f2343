"""Rotary positions (Su et al. 2021, arXiv 2104.09864), with the frequency scalings that transformers knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rmscore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONSTANT = ("default", "linear", "llama3", "yarn")
"""Kinds whose frequencies do not depend on the length of the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """``frequencies`` float32 [width / 2] in radians a token; ``scaling`` multiplies the rotated values."""

    frequencies: torch.Tensor
    scaling: float

    @classmethod
    def make(
        cls, config: Any, parameters: Mapping[str, Any], width: int, device: str, layer_type: str | None = None
    ) -> Rotary:
        """Read ``rope_parameters`` of a transformers configuration; BackendError for kinds that depend on the length."""
        kind = parameters.get("rope_type", "default")
        if kind not in CONSTANT:
            raise BackendError(
                f"packed has no rotary scaling {kind!r} (it has: {', '.join(CONSTANT)}); use --backend eager"
            )
        if kind == "default":
            steps = torch.arange(0, width, 2, dtype=torch.float) / width
            return cls((1.0 / parameters["rope_theta"] ** steps).to(device), 1.0)
        extra = {"layer_type": layer_type} if layer_type else {}
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device(device), **extra)
        return cls(frequencies, float(scaling))

    def of(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, float32 [tokens, 1, width], of int64 positions [tokens]."""
        angles = positions[:, None].float() * self.frequencies
        both = torch.cat((angles, angles), -1)[:, None]
        return both.cos() * self.scaling, both.sin() * self.scaling


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return [tokens, heads, width] rotated; the halves of a head's width form the pairs."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos + turned * sin).to(x.dtype)
