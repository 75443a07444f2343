"""The shapes of model that ``make_model`` can build: public configurations as plain data, no engine needed.

Encoders carry the configuration values their publishers ship (microsoft/deberta-v3-*, google/electra-*-discriminator,
bert-base-uncased, roberta-base). Decoders keep their family's layout (grouped queries, query/key norms, soft-caps,
sliding window) at about 100 M parameters, because the smallest public ones are too large to build for a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rmscore.errors import SettingError, nearest


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape: transformers' ``model_type``, the kind of tokenizer it needs, its configuration.

    ``tiny`` holds what a tiny build changes beyond the values every tiny build of the family shares.
    """

    model_type: str
    tokenizer: str
    config: Mapping[str, Any]
    tiny: Mapping[str, Any] = field(default_factory=dict)


def _width(layers: int, hidden: int, heads: int, intermediate: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }


def _deberta(layers: int, hidden: int, heads: int, intermediate: int) -> Shape:
    config = _width(layers, hidden, heads, intermediate) | {
        "vocab_size": 128100,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": True,
        "position_buckets": 256,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "pooler_dropout": 0,
        "pooler_hidden_act": "gelu",
        "pooler_hidden_size": hidden,
    }
    # 32 buckets: distances above 16 share logarithmic buckets, so that a text of one sentence crosses the edge.
    return Shape("deberta-v2", "deberta", config, {"position_buckets": 32, "pooler_hidden_size": 64})


def _electra(layers: int, hidden: int, heads: int, intermediate: int, embedding: int) -> Shape:
    config = _width(layers, hidden, heads, intermediate) | {
        "vocab_size": 30522,
        "embedding_size": embedding,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }
    # A tiny large keeps embedding = hidden and a tiny small embedding < hidden: only the latter has a projection.
    return Shape("electra", "wordpiece", config, {"embedding_size": 64 if embedding == hidden else 32})


_BERT: Final = _width(12, 768, 12, 3072) | {
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}

# 514 position rows carry 512 tokens: RoBERTa counts positions from pad id + 1.
_ROBERTA: Final = _width(12, 768, 12, 3072) | {
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}

_LLAMA: Final = _width(12, 768, 12, 3072) | {
    "vocab_size": 8192,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}

# 0.208 GFLOP a token in linear layers.
_QWEN2: Final = _width(12, 768, 12, 3072) | {
    "vocab_size": 8192,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "use_sliding_window": False,
}

# As published, heads x head_dim is not the hidden size.
_QWEN3: Final = _width(12, 768, 8, 2304) | {
    "vocab_size": 8192,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "use_sliding_window": False,
}

_GEMMA2: Final = _width(12, 768, 4, 2304) | {
    "vocab_size": 8192,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

_TINY: Final = _width(2, 64, 4, 128)
# Two key/value heads for four query heads keep the grouping; 2048 positions are enough for any test text.
_TINY_DECODER: Final = {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048}
# At the public soft-cap and window, a backend without either gives nearly the same tiny scores: make both bite.
_TINY_GEMMA2: Final = _TINY_DECODER | {"query_pre_attn_scalar": 16, "sliding_window": 32, "attn_logit_softcapping": 1.0}

_TABLE: Final[Mapping[str, Shape]] = {
    "deberta-v3-large": _deberta(24, 1024, 16, 4096),
    "deberta-v3-base": _deberta(12, 768, 12, 3072),
    "deberta-v3-xsmall": _deberta(12, 384, 6, 1536),
    "electra-large": _electra(24, 1024, 16, 4096, embedding=1024),
    "electra-small": _electra(12, 256, 4, 1024, embedding=128),
    "bert-base": Shape("bert", "wordpiece", _BERT),
    "roberta-base": Shape("roberta", "roberta", _ROBERTA),
    "llama": Shape("llama", "llama", _LLAMA, _TINY_DECODER),
    "qwen2": Shape("qwen2", "qwen2", _QWEN2, {k: v for k, v in _TINY_DECODER.items() if k != "head_dim"}),
    "qwen3": Shape("qwen3", "qwen3", _QWEN3, _TINY_DECODER),
    "gemma2": Shape("gemma2", "gemma2", _GEMMA2, _TINY_GEMMA2),
}

SHAPES: Final[tuple[str, ...]] = tuple(_TABLE)


def find_shape(name: str) -> Shape:
    """Return the shape called ``name``; raises SettingError with the nearest match."""
    if name not in _TABLE:
        raise SettingError(f"unknown model shape {name!r} {nearest(name, SHAPES)}")
    return _TABLE[name]


def settings(name: str, *, tiny: bool = False, tokens: int | None = None) -> dict[str, Any]:
    """Return the configuration of a shape with one output (``num_labels`` 1), as transformers names its values.

    A tiny build has 2 layers, hidden 64, 4 heads, intermediate 128 and, where ``tokens`` is given, that many embedding
    rows; the position limit stays the family's own (encoders 512 or 514), decoders get 2048.
    """
    shape = find_shape(name)
    config = {**shape.config, "num_labels": 1}
    if tiny:
        config |= {**_TINY, **shape.tiny}
        if tokens is not None:
            config["vocab_size"] = tokens
    return config
