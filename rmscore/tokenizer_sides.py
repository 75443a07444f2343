"""A folder's ``tokenizer.json`` and, beside it, an independent tokenizer that should give the same ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import tokenizers

from rmscore.errors import CheckpointError
from rmscore.wordpiece import WordPiece

SENTENCEPIECE_FILES: Final = ("spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")

Pieces = list[str | None]
"""Pieces by name, None for the unknown one, whose name the two sides may not share."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: ``ids`` without special tokens, the name of a ``piece``, the text it makes and its words."""

    ids: Callable[[str], list[int]]
    piece: Callable[[int], str | None]
    unknown: int | None
    normalised: Callable[[str], str]
    words: Callable[[str], list[str]]

    def pieces(self, text: str) -> Pieces:
        """Return the names of a text's pieces."""
        return [None if index == self.unknown else self.piece(index) for index in self.ids(text)]


@dataclass(frozen=True, slots=True)
class Pair:
    """``tokenizer.json`` (``ours``) and its ``reference``; ``added`` tokens are those that only ours reads in text."""

    tokenizer: tokenizers.Tokenizer
    added: Mapping[int, str]
    ours: Side
    reference: Side
    name: str

    def agree(self, text: str) -> bool:
        """Return whether both give the same pieces."""
        return self.ours.pieces(text) == self.reference.pieces(text)

    def same_words(self, text: str) -> bool:
        """Return whether both make the same words before they look for pieces."""
        return self.ours.words(text) == self.reference.words(text)

    def compared(self) -> str:
        """Return ``ids`` where both number all pieces alike (the name of the unknown one aside), else ``pieces``."""
        sides = (self.ours, self.reference)
        size = self.tokenizer.get_vocab_size(with_added_tokens=False)
        if self.ours.unknown != self.reference.unknown:
            return "pieces"
        names = ({index: side.piece(index) for index in range(size) if index != side.unknown} for side in sides)
        return "ids" if next(names) == next(names) else "pieces"

    def misnumbered(self) -> str | None:
        """Return a piece of the reference that ours numbers at another distance than most, None where all agree.

        Conversions may move all ordinary pieces by one distance (XLM-R: by 1, for its own special tokens), never apart.
        """
        moved: dict[str, int] = {}
        names = set(self.added.values())
        for index in range(self.tokenizer.get_vocab_size(with_added_tokens=False)):
            piece = None if index == self.reference.unknown else self.reference.piece(index)
            ours = None if piece is None or piece in names else self.tokenizer.token_to_id(piece)
            if piece is not None and ours is not None:
                moved[piece] = ours - index
        usual = Counter(moved.values()).most_common(1)
        return next((piece for piece, distance in moved.items() if distance != usual[0][0]), None)


def open_sides(folder: Path) -> Pair | str:
    """Load both sides, or say why there is no reference. CheckpointError: ``tokenizer.json`` cannot be loaded."""
    path = folder / "tokenizer.json"
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        spec["truncation"] = spec["padding"] = None
        kind = spec["model"].get("type", "a model of no type")
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); parity checks tokenizer.json") from error
    except Exception as error:  # the tokenizers library raises the bare class
        raise CheckpointError(f"{path}: is no tokenizer ({str(error)[:120]!r}); save it again") from error
    added = {token["id"]: token["content"] for token in spec.get("added_tokens") or ()}
    files = [folder / name for name in SENTENCEPIECE_FILES if (folder / name).is_file()]
    if files:
        return _with_sentencepiece(tokenizer, spec, added, files[0])
    if kind == "WordPiece":
        return _with_wordpiece(tokenizer, spec, added)
    return f"{folder}: no independent reference for {kind} without a SentencePiece model beside tokenizer.json"


def _ours(
    tokenizer: tokenizers.Tokenizer,
    unknown: int | None,
    normalised: Callable[[str], str],
    words: Callable[[str], list[str]],
) -> Side:
    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return Side(ids, tokenizer.id_to_token, unknown, normalised, words)


def _with_sentencepiece(
    tokenizer: tokenizers.Tokenizer, spec: Mapping[str, Any], added: Mapping[int, str], file: Path
) -> Pair | str:
    try:
        import sentencepiece
    except ImportError:
        return f"{file}: not compared, sentencepiece is not installed: pip install 'rmscore[models]'"
    try:
        model = sentencepiece.SentencePieceProcessor(model_proto=file.read_bytes())
    except (RuntimeError, OSError) as error:
        return f"{file}: not compared, it is no SentencePiece model ({str(error).partition(chr(10))[0][:120]})"

    def reference_text(text: str) -> str:
        return _plain_spaces(model.normalize(text))

    def our_text(text: str) -> str:
        return _plain_spaces(tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text)

    size = model.get_piece_size()
    reference = Side(
        model.encode,
        lambda index: model.id_to_piece(index) if index < size else None,
        model.unk_id(),
        reference_text,
        lambda text: _split(reference_text(text)),
    )
    ours = _ours(tokenizer, _unknown(tokenizer, spec["model"]), our_text, lambda text: _split(our_text(text)))
    return Pair(tokenizer, added, ours, reference, f"{file.name} in sentencepiece {version('sentencepiece')}")


def _with_wordpiece(tokenizer: tokenizers.Tokenizer, spec: Mapping[str, Any], added: Mapping[int, str]) -> Pair | str:
    model, normaliser = spec["model"], spec.get("normalizer") or {}
    if normaliser.get("type") != "BertNormalizer":
        return f"no independent reference for WordPiece with a normaliser of type {normaliser.get('type')!r}"
    wordpiece = WordPiece(
        model["vocab"],
        model["unk_token"],
        model["continuing_subword_prefix"],
        model["max_input_chars_per_word"],
        normaliser["lowercase"],
        normaliser["strip_accents"],
        normaliser["handle_chinese_chars"],
        normaliser["clean_text"],
    )

    def our_words(text: str) -> list[str]:
        text = tokenizer.normalizer.normalize_str(text)
        return (
            [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] if tokenizer.pre_tokenizer else [text]
        )

    unknown = _unknown(tokenizer, model)
    reference = Side(wordpiece.ids, tokenizer.id_to_token, unknown, wordpiece.normalised, wordpiece.words)
    ours = _ours(tokenizer, unknown, tokenizer.normalizer.normalize_str, our_words)
    return Pair(tokenizer, added, ours, reference, "BERT's published BasicTokenizer and WordPiece")


def _unknown(tokenizer: tokenizers.Tokenizer, model: Mapping[str, Any]) -> int | None:
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    token = model.get("unk_token")
    return None if token is None else tokenizer.token_to_id(token)


def _plain_spaces(text: str) -> str:
    """Return a normalised text with spaces for markers and without the one that begins the first word."""
    return text.replace("\u2581", " ").removeprefix(" ")


def _split(text: str) -> list[str]:
    return [word for word in text.split(" ") if word]
