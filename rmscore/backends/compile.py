"""``compile``: the eager module under ``torch.compile`` with dynamic shapes, so that new lengths do not recompile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rmscore.backends.eager import Eager

if TYPE_CHECKING:
    from rmscore.backends import Settings
    from rmscore.checkpoint import RewardModel


def load(model: RewardModel, settings: Settings) -> Eager:
    """Load a checkpoint; compilation happens in the first call and again in the first batch of more than one row."""
    return Eager(model, settings, wrap=lambda module: torch.compile(module, dynamic=True))
