"""A checkpoint as a PyTorch module with scores as its output; shared by every engine that starts from PyTorch."""

from __future__ import annotations

import ctypes
import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForSequenceClassification

from rmscore.errors import CheckpointError, SettingError

if TYPE_CHECKING:
    from rmscore.checkpoint import RewardModel

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's ``mallopt`` (malloc.h)."""

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class RewardModule(nn.Module):
    """The transformers model, with the pooled position given rather than guessed from padding.

    Decoders: ``last`` [rows] is the position whose hidden state the head reads. The scores are what the model's own
    ``forward`` gives for one unpadded row; the reference backend, which calls that, is the proof.
    """

    model: Any

    def __init__(self, model: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.model = model
        self.causal = causal

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        last: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return scores [rows, objectives]; all inputs are [rows, columns] but ``last``, which is [rows]."""
        optional = {"token_type_ids": token_type_ids, "position_ids": position_ids}
        inputs = {name: value for name, value in optional.items() if value is not None}
        if not self.causal:
            logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **inputs).logits
            return logits
        backbone = getattr(self.model, self.model.base_model_prefix)
        out = backbone(input_ids=input_ids, attention_mask=attention_mask, **inputs, use_cache=False)
        hidden = out.last_hidden_state
        scores: torch.Tensor = self.model.score(hidden[torch.arange(len(input_ids), device=hidden.device), last])
        return scores


def load_module(
    model: RewardModel, *, precision: str = "fp32", device: str = "cpu", attention: str | None = None
) -> nn.Module:
    """Load the transformers model of a checkpoint for inference.

    ``attention`` is transformers' ``attn_implementation``; the default is ``sdpa`` where it computes the same function,
    which it does not under soft-capping. Raises CheckpointError when a weight is missing (it would be random), has
    another shape, or when the architecture is unknown; code from the checkpoint never runs.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise SettingError("device 'cuda': PyTorch sees no CUDA device here; use --device cpu")
    try:
        loaded, report = AutoModelForSequenceClassification.from_pretrained(
            model.folder,
            dtype=DTYPES[precision],
            attn_implementation=attention or best_attention(model),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, RuntimeError, KeyError, ImportError, OSError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:240] or type(error).__name__
        raise CheckpointError(f"{model.folder}: transformers cannot load {model.architecture} ({reason})") from error
    missing = sorted(report["missing_keys"])
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")  # noqa: PLR2004
        raise CheckpointError(f"{model.folder}: weights missing: {shown}; they would be random, so nothing is scored")
    module: nn.Module = loaded.eval().requires_grad_(requires_grad=False).to(device)
    return module


def best_attention(model: RewardModel) -> str:
    """Return ``sdpa`` where the architecture has it and it computes the same function, else ``eager``."""
    capped = model.config.get("attn_logit_softcapping") is not None
    name = model.architecture
    supported = getattr(getattr(transformers, name, None), "_supports_sdpa", False)
    return "sdpa" if supported and not capped else "eager"


def input_names(module: nn.Module, *, causal: bool) -> tuple[str, ...]:
    """Return which arrays of a Batch the model takes.

    RoBERTa's kin count positions from the padding index themselves, so they are left to it.
    """
    target = getattr(module, str(module.base_model_prefix)) if causal else module
    accepted = inspect.signature(target.forward).parameters
    names = ["input_ids", "attention_mask"]
    if "token_type_ids" in accepted and not causal:
        names.append("token_type_ids")
    counts_itself = any(hasattr(part, "create_position_ids_from_input_ids") for part in module.modules())
    if "position_ids" in accepted and not counts_itself:
        names.append("position_ids")
    return (*names, "last") if causal else tuple(names)


def keep_pages() -> None:
    """Let the C library keep freed memory for the next tensor, where it is glibc's.

    It would give every large block back to the system, and each batch would wait for its pages to be zeroed anew: half
    the time of an attention layer over 256 tokens. The peak of memory stays the same.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(option, 2**30)


def effective_precision(module: nn.Module, device: str) -> str:
    """Read the precision back from the loaded weights and PyTorch's matmul setting."""
    (dtype,) = {p.dtype for p in module.parameters() if p.is_floating_point()} or {torch.float32}
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    return "tf32" if name == "fp32" and device == "cuda" and torch.backends.cuda.matmul.allow_tf32 else name


def record(module: nn.Module, device: str) -> dict[str, Any]:
    """Return what the engine says of itself: effective precision, attention implementation, threads."""
    config: Any = module.config
    return {
        "effective_precision": effective_precision(module, device),
        "attention": config._attn_implementation,  # noqa: SLF001
        "threads": torch.get_num_threads(),
    }
