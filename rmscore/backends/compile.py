"""``compile``: the eager module under ``torch.compile`` with dynamic shapes, so that new lengths do not recompile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rmscore.backends.eager import Eager

if TYPE_CHECKING:
    from rmscore.backends import Settings
    from rmscore.checkpoint import RewardModel

COMPILATIONS = 4
"""What one model may need: one row or more of them, one column or more."""


def load(model: RewardModel, settings: Settings) -> Eager:
    """Load a checkpoint; compilation happens in the first call and again in the first batch of more than one row."""
    # PyTorch counts the compilations of all models of a process together, and past its limit of 8 runs them eagerly
    # with no more than a line in its log.
    torch._dynamo.config.recompile_limit += COMPILATIONS  # noqa: SLF001
    return Eager(model, settings, wrap=lambda module: torch.compile(module, dynamic=True))
