"""The packed engine over every architecture it has: PyTorch's scores, whatever the batch, order and length."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmscore.backends import Settings, load_backend
from rmscore.backends.architectures import PACKED
from rmscore.checkpoint import open_checkpoint
from rmscore.errors import BackendError, CheckpointError
from rmscore.tolerance import MAX_DELTA
from rmscore.types import Batch, Encoded

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LIMIT = MAX_DELTA["cpu", "fp32"]
LENGTHS = (1, 2, 5, 17, 40, 40, 40, 63, 64, 65, 130)
VOCABULARY = 200
SIZES = {"vocab_size": VOCABULARY, "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "num_labels": 1}
ENCODER = {**SIZES, "intermediate_size": 128, "max_position_embeddings": 256}
DECODER = {**ENCODER, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0}
DEBERTA = {
    **ENCODER, "relative_attention": True, "position_buckets": 32, "max_relative_positions": -1, "pooler_hidden_size": 64,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
    "type_vocab_size": 0, "pooler_hidden_act": "gelu", "pooler_dropout": 0,
}  # fmt: skip
MODERN = {**ENCODER, "local_attention": 16, "global_attn_every_n_layers": 2, "pad_token_id": 0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip

VARIANTS = {
    "bert relu": ("Bert", {**ENCODER, "hidden_act": "relu"}),
    "electra wide": ("Electra", {**ENCODER, "embedding_size": 64}),
    "xlm-roberta": ("XLMRoberta", {**ENCODER, "pad_token_id": 1}),
    "distilbert": (
        "DistilBert", {"vocab_size": VOCABULARY, "dim": 64, "n_heads": 4, "n_layers": 3, "hidden_dim": 128, "num_labels": 1},
    ),
    "modernbert": ("ModernBert", MODERN),
    "modernbert mean biased": (
        "ModernBert",
        {**MODERN, "classifier_pooling": "mean", "norm_bias": True, "attention_bias": True, "mlp_bias": True,
         "classifier_bias": True},
    ),
    "deberta no buckets": ("DebertaV2", {**DEBERTA, "position_buckets": -1}),
    "deberta c2p": ("DebertaV2", {**DEBERTA, "pos_att_type": ["c2p"]}),
    "deberta p2c": ("DebertaV2", {**DEBERTA, "pos_att_type": ["p2c"]}),
    "deberta content": ("DebertaV2", {**DEBERTA, "pos_att_type": []}),
    "deberta absolute": ("DebertaV2", {**DEBERTA, "relative_attention": False, "position_biased_input": True}),
    "deberta own keys": ("DebertaV2", {**DEBERTA, "share_att_key": False, "norm_rel_ebd": "none"}),
    "deberta biased typed": ("DebertaV2", {**DEBERTA, "position_biased_input": True, "type_vocab_size": 2}),
    "deberta narrow": ("DebertaV2", {**DEBERTA, "embedding_size": 32, "hidden_act": "gelu_new"}),
    "llama llama3": ("Llama", {**DECODER, "rope_parameters": LLAMA3}),
    "llama linear biased": (
        "Llama",
        {**DECODER, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, "attention_bias": True,
         "mlp_bias": True},
    ),
    "llama yarn": ("Llama", {**DECODER, "rope_parameters": YARN}),
    "mistral window": ("Mistral", {**DECODER, "sliding_window": 16}),
    "mistral": ("Mistral", {**DECODER, "sliding_window": None}),
    "qwen2 window": ("Qwen2", {**DECODER, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3 objectives": ("Qwen3", {**DECODER, "head_dim": 32, "num_labels": 3}),
    "gemma2 all full": ("Gemma2", {**DECODER, "head_dim": 16, "layer_types": ["full_attention"] * 3}),
}  # fmt: skip


def build(folder, family, config):
    """Save a seeded random checkpoint whose weights are large enough to tell a missing feature."""
    torch.manual_seed(0)
    made = getattr(transformers, f"{family}Config")(**config)
    model = transformers.AutoModelForSequenceClassification.from_config(made)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3) if parameter.ndim > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return open_checkpoint(folder)


def random_rows(lengths=LENGTHS, types=1, seed=0):
    random = np.random.default_rng(seed)
    return [Encoded(random.integers(2, VOCABULARY, n), np.sort(random.integers(0, types, n))) for n in lengths]


def scores(name, model, rows, precision="fp32"):
    engine = load_backend(name, model, Settings(threads=1, precision=precision))
    out = engine.score(Batch(rows, model.pad_id))
    engine.close()
    return out.reshape(len(rows), -1)


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("variant"), *VARIANTS[request.param])


def test_variants_give_the_references_scores(variant):
    """Every option of every architecture: rows of many lengths in one batch are within the table's tolerance."""
    types = variant.config.get("type_vocab_size") or 1
    rows = random_rows((*LENGTHS, min(variant.max_tokens, 512)), types)
    want = scores("reference", variant, rows)
    assert want.std() > 0.01
    assert np.abs(scores("packed", variant, rows) - want).max() <= LIMIT


