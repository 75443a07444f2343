"""Weights read one by one from safetensors, straight from the mapped file into what the caller packs them into."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

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


MAPPED = 64 * 2**20
"""Bytes read from the files before their pages are given back; they come again from the system's cache if needed."""


class Weights:
    """The tensors of a checkpoint by name, as views of the mapped files: what is kept as it is takes no second copy."""

    def __init__(self, model: RewardModel) -> None:
        self._folder = model.folder
        self._where: dict[str, tuple[Path, str, list[int], int, int]] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        self._mapped = 0
        for path in model.weights:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            start = 8 + int.from_bytes(self._maps[path][:8], "little")
            for name, entry in tensors(path).items():
                begin, end = entry["data_offsets"]
                self._where[name] = (path, entry["dtype"], entry["shape"], start + begin, end - begin)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor as fp32, not to be written to.

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
        kind = DTYPES[dtype]
        tensor = torch.frombuffer(self._maps[path], dtype=kind, count=size // kind.itemsize, offset=offset)
        tensor = tensor.view(shape).float()
        # a sum is finite or not as its terms are, unless it overflows: only then are they looked at one by one
        if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {name} holds NaN or infinity; no score can come from it")
        self._give_back(size)
        return tensor

    def _give_back(self, size: int) -> None:
        self._mapped += size
        if self._mapped > MAPPED and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped = 0
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)

    def read_if_any(self, name: str) -> torch.Tensor | None:
        """Return a tensor, or None where the checkpoint has none of that name."""
        return self.read(name) if name in self._where else None
