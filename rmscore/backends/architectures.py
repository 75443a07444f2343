"""The architectures that ``packed`` has, by name alone, so that a choice of backend needs no PyTorch."""

from __future__ import annotations

PACKED = (
    "DebertaV2ForSequenceClassification",
    "BertForSequenceClassification",
    "ElectraForSequenceClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
    "DistilBertForSequenceClassification",
    "ModernBertForSequenceClassification",
    "LlamaForSequenceClassification",
    "MistralForSequenceClassification",
    "Qwen2ForSequenceClassification",
    "Qwen3ForSequenceClassification",
    "Gemma2ForSequenceClassification",
)
"""The keys of ``rmscore.backends.packed.NETWORKS``."""
