"""Does ``tokenizer.json`` give the ids its model was trained with? A second, independent tokenizer answers.

The reference is the folder's own SentencePiece model, or for WordPiece BERT's published algorithm
(:mod:`rmscore.wordpiece`). Scores always follow ``tokenizer.json``; where the two sides differ for a known reason, the
kind of disagreement names it:

* ``marker``: the text holds U+2581, which SentencePiece cannot tell from a space;
* ``control token``: the text spells an added token, which only ``tokenizer.json`` reads as one;
* ``normaliser``: the two make different characters or words of the same text (the code points are named);
* ``unknown policy``: one side falls back to bytes where the other says unknown;
* ``ids``: nothing explains it. This kind alone is a failure.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tokenizers

from rmscore.errors import RowError
from rmscore.tokenizer_sides import Pair, Pieces, Side, open_sides

KINDS: Final = ("marker", "control token", "normaliser", "unknown policy", "ids")
MANY_UNKNOWN: Final = 0.02
"""Share of unknown tokens from which the texts are not what the tokenizer was made for."""

_MARKER: Final = "\u2581"
_BYTE: Final = re.compile(r"<0x[0-9A-F]{2}>")
_KEPT_PER_KIND: Final = 100


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One text that the two sides read differently, ``position`` in characters from 0; ``text`` is its index."""

    text: int
    position: int
    kind: str
    ids: tuple[int, ...]
    reference_ids: tuple[int, ...]
    normalised: str
    reference_normalised: str
    detail: str


@dataclass(frozen=True, slots=True)
class ParityReport:
    """What was compared with what, and how it went; ``disagreements`` are the first hundred of each kind.

    ``unchecked`` says why nothing was compared, if so. ``compared`` is ``ids``, or ``pieces`` where the two sides
    number the same pieces differently.
    """

    reference: str = ""
    unchecked: str = ""
    compared: str = "ids"
    texts: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    counts: Mapping[str, int] | None = None
    disagreements: tuple[Disagreement, ...] = ()
    misnumbered: str | None = None
    """A piece whose number on one side is neither that on the other nor as far from it as all others'."""

    @property
    def passes(self) -> bool:
        """Whether no disagreement is left that nothing explains; so too where nothing could be compared."""
        return self.misnumbered is None and not (self.counts and self.counts.get("ids"))

    @property
    def many_unknown(self) -> bool:
        """Whether so many tokens are unknown that scores say little about the texts."""
        return self.unknown_tokens > MANY_UNKNOWN * self.tokens

    def lines(self) -> list[str]:
        """Return the report for a terminal: what was compared, how often it differed, the first case of each kind."""
        if self.unchecked:
            return [f"tokenizer not checked: {self.unchecked}"]
        counts = self.counts or {}
        found = ", ".join(f"{counts[kind]} differ by {kind}" for kind in KINDS if kind in counts)
        lines = [f"tokenizer: {self.texts} texts against {self.reference}: {found or f'the same {self.compared}'}"]
        if self.misnumbered is not None:
            lines.append(f"  the vocabularies number {self.misnumbered!r} differently: not the model's tokenizer.json")
        for kind in counts:
            first = next(each for each in self.disagreements if each.kind == kind)
            lines.append(f"  {kind}: text {first.text}, character {first.position}: {first.detail}")
        if self.many_unknown:
            share = self.unknown_tokens / self.tokens
            lines.append(
                f"  {share:.1%} of the tokens are unknown: these texts are not what the tokenizer was made for"
            )
        return lines


def parity(folder: Path, texts: Iterable[str]) -> ParityReport:
    """Compare the folder's ``tokenizer.json`` with its reference on every text; texts are not kept.

    Normalised texts are compared too: a small vocabulary hides a difference by making both sides unknown. Raises
    CheckpointError for a tokenizer that cannot be loaded, RowError for a text that is no Unicode text.
    """
    pair = open_sides(folder)
    if isinstance(pair, str):
        return ParityReport(unchecked=pair)
    counts: Counter[str] = Counter()
    found: list[Disagreement] = []
    number = tokens = unknown = 0
    for number, text in enumerate(texts, 1):
        _check_text(text, number - 1)
        ours = pair.ours.pieces(text)
        tokens += len(ours)
        unknown += ours.count(None)
        if ours != pair.reference.pieces(text) or not pair.same_words(text):
            disagreement = _explain(pair, text, number - 1)
            counts[disagreement.kind] += 1
            if counts[disagreement.kind] <= _KEPT_PER_KIND:
                found.append(disagreement)
    return ParityReport(
        pair.name, "", pair.compared(), number, tokens, unknown, counts, tuple(found), pair.misnumbered()
    )


