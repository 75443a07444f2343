"""Scores of preference pairs → how often the chosen side wins, with everything that is no clean win or loss apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rmscore.errors import SettingError, nearest
from rmscore.types import Chat, Encoded, Exchange, Row, RowId, Text

TIES = ("half", "excluded")


@dataclass(slots=True)
class Preference:
    """Counts of pairs. Every pair is in one of the first five; the last three say what is odd about the data.

    ``not_scored`` has a NaN on either side. ``identical`` has sides that are the same to the model, after encoding and
    cutting: no model can tell them apart, so they say nothing about this one. ``unpaired`` counts halves, not pairs.
    """

    wins: int = 0
    losses: int = 0
    ties: int = 0
    not_scored: int = 0
    identical: int = 0
    unpaired: int = 0
    empty_responses: int = 0
    """Halves whose response is empty or white space."""
    unequal_prompts: int = 0
    """Pairs whose sides answer different prompts."""
    identical_sides: int = 0
    """Pairs whose sides are the same text; ``identical`` counts them too."""

    @property
    def pairs(self) -> int:
        """Pairs that were joined."""
        return self.wins + self.losses + self.ties + self.not_scored + self.identical

    def accuracy(self, ties: str = "half") -> float | None:
        """Return the share of compared pairs that chosen wins, None where there are none.

        A tie counts as half a win, or with ``excluded`` not at all; pairs not scored and identical ones never count.
        """
        if ties not in TIES:
            raise SettingError(f"ties {ties!r} {nearest(ties, TIES)}")
        weight = 1 if ties == "half" else 0
        compared = self.wins + self.losses + weight * self.ties
        return (self.wins + 0.5 * weight * self.ties) / compared if compared else None


@dataclass(frozen=True, slots=True, eq=False)
class _Half:
    row: Row
    score: float
    encoded: Encoded | None


@dataclass(slots=True)
class PreferenceTally:
    """Counts preference pairs while their rows stream by; memory holds the halves of two groups at most.

    The halves of a pair may come in any order within a group of rows or in two neighbouring groups.
    """

    counts: Preference = field(default_factory=Preference)
    _before: dict[RowId, _Half] = field(default_factory=dict)
    _waiting: dict[RowId, _Half] = field(default_factory=dict)

    def add(self, rows: Sequence[Row], scores: Sequence[float], encoded: Sequence[Encoded | None] = ()) -> None:
        """Count a group: one score a row, and what the rows were encoded to, so that identical pairs are seen.

        Rows that are no half of a pair are passed over. Raises SettingError for scores of several objectives.
        """
        if np.ndim(scores) != 1:
            raise SettingError(f"preference needs one score a row, not {np.shape(scores)[1:]}; choose one objective")
        for row, score, ids in zip(rows, scores, encoded or (None,) * len(rows), strict=True):
            if row.side is not None and row.pair is not None:
                self._add(_Half(row, float(score), ids), row.pair)
        self.counts.unpaired += len(self._before)
        self._before, self._waiting = self._waiting, {}

    def finish(self) -> Preference:
        """Return the counts, with the halves that are still waiting as unpaired."""
        self.counts.unpaired += len(self._before)
        self._before = {}
        return self.counts

    def _add(self, half: _Half, pair: RowId) -> None:
        self.counts.empty_responses += not _response(half.row).strip()
        for waiting in (self._waiting, self._before):
            other = waiting.get(pair)
            if other is not None and other.row.side != half.row.side:
                del waiting[pair]
                self._join(*((half, other) if half.row.side == "chosen" else (other, half)))
                return
        self.counts.unpaired += pair in self._waiting
        self._waiting[pair] = half

    def _join(self, chosen: _Half, rejected: _Half) -> None:
        counts = self.counts
        same_text = chosen.row.content == rejected.row.content
        counts.unequal_prompts += _prompt(chosen.row) != _prompt(rejected.row)
        counts.identical_sides += same_text
        if math.isnan(chosen.score) or math.isnan(rejected.score):
            counts.not_scored += 1
        elif same_text or same_to_model(chosen.encoded, rejected.encoded):
            counts.identical += 1
        elif chosen.score == rejected.score:
            counts.ties += 1
        elif chosen.score > rejected.score:
            counts.wins += 1
        else:
            counts.losses += 1


def same_to_model(first: Encoded | None, second: Encoded | None) -> bool:
    """Return whether two encoded rows are the same ids and segments; False where one is not known."""
    if first is None or second is None:
        return False
    return np.array_equal(first.ids, second.ids) and np.array_equal(first.type_ids, second.type_ids)


def _prompt(row: Row) -> object:
    return row.content.prompt if isinstance(row.content, Exchange) else _turns(row)[:-1]


def _response(row: Row) -> str:
    if isinstance(row.content, Exchange):
        return row.content.response
    turns = _turns(row)
    return turns[-1] if turns else ""


def _turns(row: Row) -> tuple[str, ...]:
    content = row.content
    if isinstance(content, Text):
        return (content.text,) if content.pair is None else (content.text, content.pair)
    assert isinstance(content, Chat)
    return tuple(turn.content for turn in content.turns)
