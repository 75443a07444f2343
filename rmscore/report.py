"""Says what was found: Comparison → terminal, Markdown, JSON, in plain words and without unproven claims."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rmscore.compare import METRICS, Comparison, Estimate, Pair, Summary, Verdict
from rmscore.errors import ResultError
from rmscore.results import Cell, rows_needed

try:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise ResultError("reports need rich: pip install 'rmscore[cli]'") from missing

SCHEMA = "rmscore-comparison/1"
_SWAPPED: dict[Verdict, Verdict] = {"faster": "slower", "slower": "faster"}
_STYLE = {"faster": "green", "slower": "red", "same": "cyan", "unclear": "yellow"}
_GAP = 2  # columns of space between two columns of a table
_NONE = "–"
_DIGITS = 5  # as many digits after the point are written as a power of ten
_LAST_WORDS = 200  # characters of a failed launch's last words that are shown


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its title and the text of each row; a ``key`` says what a row is about."""

    title: str
    values: Sequence[str]
    key: bool = False

    @property
    def width(self) -> int:
        """Characters of the widest text."""
        return max(map(len, (self.title, *self.values)))


def terminal(comparison: Comparison, width: int | None = None) -> RenderableType:
    """Return what rich prints: the answer, the cells, the comparisons, the notes.

    ``width`` is in characters (default: the terminal's). A table too wide for it continues in another with the same
    rows; no cell of a table is ever wrapped.
    """
    width = width or shutil.get_terminal_size().columns
    parts: list[RenderableType] = [Text(headline(comparison), style="bold")]
    parts += [_coloured(line) for line in sentences(comparison)]
    columns, fixed = _cells(comparison)
    parts += [Text(), Text("; ".join(fixed), style="dim"), *_tables(columns, width)]
    for title, group in _comparisons(comparison):
        parts += [Text(), Text(title), *_tables(group, width)]
    parts += [Text(), *(Text(f"- {line}") for line in notes(comparison))]
    return Group(*parts)


