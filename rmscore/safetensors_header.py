"""Read the header of a safetensors file: names, types and shapes, and whether the file is whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rmscore.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

HEADER_LIMIT = 100 * 2**20
"""The format's own bound on the header, in bytes (safetensors, ``MAX_HEADER_SIZE``)."""


def tensors(path: Path) -> dict[str, dict[str, Any]]:
    """Return ``{name: {"dtype", "shape", "data_offsets"}}`` of a safetensors file without reading a weight.

    Raises CheckpointError when the file is cut short or no safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= HEADER_LIMIT else b""
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); check the checkpoint folder") from error
    try:
        table: dict[str, Any] = json.loads(header)
        table.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in table.values()), default=0)
    except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file; copy or download it again") from error
    if size != 8 + length + end:
        raise CheckpointError(
            f"{path}: holds {size} bytes where its header announces {8 + length + end}; copy or download it again"
        )
    return table
