"""The exported graph with dynamic int8 products: ONNX Runtime's own quantisation, weights per channel."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import TYPE_CHECKING

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from rmscore.backends.onnx_export import GRAPH, exported
from rmscore.cache import cached

if TYPE_CHECKING:
    from pathlib import Path

    from rmscore.checkpoint import RewardModel

INTEGER_PRODUCTS = frozenset({"MatMulInteger", "DynamicQuantizeMatMul"})


def quantized(model: RewardModel) -> Path:
    """Return the path of the checkpoint's int8 graph, quantising the fp32 one on first use.

    Activations get one scale a tensor, measured at run time: a score depends on what else is in its batch.
    """
    source = exported(model)

    def make(folder: Path) -> None:
        logging.disable(logging.WARNING)  # it advises a step that the export has done already
        try:
            quantize_dynamic(
                source, folder / GRAPH, per_channel=True, weight_type=QuantType.QInt8, use_external_data_format=True
            )
        finally:
            logging.disable(logging.NOTSET)

    return cached("onnx-int8", {"source": source.parent.name, "onnxruntime": version("onnxruntime")}, make) / GRAPH


def multiplies_integers(path: Path) -> bool:
    """Return whether a graph has integer products."""
    graph = onnx.load(str(path), load_external_data=False).graph
    return any(node.op_type in INTEGER_PRODUCTS for node in graph.node)
