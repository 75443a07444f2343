"""``packed``: our own forward pass over rows laid end to end, never padded.

What it does and what each part brings is in the modules: ``linear`` (weights in the machine's own layout, sums and
activations fused), ``disentangled`` (DeBERTa), ``layout`` (no padding, shared beginnings once), ``encoder`` (the last
layer for the tokens that the head reads, and no others). To add an architecture: one file that names its weights, and a
line in ``NETWORKS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig

from rmscore.backends.packed.bert import bert, distilbert, electra, roberta
from rmscore.backends.packed.deberta import deberta
from rmscore.backends.packed.decoder import decoder
from rmscore.backends.packed.encoder import Encoder, Maker
from rmscore.backends.packed.layout import lay_out, lay_out_shared
from rmscore.backends.packed.modernbert import modernbert
from rmscore.backends.packed.weights import Weights
from rmscore.backends.torch_model import DTYPES, keep_pages
from rmscore.errors import BackendError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from rmscore.backends import Settings
    from rmscore.checkpoint import RewardModel
    from rmscore.types import Batch

NETWORKS: Mapping[str, Callable[[Any, Maker], Encoder]] = {
    "DebertaV2ForSequenceClassification": deberta,
    "BertForSequenceClassification": bert,
    "ElectraForSequenceClassification": electra,
    "RobertaForSequenceClassification": roberta,
    "XLMRobertaForSequenceClassification": roberta,
    "DistilBertForSequenceClassification": distilbert,
    "ModernBertForSequenceClassification": modernbert,
    "LlamaForSequenceClassification": decoder,
    "MistralForSequenceClassification": decoder,
    "Qwen2ForSequenceClassification": decoder,
    "Qwen3ForSequenceClassification": decoder,
    "Gemma2ForSequenceClassification": decoder,
}


class Packed:
    """A network over rows without padding."""

    padded = False

    def __init__(self, model: RewardModel, settings: Settings) -> None:
        if model.architecture not in NETWORKS:
            raise BackendError(
                f"packed has no {model.architecture} (it has: {', '.join(NETWORKS)}); use --backend eager"
            )
        if settings.device == "cuda" and not torch.cuda.is_available():
            raise SettingError("device 'cuda': PyTorch sees no CUDA device here; use --device cpu")
        if settings.threads:
            torch.set_num_threads(settings.threads)
        if settings.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = settings.precision == "tf32"
        keep_pages()
        config = AutoConfig.from_pretrained(model.folder, local_files_only=True, trust_remote_code=False)
        int8 = settings.precision == "int8"
        maker = Maker(Weights(model), DTYPES["fp32" if int8 else settings.precision], settings.device, int8=int8)
        with torch.inference_mode():
            self._network = NETWORKS[model.architecture](config, maker)
        self._device = settings.device
        self.shares_prefixes = model.causal
        self.record: dict[str, Any] = {
            "effective_precision": settings.precision,
            "attention": "packed",
            "threads": torch.get_num_threads(),
            "shared_tokens": 0,
            **({"int8_kept": "queries, keys, values, embeddings, norms, head in fp32"} if int8 else {}),
        }

    def score(self, batch: Batch) -> NDArray[np.float32]:
        """Return float32 [rows, objectives]."""
        layout = lay_out_shared(batch.rows, self._device) if self.shares_prefixes else lay_out(batch.rows, self._device)
        try:
            with torch.inference_mode():
                scores: NDArray[np.float32] = self._network(layout).float().cpu().numpy()
        except RuntimeError as error:  # out of memory among them
            reason = " ".join(str(error).split())[:240]
            raise BackendError(
                f"packed failed on {len(batch)} rows, {batch.tokens} tokens: {reason}; try smaller batches"
            ) from error
        self.record["shared_tokens"] += batch.tokens - len(layout.ids)
        return scores

    def close(self) -> None:
        """Drop the weights and give GPU memory back."""
        del self._network
        if self._device == "cuda":
            torch.cuda.empty_cache()


def load(model: RewardModel, settings: Settings) -> Packed:
    """Read a checkpoint's weights into packed form."""
    return Packed(model, settings)