def markdown(comparison: Comparison) -> str:
    """Return a pull-request comment: the answer first, then tables and notes."""
    columns, fixed = _cells(comparison)
    lines = [f"### {_escaped(headline(comparison))}", ""]
    lines += [f"- {_escaped(line)}" for line in sentences(comparison)]
    lines += ["", _escaped("; ".join(fixed)), "", *_markdown_table(columns)]
    for title, group in _comparisons(comparison):
        lines += ["", f"**{_escaped(title)}**", "", *_markdown_table(group)]
    lines += ["", *(f"- {_escaped(line)}" for line in notes(comparison))]
    return "\n".join(lines).rstrip() + "\n"


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON-ready data of the schema that ``schema`` names; what is unknown is null."""
    runs = [run for run in (comparison.base, comparison.candidate) if run is not None]
    return {
        "schema": SCHEMA,
        "verdict": comparison.verdict,
        "metric": comparison.metric,
        "margin": comparison.margin,
        "runs": [{"path": str(run.path), "sha256": run.digest, "environment": run.environment} for run in runs],
        "model_hash": comparison.base.model_hash,
        "rows_hash": comparison.base.rows_hash,
        "cells": [asdict(each) | {"refused": _refused(each)} for each in comparison.cells],
        "comparisons": [asdict(each) | {"launches": list(each.launches)} for each in comparison.pairs],
        "new": [asdict(cell) for cell in comparison.new],
        "gone": [asdict(cell) for cell in comparison.gone],
        "differences": list(comparison.differences),
        "failures": [asdict(each) | {"side": side} for side, each in comparison.failures],
    }


def headline(comparison: Comparison) -> str:
    """Return the answer in one line; a winner is named only where every comparison with it proves it."""
    pairs = _ranked(comparison)
    if not pairs:
        return "nothing to compare: one cell in one file"
    if comparison.candidate is not None:
        words = [pair.verdict for pair in comparison.pairs]
        counts = ", ".join(f"{words.count(word)} {word}" for word in _STYLE if word in words)
        return f"{comparison.verdict}: of {len(words)} cells in both files {counts}"
    name, rivals = _name(comparison), [pair for pair in pairs if pair.verdict != "faster"]
    first = name(pairs[0].candidate)
    if not rivals and len(pairs) == len(comparison.base.cells) - 1:
        return f"fastest: {first}"
    if not rivals:
        return f"{first} leads; only comparisons with {name(pairs[0].base)} were made"
    return f"{first} leads, no winner: {', '.join(f'{pair.verdict} against {name(pair.base)}' for pair in rivals)}"


def sentences(comparison: Comparison) -> list[str]:
    """Return one sentence a comparison: of two runs all, of one run those with the leading cell."""
    name, at = _name(comparison), "" if comparison.metric == "rows_per_second" else f" at {comparison.metric}"
    lines = []
    for pair in _ranked(comparison):
        two = comparison.candidate is not None
        who, whom = ("the candidate", "the base") if two else (name(pair.candidate), name(pair.base))
        start = f"{name(pair.base)}: " if two else ""
        why = f": {pair.reason}" if pair.reason else f" within {_share(comparison.margin)}"
        suffix = why if pair.verdict in {"unclear", "same"} else ""
        lines.append(f"{start}{who} is {_ratio(pair)} as fast{at} as {whom} ({pair.verdict}{suffix})")
    return lines


def notes(comparison: Comparison) -> list[str]:
    """Return what a reader must know beside the figures, one line each."""
    refused = {(name, needed, each.rows) for each in comparison.cells for name, needed in _refused(each).items()}
    lines = [f"{name} refused: it needs {needed} rows, there are {rows}" for name, needed, rows in sorted(refused)]
    if any(pair.detectable is not None for pair in comparison.pairs):
        lines.append("detectable: the smallest difference these launches would have shown (80 % power, two-sided 5 %)")
        tested = sum(pair.p is not None for pair in comparison.pairs)
        lines.append(f"p: Welch's t on log time over launches, Holm-adjusted over {tested} comparisons")
    unchecked = dict.fromkeys(str(each.cell) for each in comparison.cells if each.max_abs_delta is None)
    lines += [f"scores not checked against the reference: {', '.join(unchecked)}"] if unchecked else []
    lines += [f"only in the candidate: {cell}" for cell in comparison.new]
    lines += [f"only in the base: {cell}" for cell in comparison.gone]
    lines += [f"differs: {_plain(line)}" for line in comparison.differences]
    for side, failure in comparison.failures:
        words = _plain(failure.last_words)[-_LAST_WORDS:] or "no last words"
        lines.append(f"launch {failure.launch} of {_plain(failure.cell)} failed ({side}): {words}")
    return lines


def _ranked(comparison: Comparison) -> list[Pair]:
    """Return the pairs to speak about; those of one run are turned so that the leading cell is the candidate."""
    if comparison.candidate is not None:
        return list(comparison.pairs)
    speeds = {pair.candidate: pair.ratio for pair in comparison.pairs if pair.base == comparison.pairs[0].base}
    leader = max(speeds, key=speeds.__getitem__, default=None)
    if leader is not None and speeds[leader] < 1:
        leader = comparison.pairs[0].base
    turned = [_swapped(pair) if pair.base == leader else pair for pair in comparison.pairs]
    return sorted((pair for pair in turned if pair.candidate == leader), key=lambda pair: pair.ratio)


def _swapped(pair: Pair) -> Pair:
    """Return the same comparison seen from the other side."""
    low, high = (None if bound is None else 1 / bound for bound in (pair.high, pair.low))
    turned = replace(pair, base=pair.candidate, candidate=pair.base, launches=pair.launches[::-1])
    return replace(turned, ratio=1 / pair.ratio, low=low, high=high, verdict=_SWAPPED.get(pair.verdict, pair.verdict))


def _name(comparison: Comparison) -> Callable[[Cell], str]:
    """Return what names a cell: backend and batching, with device and precision only where cells differ in them."""
    cells = {*(each.cell for each in comparison.cells)}
    shown = [part for part in ("device", "precision") if len({getattr(cell, part) for cell in cells}) > 1]
    return lambda cell: " ".join(getattr(cell, part) for part in ("backend", *shown, "batching"))


def _cells(comparison: Comparison) -> tuple[list[Column], list[str]]:
    """Return the columns about cells, and as text whatever is the same for all of them."""
    order = [*comparison.base.cells, *comparison.new]  # the two runs of a cell stand below each other
    name, cells, fixed = _name(comparison), sorted(comparison.cells, key=lambda each: order.index(each.cell)), []
    for part in ("device", "precision"):
        values = {getattr(each.cell, part) for each in cells}
        fixed += [f"{part} {value}" for value in values if len(values) == 1]
    fixed.append(f"{cells[0].rows} rows")
    columns = [Column("cell", [name(each.cell) for each in cells], key=True)]
    columns += [Column("run", [each.side[:4] for each in cells], key=True)] if comparison.candidate else []
    columns.append(Column("rows/s [95 %]", [_interval(each.rows_per_second) for each in cells]))
    columns.append(Column("p50 ms [95 %]", [_interval(each.p50, 1000) for each in cells]))
    optional = [Column(title, [show(each) for each in cells]) for title, show in _OPTIONAL.items()]
    for column in (column for column in optional if set(column.values) != {_NONE}):
        if len(cells) > 1 and len(set(column.values)) == 1:
            fixed.append(f"{column.title} {column.values[0]}")
        else:
            columns.append(column)
    return columns, fixed


def _comparisons(comparison: Comparison) -> list[tuple[str, list[Column]]]:
    """Return a title and the columns of each group of comparisons with one base, all groups of equal widths."""
    name, two = _name(comparison), comparison.candidate is not None
    groups: dict[str, list[Pair]] = {}
    for pair in comparison.pairs:
        title = "candidate against base" if two else f"against {name(pair.base)}"
        groups.setdefault(f"{title}, {comparison.metric.replace('_per_second', '/s')}", []).append(pair)
    texts: dict[str, Callable[[Pair], str]] = {
        "cell": lambda pair: name(pair.candidate),
        "times as fast": _ratio,
        "verdict": lambda pair: pair.verdict,
        "p": lambda pair: _p(pair.holm_p),
        "detectable": lambda pair: _NONE if pair.detectable is None else _share(pair.detectable - 1),
    }

    def column(title: str, show: Callable[[Pair], str], pairs: Sequence[Pair]) -> Column:
        width = max(len(show(pair)) for pair in comparison.pairs)
        return Column(title, [show(pair).ljust(width) for pair in pairs], key=title == "cell")

    return [(title, [column(*text, pairs) for text in texts.items()]) for title, pairs in groups.items()]


def _tables(columns: Sequence[Column], width: int) -> list[RenderableType]:
    """Return one table, or as many as it takes to stay within ``width``, each with the key columns."""
    keys, rest = [each for each in columns if each.key], [each for each in columns if not each.key]
    tables: list[RenderableType] = []
    while rest:
        taken = [*keys, rest.pop(0)]
        while rest and sum(each.width + _GAP for each in taken) + rest[0].width <= width:
            taken.append(rest.pop(0))
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for column in taken:
            table.add_column(Text(column.title), no_wrap=True, min_width=column.width)
        for row in zip(*(column.values for column in taken), strict=True):
            table.add_row(*(Text(value, style=_STYLE.get(value.strip(), "")) for value in row))
        tables += [Text()] * bool(tables) + [table]
    return tables


def _markdown_table(columns: Sequence[Column]) -> list[str]:
    texts = [[_escaped(text) for text in (column.title, *column.values)] for column in columns]
    head, *rows = [f"| {' | '.join(row)} |" for row in zip(*texts, strict=True)]
    return [head, "| --- " * len(columns) + "|", *rows]


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, no mention of a user, no reference to an issue."""
    return re.sub(r"([\\`*_{}\[\]<>|#@~])", r"\\\1", text).replace(r"\@", "@\u200b").replace(r"\#", "#\u200b")


