"""``onnxruntime``: the exported graph in ONNX Runtime with all graph optimisations, padded batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from rmscore.backends.onnx_export import exported
from rmscore.backends.onnx_int8 import multiplies_integers, quantized
from rmscore.errors import BackendError, SettingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rmscore.backends import Settings
    from rmscore.checkpoint import RewardModel
    from rmscore.types import Batch

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
PRECISION = {"tensor(float)": "fp32", "tensor(float16)": "fp16"}


class OnnxRuntime:
    """One session; inputs are matched by name, and a graph that needs an unknown one is refused at load."""

    padded = True

    def __init__(self, model: RewardModel, settings: Settings) -> None:
        provider = PROVIDERS[settings.device]
        if provider not in onnxruntime.get_available_providers():
            raise SettingError(
                f"device {settings.device!r}: this ONNX Runtime has no {provider}; pip install onnxruntime-gpu in its place"
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        extra = {"use_tf32": int(settings.precision == "tf32")} if settings.device == "cuda" else {}
        path = quantized(model) if settings.precision == "int8" else exported(model)
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=[(provider, extra)])
        except (ort_errors.Fail, ort_errors.InvalidGraph, ort_errors.InvalidProtobuf, RuntimeError) as error:
            raise BackendError(
                f"{path}: ONNX Runtime cannot load the graph ({_line(error)}); delete its folder"
            ) from error
        if self._session.get_providers()[0] != provider:
            raise SettingError(
                f"device {settings.device!r}: ONNX Runtime fell back to {self._session.get_providers()[0]}"
            )
        self._names = {graph_input.name for graph_input in self._session.get_inputs()}
        self.record: dict[str, Any] = {
            "effective_precision": "int8" if multiplies_integers(path) else self._precision(settings),
            "attention": "eager",
            "graph_optimization": "all",
            "provider": provider,
            "threads": settings.threads,
        }

    def _precision(self, settings: Settings) -> str:
        name = PRECISION.get(self._session.get_outputs()[0].type, "unknown")
        if name == "fp32" and settings.device == "cuda":
            used = self._session.get_provider_options().get("CUDAExecutionProvider", {}).get("use_tf32")
            return "tf32" if used == "1" else "fp32"
        return name

    def score(self, batch: Batch) -> NDArray[np.float32]:
        """Return float32 [rows, objectives]."""
        arrays = batch.arrays()
        try:
            scores: NDArray[np.float32] = self._session.run(None, {name: arrays[name] for name in self._names})[0]
        except (ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.RuntimeException, RuntimeError) as error:
            raise BackendError(
                f"ONNX Runtime failed on {len(batch)} rows of up to {batch.longest} tokens: {_line(error)}"
            ) from error
        return scores

    def close(self) -> None:
        """Free the session."""
        del self._session


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:240]


def load(model: RewardModel, settings: Settings) -> OnnxRuntime:
    """Export where needed and open a session."""
    return OnnxRuntime(model, settings)
