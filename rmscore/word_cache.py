"""Ids of texts from remembered ids of their words, where the tokenizer's pipeline makes the two provably equal.

A tokenizer whose pre-tokenizer always breaks before a word encodes each word by itself, and texts repeat their words:
looking a word up costs a tenth of encoding it. Three pipelines are known to be of that kind:

* Unigram behind Metaspace with ``split`` (DeBERTa, XLM-R, T5): the text is normalised as a whole, then cut at every ▁;
* WordPiece behind BertPreTokenizer (BERT, Electra): the text is cut at spaces, which its normaliser neither joins nor
  reads across;
* byte-level BPE behind the split pattern of GPT-2 (RoBERTa), Llama 3 or Qwen: the text is cut at added tokens, as the
  library cuts it first of all, and before every space that an ASCII letter follows. There all three patterns end a
  piece: only a run of letters goes on past that space, and only its own alternative begins with one.

Every other tokenizer, and every text that spells an added token which the first two kinds or its own options
(``lstrip`` and the like) make awkward, goes the library's own way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARKER = "\u2581"

LARGEST = 64 * 2**20
PER_WORD = 220
"""Bytes of words remembered before starting anew, and what a word takes beside its letters (text, ids, dictionary)."""

SPLITS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""The split patterns of GPT-2 (ByteLevel's own), Llama 3 and Qwen."""


@dataclass(slots=True)
class TextEncoder:
    """Encodes texts without special tokens.

    ``words`` cuts a text into words and ``spelled`` turns one into the text that ``of_words`` is to encode for it;
    ``words`` is None where no cut is known to be safe, and gives None for a text that cannot be cut.
    """

    tokenizer: tokenizers.Tokenizer
    of_words: tokenizers.Tokenizer
    words: Callable[[str], list[str] | None] | None = None
    spelled: Callable[[str], str] = str
    memory: dict[str, tuple[int, ...]] = field(default_factory=dict)
    bytes_held: int = 0

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the int64 ids of each text, equal to the tokenizer's own ``encode(text, add_special_tokens=False)``."""
        if self.words is None:
            return _arrays(self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False))
        cut = list(map(self.words, texts))
        lookup = self._remember(set(chain.from_iterable(words for words in cut if words)))
        uncut = [text for text, words in zip(texts, cut, strict=True) if words is None]
        whole = iter(_arrays(self.tokenizer.encode_batch_fast(uncut, add_special_tokens=False)))
        return [
            next(whole)
            if words is None
            else np.array(list(chain.from_iterable(map(lookup.__getitem__, words))), np.int64)
            for words in cut
        ]

    def _remember(self, words: set[str]) -> Mapping[str, tuple[int, ...]]:
        """Return a mapping that holds all these words, encoding those that are new."""
        if self.bytes_held > LARGEST:
            self.memory, self.bytes_held = {}, 0  # a new one: another thread may still read the old
        memory = self.memory
        new = list(words - memory.keys())
        if new:
            encodings = self.of_words.encode_batch_fast(list(map(self.spelled, new)), add_special_tokens=False)
            memory.update(zip(new, (tuple(encoding.ids) for encoding in encodings), strict=True))
            self.bytes_held += sum(map(len, new)) + PER_WORD * len(new)
        return memory


