"""Verdicts → the exit code of ``rmscore compare``: what fails a gate, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmscore.errors import OutputError, SettingError, nearest

if TYPE_CHECKING:
    from rmscore.compare import Comparison

VERDICTS = ("faster", "slower", "same", "unclear")


def parse_margin(text: str) -> float:
    """Read ``5%`` or ``0.05`` as a fraction."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise SettingError(f"margin {text!r}: write it as 5% or 0.05") from error


def parse_verdicts(words: Sequence[str]) -> tuple[str, ...]:
    """Check the verdicts that a gate fails on."""
    for word in words:
        if word not in VERDICTS:
            raise SettingError(f"--fail-on {word!r} is no verdict {nearest(word, VERDICTS)}")
    return tuple(words)


def failed_gate(comparison: Comparison, words: Sequence[str]) -> list[str]:
    """Return a line for everything that fails the gate; without words there is no gate.

    A cell that the candidate lost and a launch that failed there fail every gate: what is not measured is not fine.
    """
    if not words:
        return []
    lines = [
        f"{pair.candidate} is {pair.verdict} than {pair.base}"
        if pair.base != pair.candidate
        else f"{pair.candidate} is {pair.verdict}"
        for pair in comparison.pairs
        if pair.verdict in words
    ]
    if comparison.candidate is not None:
        lines += [f"{cell} is gone from {comparison.candidate.path}" for cell in comparison.gone]
    judged = "candidate" if comparison.candidate is not None else "base"
    lines += [
        f"{each.cell}, launch {each.launch}, failed: {each.last_words}"
        for side, each in comparison.failures
        if side == judged
    ]
    return lines


def write_text(path: Path, text: str) -> None:
    """Write a report; OutputError says why it cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); name another file") from error
