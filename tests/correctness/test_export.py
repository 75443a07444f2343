"""ONNX graphs: made once per content, never stale, right at every size, and never kept when wrong."""

import json
import shutil

import numpy as np
import pytest

from rmscore.cache import cache_root, cached
from rmscore.checkpoint import open_checkpoint
from rmscore.errors import BackendError

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
onnx_export = pytest.importorskip("rmscore.backends.onnx_export")


def test_an_export_is_made_once_and_anew_when_a_weight_changes(tiny, tmp_path):
    """The same content gives the same graph file; one changed bit gives another."""
    folder = shutil.copytree(tiny("electra-small"), tmp_path / "m")
    first = onnx_export.exported(open_checkpoint(folder))
    made = first.stat().st_mtime_ns
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    assert onnx_export.exported(open_checkpoint(copy)) == first
    assert first.stat().st_mtime_ns == made
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 64
    weights.write_bytes(data)
    assert onnx_export.exported(open_checkpoint(folder)) != first


def test_a_wrong_graph_is_refused_and_not_kept(tiny, monkeypatch):
    """A graph whose scores are not PyTorch's never reaches the cache."""
    model = open_checkpoint(tiny("bert-base"))
    monkeypatch.setattr(onnx_export, "EXPORTER", "spoiled")
    whole = onnx_export._refuse_fixed_axes

    def spoil(path):
        whole(path)
        import onnx

        graph = onnx.load(str(path))
        weight = max(graph.graph.initializer, key=lambda each: np.prod(each.dims))
        values = onnx.numpy_helper.to_array(weight) * 1.01
        weight.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float32), weight.name))
        onnx.save(graph, str(path))

    monkeypatch.setattr(onnx_export, "_refuse_fixed_axes", spoil)
    before = set((cache_root() / "onnx").glob("*")) if (cache_root() / "onnx").exists() else set()
    with pytest.raises(BackendError, match="differs from PyTorch by"):
        onnx_export.exported(model)
    assert set((cache_root() / "onnx").glob("*")) == before


def test_a_fixed_axis_is_refused(tmp_path):
    """A graph that holds for one batch size only is refused."""
    import onnx

    info = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, [1, "n"])
    graph = onnx.helper.make_graph([], "g", [info], [])
    onnx.save(onnx.helper.make_model(graph), str(tmp_path / "g.onnx"))
    with pytest.raises(BackendError, match=r"fixed 'input_ids' to \[1\]"):
        onnx_export._refuse_fixed_axes(tmp_path / "g.onnx")


def test_the_cache_keeps_whole_entries_only():
    """What fails while it is made leaves nothing behind, and the next try starts afresh."""

    def fail(folder):
        (folder / "half").write_text("x")
        raise BackendError("broke")

    with pytest.raises(BackendError):
        cached("thing", {"a": 1}, fail)
    folder = cached("thing", {"a": 1}, lambda draft: (draft / "whole").write_text("y"))
    assert sorted(path.name for path in folder.iterdir()) == ["key.json", "whole"]
    assert json.loads((folder / "key.json").read_text()) == {"a": 1}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
