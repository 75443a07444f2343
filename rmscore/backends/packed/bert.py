"""BERT, Electra, RoBERTa, XLM-RoBERTa and DistilBERT: absolute positions, plain attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rmscore.backends.packed.encoder import Embedding, Encoder, Layer, config_value, plain_attention
from rmscore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmscore.backends.packed.encoder import Maker
    from rmscore.backends.packed.layout import Layout

BERT_NAMES = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": "attention.output.dense",
    "out_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "down_norm": "output.LayerNorm",
}
DISTILBERT_NAMES = {
    "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "out": "attention.out_lin",
    "out_norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "down_norm": "output_layer_norm",
}


def bert(config: Any, make: Maker) -> Encoder:
    """BERT: the pooler's tanh of the first token, then the classifier."""
    return _network(config, make, "bert", _head(make, "bert.pooler.dense", "tanh", "classifier"))


def electra(config: Any, make: Maker) -> Encoder:
    """Electra: embeddings may be narrower than the network; the head has a GELU inside."""
    return _network(config, make, "electra", _head(make, "classifier.dense", "gelu", "classifier.out_proj"))


def roberta(config: Any, make: Maker) -> Encoder:
    """RoBERTa and XLM-RoBERTa: positions count the tokens that are not the padding id, from the padding id on."""
    network = _network(config, make, "roberta", _head(make, "classifier.dense", "tanh", "classifier.out_proj"))
    return Encoder(_counting(network.embed, config.pad_token_id), network.layers, network.head)


def distilbert(config: Any, make: Maker) -> Encoder:
    """DistilBERT: BERT without segments and pooler."""
    stem = "distilbert.embeddings"
    eps = 1e-12  # transformers, ``modeling_distilbert.py``: not in the configuration
    embed = Embedding(
        make.tensor(f"{stem}.word_embeddings.weight"),
        make.tensor(f"{stem}.position_embeddings.weight"),
        None,
        make.norm(f"{stem}.LayerNorm", eps),
    )
    layers = [
        layer(make, f"distilbert.transformer.layer.{i}", DISTILBERT_NAMES, config.activation, eps, config.n_heads)
        for i in range(config.n_layers)
    ]
    return Encoder(embed, layers, _head(make, "pre_classifier", "relu", "classifier"))


def layer(make: Maker, stem: str, names: dict[str, Any], act: str, eps: float, heads: int) -> Layer:
    """Return one layer whose modules have these names under ``stem``."""
    return Layer(
        qkv=make.linear(*(f"{stem}.{name}" for name in names["qkv"]), exact=True),
        attend=plain_attention(heads),
        out=make.linear(f"{stem}.{names['out']}"),
        out_norm=make.norm(f"{stem}.{names['out_norm']}", eps),
        up=make.linear(f"{stem}.{names['up']}", act=act),
        down=make.linear(f"{stem}.{names['down']}"),
        down_norm=make.norm(f"{stem}.{names['down_norm']}", eps),
    )


def _network(config: Any, make: Maker, prefix: str, head: Callable[[torch.Tensor], torch.Tensor]) -> Encoder:
    if config_value(config, "position_embedding_type", "absolute") != "absolute" or config_value(
        config, "is_decoder", default=False
    ):
        raise BackendError("packed has no relative positions and no decoding for this family; use --backend eager")
    stem, eps = f"{prefix}.embeddings", config.layer_norm_eps
    narrow = "electra.embeddings_project.weight" in make.weights
    embed = Embedding(
        make.tensor(f"{stem}.word_embeddings.weight"),
        make.tensor(f"{stem}.position_embeddings.weight"),
        make.tensor(f"{stem}.token_type_embeddings.weight"),
        make.norm(f"{stem}.LayerNorm", eps),
        make.head("electra.embeddings_project") if narrow else None,
    )
    layers = [
        layer(make, f"{prefix}.encoder.layer.{i}", BERT_NAMES, config.hidden_act, eps, config.num_attention_heads)
        for i in range(config.num_hidden_layers)
    ]
    return Encoder(embed, layers, head)


def _head(make: Maker, dense: str, act: str, out: str) -> Callable[[torch.Tensor], torch.Tensor]:
    inner, outer = make.head(dense, act=act), make.head(out)
    return lambda x: outer(inner(x))


def _counting(embed: Callable[[Layout], torch.Tensor], pad: int) -> Callable[[Layout], torch.Tensor]:
    """Return an embedding whose positions are transformers' (``create_position_ids_from_input_ids``)."""

    def counted(layout: Layout) -> torch.Tensor:
        real = (layout.ids != pad).long()
        total = torch.cumsum(real, 0)
        first = torch.arange(len(real), device=real.device) - layout.positions
        before = total[first] - real[first]
        return embed(layout.replace_positions((total - before) * real + pad))

    return counted
