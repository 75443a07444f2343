"""BERT's tokenization in plain Python, as an independent reference: basic words, then greedy longest pieces.

The algorithm is the one published with BERT (arXiv 1810.04805; ``tokenization.py`` of google-research/bert).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_CJK: Final = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_ASCII_MARKS: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@dataclass(frozen=True, slots=True)
class WordPiece:
    """The reference's settings and vocabulary. ``strip_accents`` None follows ``lowercase``, as BERT does."""

    vocabulary: Mapping[str, int]
    unknown: str = "[UNK]"
    prefix: str = "##"
    longest_word: int = 100
    """Characters; a longer word is unknown."""
    lowercase: bool = True
    strip_accents: bool | None = None
    split_cjk: bool = True
    clean: bool = True

    def normalised(self, text: str) -> str:
        """Return cleaned words, lowercased and without accents where the settings say so, one space between."""
        if self.clean:
            text = "".join(filter(None, map(_clean, text)))
        if self.split_cjk:
            text = "".join(f" {character} " if _is_cjk(character) else character for character in text)
        return " ".join(map(self._fold, text.split()))

    def words(self, text: str) -> list[str]:
        """Return the words of a text, every punctuation mark a word of its own."""
        spaced = (f" {character} " if _is_punctuation(character) else character for character in self.normalised(text))
        return "".join(spaced).split()

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text, no special tokens added."""
        return [index for word in self.words(text) for index in self._pieces(word)]

    def _fold(self, word: str) -> str:
        word = word.lower() if self.lowercase else word
        if not (self.lowercase if self.strip_accents is None else self.strip_accents):
            return word
        return "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")

    def _pieces(self, word: str) -> list[int]:
        unknown = [self.vocabulary[self.unknown]]
        if len(word) > self.longest_word:
            return unknown
        pieces: list[int] = []
        start = 0
        while start < len(word):
            prefix = self.prefix if start else ""
            ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in self.vocabulary)
            end = next(ends, None)
            if end is None:
                return unknown
            pieces.append(self.vocabulary[prefix + word[start:end]])
            start = end
        return pieces


def _clean(character: str) -> str:
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    drop = character in "\0\ufffd" or unicodedata.category(character) in {"Cc", "Cf"}
    return "" if drop else character


def _is_cjk(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _CJK)


def _is_punctuation(character: str) -> bool:
    return character in _ASCII_MARKS or unicodedata.category(character).startswith("P")
