"""A checkpoint's tokenizer, held so that user text can never become a control token by accident."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from rmscore.errors import CheckpointError
from rmscore.word_cache import TextEncoder, text_encoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmscore.checkpoint import RewardModel


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The ids that surround content: ``before``, ``between`` (pairs only), ``after``, and their segment ids."""

    parts: tuple[NDArray[np.int64], ...]
    types: tuple[NDArray[np.int64], ...]
    content_types: tuple[int, ...]

    @property
    def length(self) -> int:
        """Ids the frame adds to the content."""
        return sum(len(part) for part in self.parts)

    def around(self, *contents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ids and segment ids [tokens] of framed content."""
        if len(contents) == 1:
            ids = np.concatenate((self.parts[0], contents[0], self.parts[1]))
        else:
            ids = np.concatenate((self.parts[0], contents[0], self.parts[1], contents[1], self.parts[2]))
        types = np.zeros(len(ids), np.int64)
        end = 0
        for index, part in enumerate(self.parts):
            start, end = end, end + len(part)
            types[start:end] = self.types[index]
            if index < len(contents):
                start, end = end, end + len(contents[index])
                types[start:end] = self.content_types[index]
        return ids, types


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """Two views of one tokenizer, neither ever truncating or padding, so that threads can share them.

    ``parse`` turns control tokens spelled out in text into control ids, as transformers does; ``plain`` encodes the
    same spelling as ordinary text, as raw SentencePiece does. ``controls`` are the control tokens and their ids.
    """

    parse: TextEncoder
    plain: tokenizers.Tokenizer
    controls: Mapping[str, int]
    single: Frame
    pair: Frame
    bos: int | None

    def control_ids(self) -> frozenset[int]:
        """Ids that no content may hold."""
        return frozenset(self.controls.values())


def load_tokenizer(model: RewardModel, *, allow_missing_specials: bool = False) -> Tokenizer:
    """Load ``tokenizer.json`` (converted through transformers where the folder has only older files).

    Raises CheckpointError when there is no usable tokenizer, or when an encoder's tokenizer adds no special tokens.
    """
    spec = json.loads(_spec_text(model))
    spec["truncation"] = spec["padding"] = None
    controls = {t["content"]: t["id"] for t in spec.get("added_tokens") or () if t.get("special")}
    controls.pop(_unknown(spec), None)
    parse = text_encoder(spec)
    single, pair = _frame(parse.tokenizer, 1), _frame(parse.tokenizer, 2)
    if not model.causal and not allow_missing_specials:
        _check_specials(model, single, controls)
    bos = controls.get(_token_text(model.tokenizer_config.get("bos_token")) or "")
    return Tokenizer(parse, _plain(spec, controls), controls, single, pair, bos)


def special_texts(model: RewardModel) -> dict[str, str]:
    """Return the named special tokens of the tokenizer configuration, such as ``bos_token``, for chat templates."""
    named = {key: _token_text(value) for key, value in model.tokenizer_config.items() if key.endswith("_token")}
    return {key: text for key, text in named.items() if text is not None}


def _spec_text(model: RewardModel) -> str:
    path = model.folder / "tokenizer.json"
    try:
        if path.exists():
            return tokenizers.Tokenizer.from_file(str(path)).to_str()
        from transformers import AutoTokenizer

        converted = AutoTokenizer.from_pretrained(model.folder, trust_remote_code=False, local_files_only=True)
        return str(converted.backend_tokenizer.to_str())
    except ImportError as error:
        raise CheckpointError(
            f"{model.folder}: no tokenizer.json, and converting older files needs: pip install 'rmscore[torch]'"
        ) from error
    except Exception as error:  # the tokenizers library raises the bare class
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{model.folder}: the tokenizer cannot be loaded ({reason}); save it again with it"
        ) from error


def _unknown(spec: Mapping[str, Any]) -> str | None:
    model = spec["model"]
    if model.get("type") == "Unigram" and model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0])
    unknown = model.get("unk_token")
    return unknown if isinstance(unknown, str) else None


def _token_text(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _plain(spec: dict[str, Any], controls: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Return the tokenizer without its control tokens, their own pieces made unreachable.

    Telling the library to split special tokens is not enough: a converted SentencePiece vocabulary lists the control
    pieces among its ordinary ones. A piece is made unreachable by a name that no normalised text can hold.
    """
    spec = json.loads(json.dumps(spec))
    spec["added_tokens"] = [token for token in spec.get("added_tokens") or () if token["content"] not in controls]
    spec["post_processor"] = None
    model = spec["model"]
    hide = {text: f"\U0010fffe{index}\U0010ffff" for index, text in enumerate(controls)}
    if isinstance(model["vocab"], list):
        model["vocab"] = [[hide.get(piece, piece), score] for piece, score in model["vocab"]]
    else:
        used = {piece for merge in model.get("merges") or () for piece in _merge_parts(merge)}
        model["vocab"] = {hide.get(p, p) if p not in used else p: i for p, i in model["vocab"].items()}
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def _merge_parts(merge: str | list[str]) -> tuple[str, ...]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right


def _frame(tokenizer: tokenizers.Tokenizer, segments: int) -> Frame:
    """Learn what the post-processor puts around one or two segments by letting it process a word."""
    encoding = tokenizer.encode("a", "a" if segments > 1 else None, add_special_tokens=True)
    content = len(tokenizer.encode("a", add_special_tokens=False).ids)
    parts: list[list[int]] = [[]]
    types: list[list[int]] = [[]]
    content_types: list[int] = []
    left = 0
    for token, kind, special in zip(encoding.ids, encoding.type_ids, encoding.special_tokens_mask, strict=True):
        if left == 0 and not special and len(content_types) < segments:
            content_types.append(kind)
            parts.append([])
            types.append([])
            left = content
        if left:
            left -= 1
        else:
            parts[-1].append(token)
            types[-1].append(kind)
    return Frame(_arrays(parts), _arrays(types), tuple(content_types))


def _arrays(rows: list[list[int]]) -> tuple[NDArray[np.int64], ...]:
    return tuple(np.array(row, np.int64) for row in rows)


def _check_specials(model: RewardModel, single: Frame, controls: Mapping[str, int]) -> None:
    texts = special_texts(model)
    first = controls.get(texts.get("cls_token") or texts.get("bos_token") or "")
    last = controls.get(texts.get("sep_token") or texts.get("eos_token") or "")
    before, after = single.parts[0].tolist(), single.parts[-1].tolist()
    if (first is not None and before[:1] != [first]) or (last is not None and after[-1:] != [last]):
        raise CheckpointError(
            f"{model.folder}: the tokenizer does not put {texts.get('cls_token') or texts.get('bos_token')} … "
            f"{texts.get('sep_token') or texts.get('eos_token')} around a text, which this encoder was trained with; "
            "repair tokenizer.json's post-processor, or pass --allow-missing-specials"
        )
