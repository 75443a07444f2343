"""``openvino``: the exported graph in OpenVINO, with the precision set rather than left to the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openvino

from rmscore.backends.onnx_export import exported
from rmscore.errors import BackendError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rmscore.backends import Settings
    from rmscore.checkpoint import RewardModel
    from rmscore.types import Batch

HINTS = {"fp32": "f32", "bf16": "bf16"}
"""OpenVINO picks bf16 by itself where the processor has it, which moves scores by up to 1e-2."""


class OpenVino:
    """One compiled model; ``record`` holds the precision read back from it."""

    padded = True

    def __init__(self, model: RewardModel, settings: Settings) -> None:
        wanted = HINTS[settings.precision]
        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": wanted,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": settings.threads,
        }
        try:
            self._model = openvino.Core().compile_model(str(exported(model)), "CPU", properties)
        except RuntimeError as error:
            raise BackendError(
                f"{model.folder}: OpenVINO cannot load the graph ({' '.join(str(error).split())[:240]})"
            ) from error
        read_back = self._model.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if read_back != wanted:
            raise BackendError(f"OpenVINO runs in {read_back} where {wanted} was asked for; choose another precision")
        self._names = {name for port in self._model.inputs for name in port.get_names()}
        self.record = {
            "effective_precision": settings.precision,
            "attention": "eager",
            "threads": self._model.get_property("INFERENCE_NUM_THREADS"),
        }

    def score(self, batch: Batch) -> NDArray[np.float32]:
        """Return float32 [rows, objectives]."""
        arrays = batch.arrays()
        try:
            scores: NDArray[np.float32] = self._model({name: arrays[name] for name in self._names})[0].copy()
        except RuntimeError as error:
            raise BackendError(f"OpenVINO failed on {len(batch)} rows: {' '.join(str(error).split())[:240]}") from error
        return scores

    def close(self) -> None:
        """Free the compiled model."""
        del self._model


def load(model: RewardModel, settings: Settings) -> OpenVino:
    """Export where needed and compile."""
    return OpenVino(model, settings)
