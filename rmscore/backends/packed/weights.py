"""Weights read one by one from safetensors, straight from the file into what the caller packs them into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from rmscore.errors import CheckpointError
from rmscore.safetensors_header import tensors

if TYPE_CHECKING:
    from pathlib import Path

    from rmscore.checkpoint import RewardModel

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}

OLD_NAMES = (("weight", "gamma"), ("bias", "beta"))
"""What layer norms were called in checkpoints converted from TensorFlow."""


class Weights:
    """The tensors of a checkpoint by name; nothing is kept once it has been given out."""

    def __init__(self, model: RewardModel) -> None:
        self._folder = model.folder
        self._where: dict[str, tuple[Path, str, list[int], int, int]] = {}
        for path in model.weights:
            with path.open("rb") as file:
                start = 8 + int.from_bytes(file.read(8), "little")
            for name, entry in tensors(path).items():
                begin, end = entry["data_offsets"]
                self._where[name] = (path, entry["dtype"], entry["shape"], start + begin, end - begin)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor as fp32 in memory of its own.

        Raises CheckpointError when it is missing, of a type that holds no floats, or holds NaN or infinity.
        """
        for new, old in OLD_NAMES:
            if name not in self._where and name.endswith(f"LayerNorm.{new}"):
                name = name.removesuffix(new) + old
        if name not in self._where:
            raise CheckpointError(f"{self._folder}: weight {name} is missing; use --backend eager to see what it holds")
        path, dtype, shape, offset, size = self._where[name]
        if dtype not in DTYPES:
            raise CheckpointError(f"{path}: {name} holds {dtype}, which packed does not read; use --backend eager")
        raw = np.fromfile(path, np.uint8, count=size, offset=offset)
        tensor = torch.from_numpy(raw).view(DTYPES[dtype]).view(shape).float()
        # a sum is finite or not as its terms are, unless it overflows: only then are they looked at one by one
        if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {name} holds NaN or infinity; no score can come from it")
        return tensor

    def read_if_any(self, name: str) -> torch.Tensor | None:
        """Return a tensor, or None where the checkpoint has none of that name."""
        return self.read(name) if name in self._where else None
