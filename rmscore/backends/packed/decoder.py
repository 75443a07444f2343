"""Decoders with a scalar head: Llama, Mistral, Qwen2, Qwen3, Gemma 2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from rmscore.backends.packed.attention import causal
from rmscore.backends.packed.encoder import Encoder, config_value
from rmscore.backends.packed.rotary import Rotary, rotary
from rmscore.errors import BackendError

if TYPE_CHECKING:
    from rmscore.backends.packed.encoder import Maker, Product
    from rmscore.backends.packed.layout import Layout

Norm = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm:
    """Root mean square norm over the last dimension (Zhang and Sennrich 2019)."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [..., width] normed."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """How a layer attends: numbers of heads, scale of the scores, window and soft-cap, norms of queries and keys."""

    queries: int
    keys: int
    width: int
    scale: float
    window: int | None
    softcap: float | None
    q_norm: Norm | None
    k_norm: Norm | None
    rope: Rotary

    def attend(self, qkv: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return the context [tokens, queries · width]."""
        split = qkv.view(len(qkv), -1, self.width)
        q, k, v = split.split((self.queries, self.keys, self.keys), 1)
        q = self.q_norm(q) if self.q_norm else q
        k = self.k_norm(k) if self.k_norm else k
        cos, sin = self.rope.of(layout.positions)
        return causal(
            rotary(q, cos, sin), rotary(k, cos, sin), v, layout,
            scale=self.scale, window=self.window, softcap=self.softcap,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Norm, attention, sum; norm, gated feed-forward, sum. Gemma 2 norms what it adds as well."""

    norm: Norm
    qkv: Product
    heads: Heads
    out: Product
    out_norm: Norm | None
    mlp_norm: Norm
    gate: Product
    up: Product
    down: Product
    down_norm: Norm | None

    def __call__(self, x: torch.Tensor, layout: Layout, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Return [tokens, hidden], or of the tokens to ``keep`` alone."""
        context = self.heads.attend(self.qkv(self.norm(x)), layout)
        if keep is not None:
            context, x = context[keep], x[keep]
        x = self.out(context, add=x) if self.out_norm is None else self.out_norm(self.out(context)).add_(x)
        normed = self.mlp_norm(x)
        inner = self.up(normed, times=self.gate(normed))
        return self.down(inner, add=x) if self.down_norm is None else self.down_norm(self.down(inner)).add_(x)


def decoder(config: Any, make: Maker) -> Encoder:
    """Return the network; the head reads the norm of each row's last token."""
    _refuse_unknown(config)
    words = make.tensor("model.embed_tokens.weight")
    gemma = config.model_type == "gemma2"
    factor = torch.tensor(config.hidden_size**0.5).to(make.dtype).item() if gemma else None
    layers = [_layer(config, make, i, gemma=gemma) for i in range(config.num_hidden_layers)]
    final, score = _norm(make, "model.norm", config, gemma=gemma), make.head("score")

    def embed(layout: Layout) -> torch.Tensor:
        x = words[layout.ids]
        return x if factor is None else x.mul_(factor)

    return Encoder(embed, layers, lambda x: score(final(x)))


def _refuse_unknown(config: Any) -> None:
    if config_value(config, "use_bidirectional_attention", default=False):
        raise BackendError("packed has no bidirectional attention in decoders; use --backend eager")


def _layer(config: Any, make: Maker, number: int, *, gemma: bool) -> Layer:
    stem = f"model.layers.{number}"
    own, mlp = f"{stem}.self_attn", f"{stem}.mlp"
    act = config_value(config, "hidden_activation", None) if gemma else config.hidden_act
    after = "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"
    return Layer(
        norm=_norm(make, f"{stem}.input_layernorm", config, gemma=gemma),
        qkv=make.linear(f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj", exact=True),
        heads=_heads(config, make, number),
        out=make.linear(f"{own}.o_proj"),
        out_norm=_norm(make, f"{stem}.post_attention_layernorm", config, gemma=True) if gemma else None,
        mlp_norm=_norm(make, f"{stem}.{after}", config, gemma=gemma),
        gate=make.linear(f"{mlp}.gate_proj", act=act),
        up=make.linear(f"{mlp}.up_proj"),
        down=make.linear(f"{mlp}.down_proj"),
        down_norm=_norm(make, f"{stem}.post_feedforward_layernorm", config, gemma=True) if gemma else None,
    )


def _heads(config: Any, make: Maker, number: int) -> Heads:
    width = config_value(config, "head_dim", config.hidden_size // config.num_attention_heads)
    own = f"model.layers.{number}.self_attn"
    normed = f"{own}.q_norm.weight" in make.weights
    kinds = config_value(config, "layer_types", None)
    windowed = kinds[number] == "sliding_attention" if kinds else config.model_type == "mistral"
    return Heads(
        queries=config.num_attention_heads,
        keys=config_value(config, "num_key_value_heads", config.num_attention_heads),
        width=width,
        scale=config_value(config, "query_pre_attn_scalar", width) ** -0.5,
        window=config_value(config, "sliding_window", None) if windowed else None,
        softcap=config_value(config, "attn_logit_softcapping", None),
        q_norm=_norm(make, f"{own}.q_norm", config, gemma=False) if normed else None,
        k_norm=_norm(make, f"{own}.k_norm", config, gemma=False) if normed else None,
        rope=Rotary.make(config, config.rope_parameters, width, make.device),
    )


def _norm(make: Maker, name: str, config: Any, *, gemma: bool) -> RmsNorm:
    """Return a norm; Gemma's weights are stored as their distance from one."""
    weight = make.weights.read(f"{name}.weight")
    weight = weight + 1 if gemma else weight
    return RmsNorm(weight.to(make.device, make.dtype), config.rms_norm_eps)
