"""A checkpoint folder → RewardModel: what its files say before any engine reads a weight; safetensors only."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmscore.errors import CheckpointError
from rmscore.safetensors_header import tensors

HEADS = ("classifier.", "score.", "classification_head.", "head.")
"""Where transformers' sequence classifiers keep their head: encoders, decoders, BART-like, ModernBERT."""

VALUE_HEADS = ("v_head.", "value_head.", "reward_head.")
"""Heads of other libraries that transformers would silently replace by a random one."""

POSITION_OFFSET = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text", "mpnet"})
"""Families whose positions start after the padding index (514 rows hold 512 tokens)."""

UNLIMITED = 1_000_000
"""A tokenizer limit from here on means "unset": transformers writes 1e30 where nobody set one."""

FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "spm.model", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "vocab.txt", "vocab.json", "merges.txt",
)  # fmt: skip
"""The small files that decide a score; they count for the hash beside the weights."""


@dataclass(frozen=True, slots=True, eq=False)
class RewardModel:
    """A checked checkpoint folder: configuration and weight files, nothing loaded yet."""

    folder: Path
    config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    weights: tuple[Path, ...]
    keys: frozenset[str]

    @property
    def architecture(self) -> str:
        """Class name in transformers, such as ``DebertaV2ForSequenceClassification``."""
        return str(self.config["architectures"][0])

    @property
    def family(self) -> str:
        """``model_type`` of the configuration, such as ``deberta-v2``."""
        return str(self.config.get("model_type", ""))

    @property
    def causal(self) -> bool:
        """Whether the head reads the last token (decoders) rather than the first (encoders)."""
        return any(key.startswith("score.") for key in self.keys)

    @property
    def head(self) -> tuple[str, ...]:
        """Names of the head's weights."""
        return tuple(sorted(key for key in self.keys if key.startswith(("pooler.", *HEADS))))

    @property
    def objectives(self) -> int:
        """Scores per row; transformers' default where the configuration names none is 2."""
        labels = self.config.get("id2label")
        return len(labels) if labels else int(self.config.get("num_labels", 2))

    @property
    def pad_id(self) -> int:
        """The id put on padding columns: the configuration's, else 0; masks keep it out of every score."""
        pad = self.config.get("pad_token_id")
        return pad if isinstance(pad, int) and 0 <= pad < self.vocabulary else 0

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding table."""
        return int(self.config.get("vocab_size", 0))

    @property
    def max_tokens(self) -> int:
        """Longest row the model takes: the smaller of the tokenizer's limit and the positions the model has."""
        positions = int(self.config.get("max_position_embeddings") or UNLIMITED)
        if self.family in POSITION_OFFSET:
            positions -= int(self.config.get("pad_token_id") or 0) + 1
        claimed = self.tokenizer_config.get("model_max_length") or UNLIMITED
        return positions if claimed >= UNLIMITED else min(int(claimed), positions)


def open_checkpoint(model: str | os.PathLike[str]) -> RewardModel:
    """Check a checkpoint folder (or a hub id, resolved through the local cache first) and return it.

    Raises CheckpointError when it is missing, incomplete, pickled, without a head, or no sequence classifier.
    """
    folder = Path(model)
    if not folder.is_dir():
        folder = _from_hub(str(model))
    config = _json(folder / "config.json")
    _check_architecture(folder, config)
    weights = _weight_files(folder)
    keys = frozenset(name for path in weights for name in tensors(path))
    if not any(key.startswith(HEADS) for key in keys):
        found = next((key for key in sorted(keys) if key.startswith(VALUE_HEADS)), None)
        seen = f"; {found!r} is a value head that transformers would ignore" if found else ""
        raise CheckpointError(
            f"{folder}: no head weights ({', '.join(h + '*' for h in HEADS)}){seen}; scores would come from random weights: "
            "save the model as *ForSequenceClassification with its trained head"
        )
    settings = folder / "tokenizer_config.json"
    return RewardModel(folder, config, _json(settings) if settings.exists() else {}, weights, keys)


@functools.lru_cache(maxsize=16)
def content_hash(model: RewardModel) -> str:
    """Return the SHA-256 (hex) over names and contents of everything in the folder that decides a score.

    Read once for each opened checkpoint: a folder that changes is another checkpoint when it is opened again.
    """
    digest = hashlib.sha256()
    small = [model.folder / name for name in FILES]
    for path in [*(p for p in small if p.exists()), *model.weights]:
        with path.open("rb") as file:
            digest.update(f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing; give a folder that save_pretrained wrote") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}); copy or download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds no JSON object; copy or download it again")
    return value


def _check_architecture(folder: Path, config: Mapping[str, Any]) -> None:
    names = config.get("architectures")
    if not (isinstance(names, list) and names and isinstance(names[0], str)):
        raise CheckpointError(f"{folder / 'config.json'}: names no architecture; save the model with save_pretrained")
    if not names[0].endswith("ForSequenceClassification"):
        raise CheckpointError(
            f"{folder}: {names[0]} is not a sequence classifier, so it has no reward head; "
            "give a checkpoint saved as *ForSequenceClassification"
        )


def _weight_files(folder: Path) -> tuple[Path, ...]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return (single,)
    if index.exists():
        shards = _json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"{index}: holds no weight map; copy or download it again")
        paths = tuple(folder / name for name in sorted(set(shards.values())))
        for path in paths:
            if path.parent != folder or not path.exists():
                raise CheckpointError(f"{path}: named by {index.name} but missing; copy or download it again")
        return paths
    pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder / pickles[0]}: pickled weights can run code and are refused; where you trust them, load them with "
            "transformers and save_pretrained(…, safe_serialization=True)"
        )
    raise CheckpointError(f"{folder}: no model.safetensors; give a folder that save_pretrained wrote")


def _from_hub(name: str) -> Path:
    """Return the local snapshot of a hub id: the cache when it is whole, else one download."""
    looks_like_id = name.count("/") <= 1 and not name.startswith((".", "/", "~")) and "\\" not in name
    if not looks_like_id:
        raise CheckpointError(f"{name}: no such folder; give a checkpoint folder or a hub id such as org/name")
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise CheckpointError(
            f"{name}: no such folder, and hub ids need huggingface_hub: pip install 'rmscore[hub]'"
        ) from error
    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        cached = Path(snapshot_download(name, local_files_only=True))
        if (cached / "config.json").exists() and any(cached.glob("*.safetensors")):
            return cached
    except (HFValidationError, LocalEntryNotFoundError):
        pass
    if constants.HF_HUB_OFFLINE:
        raise CheckpointError(
            f"{name}: no such folder and not in the hub cache; HF_HUB_OFFLINE is set, so unset it to download"
        )
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["onnx/*", "*/*"], etag_timeout=5))
    except HFValidationError as error:
        raise CheckpointError(f"{name}: neither a folder nor a valid hub id (org/name)") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{name}: no such folder, and the hub did not give it ({reason}); check name and network"
        ) from error