def same_to_tokenizer(tokenizer: tokenizers.Tokenizer, first: str, second: str) -> bool:
    """Return whether two texts get the same ids, so that no model can score them differently; nothing is cut."""
    if tokenizer.truncation is not None:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())  # the setting is the caller's to keep
        tokenizer.no_truncation()
    encodings = [tokenizer.encode(text, add_special_tokens=False) for text in (first, second)]
    return bool(encodings[0].ids == encodings[1].ids)


def _check_text(text: str, index: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"text {index}: holds half a character at {error.start}; write it as UTF-8") from error


def _explain(pair: Pair, text: str, index: int) -> Disagreement:
    rest, causes = _without_known_causes(pair, text)
    if causes and pair.agree(rest):
        kind, position, detail = causes[0], _first_difference(pair, text), "without it the two sides agree"
    else:
        kind, position, detail = _compare(pair, rest)
    return Disagreement(
        index,
        position,
        kind,
        tuple(pair.ours.ids(text)),
        tuple(pair.reference.ids(text)),
        pair.ours.normalised(text),
        pair.reference.normalised(text),
        detail,
    )


def _without_known_causes(pair: Pair, text: str) -> tuple[str, list[str]]:
    """Blank out markers and added tokens, positions kept; return the text and the kinds that were in it."""
    causes = []
    if _MARKER in text and pair.reference.words(f"a{_MARKER}a") == ["a", "a"]:  # no space to WordPiece
        causes = ["marker"]
        text = text.replace(_MARKER, " ")
    encoding = pair.tokenizer.encode(text, add_special_tokens=False)
    for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        spelled = index in pair.added and (index != pair.ours.unknown or text[start:end].strip() == pair.added[index])
        if spelled:
            text = text[:start] + " " * (end - start) + text[end:]
            causes.append("control token")
    return text, causes


def _compare(pair: Pair, text: str) -> tuple[str, int, str]:
    """Return kind, position and detail for a text without markers and added tokens."""
    if not pair.same_words(text):
        start, end = _smallest_difference(pair, text)
        window = text[start:end]
        points = " ".join(f"U+{ord(character):04X}" for character in window[:8])
        if _squeezed(pair.ours, text) != _squeezed(pair.reference, text) or any(map(_disputed, window)):
            cured = pair.same_words(_nfc(text))
            hint = "normalise texts to NFC first" if cured else "normalising to NFC first does not cure it"
            return "normaliser", start, f"{points}: {hint}"
        return "ids", start, f"{points}: cut into other words"
    position = _first_difference(pair, text)
    if pair.agree(pair.reference.normalised(text)):
        return "normaliser", position, "white space"
    ours, reference = (_without_bytes(side.pieces(text)) for side in (pair.ours, pair.reference))
    if ours == reference:
        return "unknown policy", position, "one side falls back to bytes or counts unknowns apart, the other does not"
    return "ids", position, "the same normalised text gives other pieces"


def _disputed(character: str) -> bool:
    """Return whether versions of Unicode class a character differently: the two sides may each follow their own."""
    return unicodedata.category(character) != unicodedata.ucd_3_2_0.category(character)


def _without_bytes(pieces: Pieces) -> Pieces:
    """Make each run of bytes and unknowns one unknown."""
    out: Pieces = []
    for piece in pieces:
        known = None if piece is None or _BYTE.fullmatch(piece) else piece
        if known is not None or not out or out[-1] is not None:
            out.append(known)
    return out


def _first_difference(pair: Pair, text: str) -> int:
    """Return the character at which the first piece that differs begins."""
    ours, reference = pair.ours.pieces(text), pair.reference.pieces(text)
    same = next((i for i, (a, b) in enumerate(zip(ours, reference, strict=False)) if a != b), len(ours))
    offsets = pair.tokenizer.encode(text, add_special_tokens=False).offsets
    same = min(same, len(reference), len(ours))
    return int(offsets[same][0] if same < len(offsets) else offsets[-1][1] if offsets else 0)


def _smallest_difference(pair: Pair, text: str) -> tuple[int, int]:
    """Return start and end of a part that differs, and not without its first or last character; or composes further."""
    end = _bisect(len(text), lambda end: pair.same_words(text[:end]))
    length = _bisect(end, lambda length: pair.same_words(text[end - length : end]))
    start = end - length
    while end < len(text) and len(_nfc(text[start : end + 1])) == len(_nfc(text[start:end])):
        end += 1
    return start, end


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _bisect(high: int, same: Callable[[int], bool]) -> int:
    """Return a size at which ``same`` is false and true one below; it is true at 0 and false at ``high``."""
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if same(middle) else (low, middle)
    return high


def _squeezed(side: Side, text: str) -> list[str]:
    return side.normalised(text).split()
