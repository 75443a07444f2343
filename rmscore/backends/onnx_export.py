"""Checkpoint → ONNX graph for any batch and length, checked against PyTorch, made once per checkpoint content."""

from __future__ import annotations

import logging
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch

from rmscore.backends import torch_model
from rmscore.cache import cached
from rmscore.checkpoint import content_hash
from rmscore.errors import BackendError
from rmscore.types import Batch, Encoded

if TYPE_CHECKING:
    from rmscore.checkpoint import RewardModel

GRAPH = "model.onnx"
EXPORTER = 1
"""Raise when the export itself changes, so that older graphs are made again."""

EXAMPLE = (9, 6, 5)
CHECKS = ((3,), (1,), (7, 4), (40, 23, 2, 1), (300, 3))
"""Row lengths of the example and of the checks: other sizes than the example's, size 1 included, and past the edges of
relative-position buckets (256 in the public DeBERTa-v3 configurations)."""

TOLERANCE = 1e-4
"""Of the largest score, at least of 1: the checks are made of random ids, one-token rows among them, whose rounding is
worse than that of any text. They find wrong graphs; ``rmscore verify`` holds real rows to the table of tolerances."""


def exported(model: RewardModel) -> Path:
    """Return the path of the checkpoint's fp32 ONNX graph, exporting and checking it on first use.

    Raises BackendError when the export fails, fixes an axis, or does not give PyTorch's scores.
    """
    key = {
        "checkpoint": content_hash(model),
        "exporter": EXPORTER,
        "versions": {name: version(name) for name in ("torch", "transformers", "onnx", "onnxscript")},
    }
    return cached("onnx", key, lambda folder: _export(model, folder / GRAPH)) / GRAPH


def _export(model: RewardModel, path: Path) -> None:
    module = torch_model.load_module(model, attention="eager")
    names = torch_model.input_names(module, causal=model.causal)
    scorer = torch_model.RewardModule(module, causal=model.causal)
    example = _inputs(model, EXAMPLE, names)
    dynamic = {name: dict.fromkeys(range(array.ndim), torch.export.Dim.DYNAMIC) for name, array in example.items()}
    for noisy in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        # the exporter warns of its own internals; what it produces is judged below
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                scorer,
                (),
                str(path),
                kwargs=example,
                dynamo=True,
                dynamic_shapes=dynamic,
                output_names=["scores"],
                external_data=True,
                verbose=False,
            )
    except (RuntimeError, ValueError, TypeError, torch.onnx.OnnxExporterError) as error:
        reason = " ".join(str(error).split())[:240]
        raise BackendError(
            f"{model.folder}: the ONNX export of {model.architecture} failed ({reason}); use eager"
        ) from error
    _refuse_fixed_axes(path)
    _check(model, scorer, names, path)


def _inputs(model: RewardModel, lengths: tuple[int, ...], names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return seeded random rows of these lengths, cut to the model's limit, as tensors by input name."""
    random = np.random.default_rng(len(lengths))
    rows = []
    for length in lengths:
        tokens = min(length, model.max_tokens)
        ids = random.integers(min(10, model.vocabulary - 1), model.vocabulary, tokens)
        rows.append(Encoded(ids, np.zeros(tokens, np.int64)))
    arrays = Batch(rows, pad_id=model.pad_id).arrays()
    return {name: torch.from_numpy(arrays[name]) for name in names}


def _refuse_fixed_axes(path: Path) -> None:
    for graph_input in onnx.load(str(path), load_external_data=False).graph.input:
        fixed = [axis.dim_value for axis in graph_input.type.tensor_type.shape.dim if axis.HasField("dim_value")]
        if fixed:
            raise BackendError(f"the ONNX export fixed {graph_input.name!r} to {fixed}; use eager and report this")


def _check(model: RewardModel, scorer: torch.nn.Module, names: tuple[str, ...], path: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    known = {graph_input.name for graph_input in session.get_inputs()}
    for lengths in CHECKS:
        inputs = _inputs(model, lengths, names)
        with torch.inference_mode():
            want = scorer(**inputs).numpy()
        got: Any = session.run(None, {k: v.numpy() for k, v in inputs.items() if k in known})[0]
        delta = float(np.abs(got - want).max())
        if not delta <= TOLERANCE * max(1.0, float(np.abs(want).max())):
            raise BackendError(
                f"{model.folder}: the ONNX graph differs from PyTorch by {delta:.2g} on rows of {lengths} tokens; use eager"
            )
