"""The whole of ``rmscore verify``: read, score with every backend, compare, and show one table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from rmscore.backends import Settings, find, specs
from rmscore.checkpoint import RewardModel, open_checkpoint
from rmscore.encode import encode, load_encoder
from rmscore.errors import EngineMissing, RmscoreError, RowError, SettingError
from rmscore.parity import ParityReport, parity
from rmscore.progress import counting
from rmscore.rows import read_rows
from rmscore.tolerance import MAX_DELTA, RANKED_DELTA_OF_SPREAD, RANKED_FLIPS, RANKED_KENDALL_TAU
from rmscore.types import Chat, Exchange, Row, Text
from rmscore.verify import PROBES, Check, check, reference_scores

SAME_SCALE = 0.05
"""Slope of scores over reference scores within which the scale is right."""


def verify_all(
    model: str,
    rows: str,
    backends: Sequence[str],
    settings: Settings,
    *,
    limit: int | None,
    max_length: int | None,
    truncation: str | None,
    allow_missing_specials: bool,
    console: Console,
) -> bool:
    """Print the table and return whether everything passed. What cannot even start is raised as RmscoreError."""
    names = _names(backends, settings)
    checkpoint = open_checkpoint(model)
    encoder = load_encoder(
        checkpoint, max_tokens=max_length, truncation=truncation, allow_missing_specials=allow_missing_specials
    )
    found = list(read_rows(rows, limit=limit))
    if not found:
        raise RowError(f"{rows}: holds no rows, so there is nothing to verify")
    encoded = encode(encoder, found)
    with counting("reference", len(found)) as tick:
        reference = reference_scores(checkpoint, encoded, settings.threads, tick)
    checks: list[Check] = []
    failures: list[str] = []
    for name in names:
        with counting(name, len(found)) as tick:
            try:
                checks.append(check(checkpoint, found, encoded, reference, name, settings, tick))
            except RmscoreError as error:
                failures.append(f"{name}: {error}")
    console.print(_heading(checkpoint, found, settings))
    console.print(_table(checks))
    for line in [*_remarks(checks), *(f"failed: {line}" for line in failures)]:
        console.print(line, markup=False, highlight=False)
    tokens_agree = _tokenizers(checkpoint, found, console)
    passed = tokens_agree and not failures and all(each.passes for each in checks)
    console.print("everything passed" if passed else "FAILED", style="bold green" if passed else "bold red")
    return passed


def _names(backends: Sequence[str], settings: Settings) -> list[str]:
    if backends:
        for name in backends:
            find(name, settings)
        return list(backends)
    names = []
    for name in specs():
        try:
            find(name, settings)
        except (EngineMissing, SettingError):
            continue
        names.append(name)
    if not names:
        raise SettingError(
            f"no installed backend runs {settings.precision} on {settings.device}; see `rmscore backends`"
        )
    return names


def _heading(model: RewardModel, rows: Sequence[Row], settings: Settings) -> str:
    return f"{model.architecture}, {len(rows)} rows, {settings.device} {settings.precision}, {settings.threads} threads"


def _table(checks: Sequence[Check]) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("backend", "max |Δ|", "τ", "flips", "order", "batch", "padding", ""):
        table.add_column(title, justify="left" if title in ("backend", "") else "right", no_wrap=True)
    for each in checks:
        agreed = each.agreement
        flips = "–" if agreed.flips is None else f"{agreed.flips:.1%}"
        invariances = (each.permutation, each.batch, each.padding)
        table.add_row(
            each.backend, f"{agreed.max_abs_delta:.1e}", f"{agreed.kendall_tau:.4f}", flips,
            *(f"{value:.1e}" for value in invariances), "pass" if each.passes else "FAIL",
            style=None if each.passes else "red",
        )  # fmt: skip
    return table


def _remarks(checks: Sequence[Check]) -> list[str]:
    lines = [
        f"order, batch, padding: largest difference on {PROBES} rows scored backwards, alone, and with more padding",
    ]
    for kind in dict.fromkeys((each.settings.device, each.effective_precision) for each in checks):
        limit = MAX_DELTA.get(kind)
        lines.append(
            f"{kind[0]} {kind[1]}: at most {limit:g}"
            if limit is not None
            else f"{kind[0]} {kind[1]}: max |Δ| at most {RANKED_DELTA_OF_SPREAD} of the spread of scores, "
            f"τ at least {RANKED_KENDALL_TAU}, flips at most {RANKED_FLIPS:.0%}"
        )
    for each in checks:
        if each.effective_precision != each.settings.precision:
            lines.append(f"{each.backend} ran in {each.effective_precision}, not in {each.settings.precision}")
        if abs(each.agreement.scale - 1) > SAME_SCALE and each.agreement.kendall_tau > RANKED_KENDALL_TAU:
            lines.append(f"{each.backend}: same order, wrong scale ({each.agreement.scale:.3g} times the reference)")
    return lines


def _texts(rows: Sequence[Row]) -> list[str]:
    texts: list[str] = []
    for row in rows:
        content = row.content
        if isinstance(content, Text):
            texts += [content.text] if content.pair is None else [content.text, content.pair]
        elif isinstance(content, Exchange):
            texts += [content.prompt, content.response]
        elif isinstance(content, Chat):
            texts += [turn.content for turn in content.turns]
    return list(dict.fromkeys(texts))


def _tokenizers(model: RewardModel, rows: Sequence[Row], console: Console) -> bool:
    report: ParityReport = parity(model.folder, _texts(rows))
    for line in report.lines():
        console.print(line, markup=False, highlight=False)
    return report.passes
