"""Eight-bit products: what they lose is bounded, and a score never depends on its neighbours."""

import numpy as np
import pytest

from rmscore.backends import Settings, load_backend
from rmscore.checkpoint import open_checkpoint
from rmscore.data import sample_path
from rmscore.encode import encode, load_encoder
from rmscore.errors import BackendError
from rmscore.rows import read_rows
from rmscore.tolerance import agreement
from rmscore.types import Batch

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SHAPES = ("deberta-v3-large", "bert-base", "llama", "qwen2", "gemma2")

needs_vnni = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="this CPU has no VNNI instructions")


@pytest.fixture(scope="module", params=SHAPES)
def model(request, tiny):
    return open_checkpoint(tiny(request.param))


def scored(name, model, precision):
    encoded = encode(load_encoder(model), list(read_rows(sample_path()))[:40])
    engine = load_backend(name, model, Settings(threads=1, precision=precision))
    together = np.asarray(engine.score(Batch(encoded, model.pad_id))).reshape(-1)
    alone = np.concatenate([engine.score(Batch([row], model.pad_id)).reshape(-1) for row in encoded])
    engine.close()
    return together, alone, engine.record


@needs_vnni
def test_packed_int8_keeps_the_order_of_rows(model):
    """Its scores pass the table of tolerances by ranking, and the record says what is in eight bits."""
    reference, _, _ = scored("reference", model, "fp32")
    together, _, record = scored("packed", model, "int8")
    assert agreement(together, reference).passes("cpu", "int8")
    assert np.abs(together - reference).max() > 1e-4
    assert record["effective_precision"] == "int8"
    assert "queries, keys, values" in record["int8_kept"]


@needs_vnni
def test_packed_int8_does_not_depend_on_the_batch(model):
    """A row has the score it has alone, but for the order of sums where a beginning is shared."""
    together, alone, _ = scored("packed", model, "int8")
    if model.causal:
        assert np.abs(together - alone).max() <= 1e-5
    else:
        assert np.array_equal(together, alone)


@needs_vnni
@pytest.mark.parametrize("act", [None, "gelu"])
def test_the_error_of_a_product_is_that_of_its_rounding(act):
    """Half a step of each activation and of each weight, and no more; tokens of one value and of zeros too."""
    from rmscore.backends.packed.int8 import Int8Linear
    from rmscore.backends.packed.linear import Linear

    torch.manual_seed(0)
    weight, bias = torch.randn(48, 64), torch.randn(48)
    x = torch.randn(33, 64) * torch.logspace(-3, 3, 33)[:, None] + torch.linspace(-5, 5, 33)[:, None]
    x[0], x[1], x[2] = 0.0, 7.25, torch.cat([torch.full((63,), -1e-8), torch.tensor([1e4])])
    step = ((x.amax(1) - x.amin(1)) / 255)[:, None]
    scale = (weight.abs().amax(1) / 127)[None]
    bound = step / 2 * weight.abs().sum(1)[None] + scale / 2 * x.abs().sum(1)[:, None] + step * scale * 64 / 4
    got, want = Int8Linear(weight, bias, act)(x), Linear(weight, bias, act)(x)
    largest_slope = 1.13 if act else 1  # of GELU
    assert ((got - want).abs() <= largest_slope * bound + 1e-4 * (1 + want.abs())).all()


@needs_vnni
def test_sums_and_products_come_after_the_activation():
    """``add`` and ``times`` mean the same in eight bits as in fp32."""
    from rmscore.backends.packed.int8 import Int8Linear

    torch.manual_seed(0)
    product = Int8Linear(torch.randn(16, 16), None, "silu")
    x, other = torch.randn(5, 16), torch.randn(5, 16)
    assert torch.equal(product(x, add=other), product(x) + other)
    assert torch.equal(product(x, times=other), product(x) * other)


def test_a_cpu_without_the_instructions_is_told(model, monkeypatch):
    """Int8 on a CPU that cannot is refused with what it can do."""
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(
        BackendError, match="needs a CPU with VNNI instructions, and this one has none; use fp32 or bf16"
    ):
        load_backend("packed", model, Settings(precision="int8"))


def test_onnxruntime_int8_is_read_back_from_the_graph(tiny):
    """The record says int8 because the graph multiplies integers."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = open_checkpoint(tiny("bert-base"))
    reference, _, _ = scored("reference", model, "fp32")
    _, alone, record = scored("onnxruntime", model, "int8")
    assert record["effective_precision"] == "int8"
    assert 1e-4 < np.abs(alone - reference).max() < 1