def text_encoder(spec: Mapping[str, Any]) -> TextEncoder:
    """Return the encoder for a ``tokenizer.json`` given as parsed JSON."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
    added = spec.get("added_tokens") or []
    # an added token that is looked for in normalised text could be met across a space, or after lower-casing
    if any(token.get("normalized") for token in added):
        return TextEncoder(tokenizer, tokenizer)
    if _is_metaspace(spec):
        bare = tokenizers.Tokenizer.from_str(json.dumps({**spec, "normalizer": None, "added_tokens": []}))
        normalizer = tokenizer.normalizer
        normalize: Callable[[str], str] = normalizer.normalize_str if normalizer else str
        words = _unless(_spelling(added), lambda text: _marked_words(normalize(text)))
        return TextEncoder(tokenizer, bare, words, lambda word: MARKER + word)
    if _is_bert(spec):
        return TextEncoder(tokenizer, tokenizer, _unless(_spelling(added), lambda text: text.split(" ")))
    if _is_byte_level(spec):
        options = ("lstrip", "rstrip", "single_word")
        plain = [token for token in added if not any(token.get(option) for option in options)]
        awkward = [token for token in added if token not in plain]
        words = _unless(_spelling(awkward), _byte_level_words(_spelling(plain)))
        return TextEncoder(tokenizer, tokenizer, words, _byte_level_text)
    return TextEncoder(tokenizer, tokenizer)


def _spelling(added: Sequence[Mapping[str, Any]]) -> re.Pattern[str] | None:
    """Return what finds added tokens as the library does: the leftmost, and of several there the longest."""
    contents = sorted((str(token["content"]) for token in added), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, contents)) + ")") if contents else None


def _unless(awkward: re.Pattern[str] | None, words: Callable[[str], list[str]]) -> Callable[[str], list[str] | None]:
    return words if awkward is None else lambda text: None if awkward.search(text) else words(text)


def _arrays(encodings: Sequence[tokenizers.Encoding]) -> list[NDArray[np.int64]]:
    return [np.array(encoding.ids, np.int64) for encoding in encodings]


def _marked_words(text: str) -> list[str]:
    """Cut as Metaspace does: a space is a marker, a text begins with one, every marker begins a word."""
    if not text:
        return []
    marked = text.replace(" ", MARKER)
    return (marked[1:] if marked[0] == MARKER else marked).split(MARKER)


def _is_metaspace(spec: Mapping[str, Any]) -> bool:
    before = spec.get("pre_tokenizer") or {}
    if before.get("type") == "Sequence" and len(before["pretokenizers"]) == 1:
        before = before["pretokenizers"][0]
    return (
        spec["model"].get("type") == "Unigram"
        and before.get("type") == "Metaspace"
        and before.get("replacement") == MARKER
        and before.get("prepend_scheme") == "always"
        and before.get("split") is True
    )


def _is_bert(spec: Mapping[str, Any]) -> bool:
    kinds = [(spec.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer")]
    return spec["model"].get("type") == "WordPiece" and kinds == ["BertNormalizer", "BertPreTokenizer"]


def _byte_level_words(added: re.Pattern[str] | None) -> Callable[[str], list[str]]:
    """Return what cuts a text at added tokens and before spaces.

    A word is written without its space; what has none before it (an added token, the start of a piece) is written with
    one, which no other word begins with.
    """
    before_word = re.compile(" (?=[A-Za-z])")

    def words(text: str) -> list[str]:
        out: list[str] = []
        for piece in added.split(text) if added else (text,):
            if piece:
                start = len(out)
                out += before_word.split(piece)
                out[start] = " " + out[start]
        return out

    return words


def _byte_level_text(word: str) -> str:
    return word[1:] if word[0] == " " else " " + word


def _is_byte_level(spec: Mapping[str, Any]) -> bool:
    before = spec.get("pre_tokenizer") or {}
    steps = before["pretokenizers"] if before.get("type") == "Sequence" else [before]
    *splits, last = steps
    if len(splits) > 1 or last.get("type") != "ByteLevel" or bool(splits) is bool(last.get("use_regex", True)):
        return False
    isolated = all(
        split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
        for split in splits
    )
    patterns = [(split.get("pattern") or {}).get("Regex") for split in splits]
    return (
        isolated
        and all(pattern in SPLITS for pattern in patterns)
        and (spec.get("normalizer") or {"type": "NFC"})["type"] == "NFC"
        and spec["model"].get("type") == "BPE"
        and not spec["model"].get("dropout")
    )
