"""DeBERTa-v2 and v3: content and relative position attend to each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from rmscore.backends.packed.disentangled import Positions, disentangled, distances
from rmscore.backends.packed.encoder import Attend, Embedding, Encoder, Layer, Norm, config_value, plain_attention
from rmscore.errors import BackendError

if TYPE_CHECKING:
    from rmscore.backends.packed.disentangled import Distances
    from rmscore.backends.packed.encoder import Maker
    from rmscore.backends.packed.layout import Layout


def deberta(config: Any, make: Maker) -> Encoder:
    """Return the network; the head is the ContextPooler over the first token, then the classifier."""
    if config_value(config, "conv_kernel_size", 0) > 0:
        raise BackendError("packed has no convolution layer (conv_kernel_size, DeBERTa-v2-xlarge); use --backend eager")
    table, index = _positions(config, make)
    layers = [_layer(config, make, f"deberta.encoder.layer.{i}", table, index) for i in range(config.num_hidden_layers)]
    pool = make.head("pooler.dense", act=config.pooler_hidden_act)
    out = make.head("classifier")
    return Encoder(_embedding(config, make), layers, lambda x: out(pool(x)))


def _embedding(config: Any, make: Maker) -> Embedding:
    stem = "deberta.embeddings"
    biased = config_value(config, "position_biased_input", default=True)
    projected = f"{stem}.embed_proj.weight" in make.weights
    return Embedding(
        make.tensor(f"{stem}.word_embeddings.weight"),
        make.tensor(f"{stem}.position_embeddings.weight") if biased else None,
        make.tensor(f"{stem}.token_type_embeddings.weight") if config.type_vocab_size > 0 else None,
        make.norm(f"{stem}.LayerNorm", config.layer_norm_eps),
        make.head(f"{stem}.embed_proj") if projected else None,
        project_first=True,
    )


def _positions(config: Any, make: Maker) -> tuple[torch.Tensor | None, Distances | None]:
    """Return the embeddings of the relative positions fp32 [2 span, hidden], and which serves which distance."""
    if not config_value(config, "relative_attention", default=False):
        return None, None
    longest = config_value(config, "max_relative_positions", -1)
    longest = config.max_position_embeddings if longest < 1 else longest
    buckets = config_value(config, "position_buckets", -1)
    span = buckets if buckets > 0 else longest
    table = make.weights.read("deberta.encoder.rel_embeddings.weight")[: 2 * span]
    if "layer_norm" in config_value(config, "norm_rel_ebd", "none").lower():
        stem = "deberta.encoder.LayerNorm"
        norm = Norm(make.weights.read(f"{stem}.weight"), make.weights.read(f"{stem}.bias"), config.layer_norm_eps)
        table = norm(table)
    index = distances(config.max_position_embeddings, buckets=buckets, span=span, max_distance=longest)
    return table, index.to(make.device)


def _layer(config: Any, make: Maker, stem: str, table: torch.Tensor | None, index: Distances | None) -> Layer:
    heads, eps = config.num_attention_heads, config.layer_norm_eps
    kinds = config_value(config, "pos_att_type", [])
    width = config_value(config, "attention_head_size", config.hidden_size // heads)
    # queries carry the scale, so that all products with them do
    scale = 1 / math.sqrt(width * (1 + ("c2p" in kinds) + ("p2c" in kinds)))
    own = f"{stem}.attention.self"
    attend: Attend
    if table is None or index is None:
        scale *= math.sqrt(width)  # plain attention divides by the root of the width itself
        attend = plain_attention(heads)
    else:
        attend = _attend(_tables(config, make, own, table, scale), index, heads)
    return Layer(
        qkv=make.linear(
            f"{own}.query_proj", f"{own}.key_proj", f"{own}.value_proj", scales=(scale, 1.0, 1.0), exact=True
        ),
        attend=attend,
        out=make.linear(f"{stem}.attention.output.dense"),
        out_norm=make.norm(f"{stem}.attention.output.LayerNorm", eps),
        up=make.linear(f"{stem}.intermediate.dense", act=config.hidden_act),
        down=make.linear(f"{stem}.output.dense"),
        down_norm=make.norm(f"{stem}.output.LayerNorm", eps),
    )


def _tables(config: Any, make: Maker, own: str, table: torch.Tensor, scale: float) -> Positions:
    """Project the position embeddings once: they depend on no input."""
    kinds = config_value(config, "pos_att_type", [])
    shared = config_value(config, "share_att_key", default=False)
    names = ("key_proj", "query_proj") if shared else ("pos_key_proj", "pos_query_proj")

    def project(name: str, factor: float) -> torch.Tensor:
        weight, bias = make.weights.read(f"{own}.{name}.weight"), make.weights.read(f"{own}.{name}.bias")
        heads = torch.addmm(bias, table, weight.T).mul_(factor).view(len(table), config.num_attention_heads, -1)
        return heads.transpose(0, 1).contiguous().to(make.device, make.dtype)

    return Positions(
        project(names[0], 1.0) if "c2p" in kinds else None,
        project(names[1], scale) if "p2c" in kinds else None,
    )


def _attend(table: Positions, index: Distances, heads: int) -> Attend:
    def attend(qkv: torch.Tensor, layout: Layout) -> torch.Tensor:
        return disentangled(qkv, layout, table, index, heads)

    return attend
