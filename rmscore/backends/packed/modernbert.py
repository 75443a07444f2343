"""ModernBERT: rotary positions, norms before the sums' terms, attention that is local in most layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rmscore.backends.packed.attention import bidirectional
from rmscore.backends.packed.encoder import Encoder
from rmscore.backends.packed.linear import activation
from rmscore.backends.packed.rotary import Rotary, rotary

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmscore.backends.packed.encoder import Maker, Norm, Product
    from rmscore.backends.packed.layout import Layout, Run


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Norm, attention, sum; norm, gated feed-forward, sum. The first layer's attention has no norm of its own."""

    attn_norm: Norm | None
    qkv: Product
    out: Product
    mlp_norm: Norm
    inner: Product
    gate: Product
    down: Product
    rope: Rotary
    heads: int
    window: int | None

    def __call__(self, x: torch.Tensor, layout: Layout, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Return [tokens, hidden], or of the tokens to ``keep`` alone."""
        normed = x if self.attn_norm is None else self.attn_norm(x)
        q, k, v = self.qkv(normed).view(len(x), 3, self.heads, -1).unbind(1)
        cos, sin = self.rope.of(layout.positions)
        context = bidirectional(rotary(q, cos, sin), rotary(k, cos, sin), v, layout, window=self.window)
        if keep is not None:
            context, x = context[keep], x[keep]
        x = self.out(context, add=x)
        normed = self.mlp_norm(x)
        return self.down(self.gate(normed, times=self.inner(normed)), add=x)


def modernbert(config: Any, make: Maker) -> Encoder:
    """Return the network; the head pools the first token or, by the configuration, the mean of all."""
    words, norm = (
        make.tensor("model.embeddings.tok_embeddings.weight"),
        make.norm("model.embeddings.norm", config.norm_eps),
    )
    layers: list[Any] = [_layer(config, make, i) for i in range(config.num_hidden_layers)]
    final = make.norm("model.final_norm", config.norm_eps)
    dense, act = make.head("head.dense"), activation(config.classifier_activation)
    head_norm, out = make.norm("head.norm", config.norm_eps), make.head("classifier")

    def head(pooled: torch.Tensor) -> torch.Tensor:
        return out(head_norm(act(dense(pooled))))

    def embed(layout: Layout) -> torch.Tensor:
        return norm(words[layout.ids])

    if config.classifier_pooling == "mean":
        return Encoder(embed, [*layers[:-1], _mean_of(layers[-1], final)], head)
    return Encoder(embed, layers, lambda x: head(final(x)))


def _layer(config: Any, make: Maker, number: int) -> Layer:
    stem = f"model.layers.{number}"
    kind = config.layer_types[number]
    rope = config.rope_parameters[kind]
    inner, gate = make.linear_halves(f"{stem}.mlp.Wi", act=config.hidden_activation)
    return Layer(
        attn_norm=make.norm(f"{stem}.attn_norm", config.norm_eps) if number else None,
        qkv=make.linear(f"{stem}.attn.Wqkv", exact=True),
        out=make.linear(f"{stem}.attn.Wo"),
        mlp_norm=make.norm(f"{stem}.mlp_norm", config.norm_eps),
        inner=inner,
        gate=gate,
        down=make.linear(f"{stem}.mlp.Wo"),
        rope=Rotary.make(config, rope, config.hidden_size // config.num_attention_heads, make.device, kind),
        heads=config.num_attention_heads,
        window=config.sliding_window if kind == "sliding_attention" else None,
    )


def _mean_of(layer: Layer, final: Norm) -> Callable[[torch.Tensor, Layout, torch.Tensor | None], torch.Tensor]:
    """Return the last layer over all tokens, normed and averaged within each row."""

    def mean(run: Run, x: torch.Tensor) -> torch.Tensor:
        return x[run.start : run.stop].view(run.rows, run.length, -1).mean(1)

    def call(x: torch.Tensor, layout: Layout, _: torch.Tensor | None) -> torch.Tensor:
        x = final(layer(x, layout))
        as_laid = torch.cat([mean(run, x) for run in layout.runs])
        return as_laid[layout.pooled.argsort().argsort()]

    return call