def _plain(text: str) -> str:
    """Return the text as one line without control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _coloured(line: str) -> Text:
    text = Text(line)
    text.highlight_regex(rf"(?<=\()({'|'.join(_STYLE)})\b", lambda word: _STYLE[word])
    return text


def _refused(summary: Summary) -> dict[str, int]:
    """Return the percentiles that the rows could not carry, and how many rows each needs."""
    return {name: rows_needed(q) for name, q in METRICS.items() if q is not None and getattr(summary, name) is None}


def _figure(value: float) -> str:
    """Return three significant digits, thousands in full."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits)}f}" if digits < _DIGITS else f"{value:.3g}"


def _interval(estimate: Estimate | None, scale: float = 1) -> str:
    if estimate is None:
        return _NONE
    values = (estimate.mean, estimate.low, estimate.high)
    mean, *bounds = (_figure(value * scale) for value in values if value is not None)
    return f"{mean} [{', '.join(bounds)}]" if bounds else mean


def _ratio(pair: Pair) -> str:
    ratio, *bounds = (_figure(value) for value in (pair.ratio, pair.low, pair.high) if value is not None)
    return f"{ratio}x [{', '.join(bounds)}]" if bounds else f"{ratio}x"


def _p(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}".replace("0.000", "<0.001")


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _gib(value: float | None) -> str:
    return _NONE if value is None else f"{_figure(value / 2**30)} GiB"


# Columns that leave the table for the line above it where all cells have the same text.
_OPTIONAL: dict[str, Callable[[Summary], str]] = {
    "launches": lambda cell: str(cell.launches),
    "p95 ms": lambda cell: "refused" if cell.p95 is None else _figure(cell.p95.mean * 1000),
    "padded": lambda cell: _NONE if cell.padded_share is None else _share(cell.padded_share),
    "max |Δ|": lambda cell: _NONE if cell.max_abs_delta is None else f"{cell.max_abs_delta:.1e}",
    "cold s": lambda cell: _NONE if cell.cold_seconds is None else _figure(cell.cold_seconds),
    "peak RSS": lambda cell: _gib(cell.peak_rss_bytes),
    "GPU memory": lambda cell: _gib(cell.gpu_bytes),
}
