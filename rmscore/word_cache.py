"""Ids of texts from remembered ids of their words, where the tokenizer's pipeline makes the two provably equal.

A tokenizer whose pre-tokenizer always breaks at white space encodes each word by itself, and texts repeat their words:
looking a word up costs a tenth of encoding it. Two pipelines are known to be of that kind:

* Unigram behind Metaspace with ``split`` (DeBERTa, XLM-R, T5): the text is normalised as a whole, then cut at every ▁;
* WordPiece behind BertPreTokenizer (BERT, Electra): the text is cut at spaces, which its normaliser neither joins nor
  reads across.

Every other tokenizer, and every text that spells an added token, goes the library's own way.
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

LARGEST = 200_000
"""Words remembered before starting anew: about 40 MB."""


@dataclass(slots=True)
class TextEncoder:
    """Encodes texts without special tokens. ``words`` cuts a text into words, or is None where that is not known to be safe."""

    tokenizer: tokenizers.Tokenizer
    of_words: tokenizers.Tokenizer
    words: Callable[[str], list[str]] | None
    prefix: str
    added: re.Pattern[str] | None
    memory: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the int64 ids of each text, equal to the tokenizer's own ``encode(text, add_special_tokens=False)``."""
        if self.words is None:
            return _arrays(self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False))
        cut = [None if self.added and self.added.search(text) else self.words(text) for text in texts]
        lookup = self._remember({word for words in cut if words for word in words})
        whole = iter(
            _arrays(
                self.tokenizer.encode_batch_fast(
                    [text for text, words in zip(texts, cut, strict=True) if words is None], add_special_tokens=False
                )
            )
        )
        return [
            next(whole)
            if words is None
            else np.array(list(chain.from_iterable(map(lookup.__getitem__, words))), np.int64)
            for words in cut
        ]

    def _remember(self, words: set[str]) -> Mapping[str, tuple[int, ...]]:
        """Return a mapping that holds all these words, encoding those that are new."""
        if len(self.memory) > LARGEST:
            self.memory = {}  # a new one: another thread may still read the old
        memory = self.memory
        new = list(words - memory.keys())
        if new:
            encodings = self.of_words.encode_batch_fast([self.prefix + word for word in new], add_special_tokens=False)
            memory.update(zip(new, (tuple(encoding.ids) for encoding in encodings), strict=True))
        return memory


def text_encoder(spec: Mapping[str, Any]) -> TextEncoder:
    """Return the encoder for a ``tokenizer.json`` given as parsed JSON."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
    added = spec.get("added_tokens") or []
    pattern = re.compile("|".join(re.escape(token["content"]) for token in added)) if added else None
    # an added token that is looked for in normalised text could be met across a space, or after lower-casing
    exact = not any(token.get("normalized") for token in added)
    if exact and _is_metaspace(spec):
        bare = tokenizers.Tokenizer.from_str(json.dumps({**spec, "normalizer": None, "added_tokens": []}))
        normalizer = tokenizer.normalizer
        normalize: Callable[[str], str] = normalizer.normalize_str if normalizer else str
        return TextEncoder(tokenizer, bare, lambda text: _marked_words(normalize(text)), MARKER, pattern)
    if exact and _is_bert(spec):
        return TextEncoder(tokenizer, tokenizer, lambda text: text.split(" "), "", pattern)
    return TextEncoder(tokenizer, tokenizer, None, "", pattern)


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