def test_every_known_architecture_is_tried(tiny):
    """Each name in the list of architectures is built here or is a shape of the contract suite."""
    built = {f"{family}ForSequenceClassification" for family, _ in VARIANTS.values()}
    shapes = ("deberta-v3-xsmall", "bert-base", "electra-small", "roberta-base", "llama", "qwen2", "qwen3", "gemma2")
    assert built | {open_checkpoint(tiny(shape)).architecture for shape in shapes} == set(PACKED)


def test_padding_ids_inside_a_roberta_row(tiny):
    """A row may hold the padding id as content: its position does not count, as in transformers."""
    model = open_checkpoint(tiny("roberta-base"))
    rows = random_rows((9, 30, 12))
    for row in rows:
        row.ids[3] = row.ids[5] = model.pad_id
    assert np.abs(scores("packed", model, rows) - scores("reference", model, rows)).max() <= LIMIT


@pytest.mark.parametrize(("buckets", "longest"), [(32, 512), (256, 512), (16, 64), (256, 1024)])
def test_buckets_are_transformers(buckets, longest):
    """The bucket of every distance is the one that transformers computes."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    from rmscore.backends.packed.disentangled import bucket

    distance = torch.arange(-longest + 1, longest)
    assert torch.equal(bucket(distance, buckets, longest), make_log_bucket_position(distance, buckets, longest).long())


def test_every_length(tmp_path):
    """All lengths from 1 to 600, past the edge of the buckets, where buckets are those of the published models."""
    config = {**DEBERTA, "position_buckets": 256, "max_position_embeddings": 1024, "num_hidden_layers": 1}
    model = build(
        tmp_path, "DebertaV2", {**config, "hidden_size": 32, "num_attention_heads": 2, "pooler_hidden_size": 32}
    )
    rows = random_rows(range(1, 601))
    want = scores("reference", model, rows)
    engine = load_backend("packed", model, Settings(threads=1))
    got = np.concatenate([engine.score(Batch(rows[start : start + 40])) for start in range(0, 600, 40)])
    assert np.abs(got - want).max() <= LIMIT


@pytest.fixture(scope="module", params=["deberta-v3-xsmall", "bert-base", "qwen2", "gemma2"])
def engine(request, tiny):
    model = open_checkpoint(tiny(request.param))
    rows = random_rows((1, 3, 3, 3, 20, 20, 41, 70, 100))
    # what several rows begin with: some whole, some nested, two the same
    rows += [Encoded(np.concatenate([rows[7].ids, row.ids]), np.zeros(70 + len(row.ids), np.int64)) for row in rows[:6]]
    rows += [rows[7], rows[-1], Encoded(rows[8].ids[:50], np.zeros(50, np.int64))]
    held = load_backend("packed", model, Settings(threads=1))
    yield held, rows, scores("reference", model, rows)
    held.close()


@settings(max_examples=25)
@given(st.data())
def test_any_batches_in_any_order(engine, data):
    """Any partition into batches and any order, shared beginnings or none: the scores move by less than 1e-6."""
    held, rows, want = engine
    order = data.draw(st.permutations(range(len(rows))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows) - 1), max_size=4)))
    got = np.zeros_like(want)
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part = order[start:stop]
        got[part] = held.score(Batch([rows[i] for i in part])).reshape(len(part), -1)
    alone = np.stack([held.score(Batch([row])).reshape(-1) for row in rows])
    assert np.abs(got - alone).max() <= 1e-6
    assert np.abs(got - want).max() <= LIMIT


def test_shared_tokens_are_counted(engine):
    """A causal model reports the tokens it did not compute again; an encoder has none."""
    held, rows, _ = engine
    before = held.record["shared_tokens"]
    held.score(Batch(rows))
    saved = held.record["shared_tokens"] - before
    assert saved == 0 if not held.shares_prefixes else saved > 6 * 70


def test_half_precision_weights_are_read_as_they_are(tiny, tmp_path):
    """A checkpoint saved in bf16 gives the scores of its weights, not of other ones."""
    folder = shutil.copytree(tiny("bert-base"), tmp_path / "bf16")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    model = open_checkpoint(folder)
    rows = random_rows()
    assert np.abs(scores("packed", model, rows) - scores("reference", model, rows)).max() <= LIMIT


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(tiny, tmp_path, value):
    """NaN or infinity anywhere in the weights is refused at load, with the tensor's name."""
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny("qwen2"), tmp_path / "bad")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model.layers.1.mlp.up_proj.weight holds NaN or infinity"):
        load_backend("packed", open_checkpoint(folder), Settings())


def test_a_missing_weight_is_named(tiny, tmp_path):
    """So is a weight that the file lacks."""
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny("qwen2"), tmp_path / "bad")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"weight model.norm.weight is missing"):
        load_backend("packed", open_checkpoint(folder), Settings())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"architectures": ["OPTForSequenceClassification"]},
            "packed has no OPTForSequenceClassification .*Gemma2.*eager",
        ),
        ({"conv_kernel_size": 3}, "convolution layer .*eager"),
        ({"hidden_act": "mish"}, "no activation 'mish' .*eager"),
    ],
)
def test_what_it_does_not_know_is_refused(tiny, tmp_path, change, words):
    """An unknown architecture or part is one line with the hint to use eager, never a wrong score."""
    folder = shutil.copytree(tiny("deberta-v3-xsmall"), tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
    with pytest.raises(BackendError, match=words):
        load_backend("packed", open_checkpoint(folder), Settings())
