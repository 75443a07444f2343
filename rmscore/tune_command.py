"""The whole of ``rmscore tune``: measure with the suite, show one table, write the plan that ``auto`` uses."""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rmscore.checkpoint import RewardModel, open_checkpoint
from rmscore.errors import BackendError, RowError, SettingError
from rmscore.launch import WorkerFailure, cuda_works
from rmscore.results import Cell
from rmscore.rows import read_rows
from rmscore.suite import Suite, SuiteSettings, open_suite
from rmscore.tolerance import Agreement
from rmscore.tune import Limits, Trial, candidates, in_the_race, measure, ranked, ratio, rival
from rmscore.tuned import Choice, Plan, facts, identity, write
from rmscore.worker import Outcome

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """The settings of one tuning; empty lists and 0 threads mean the defaults, ``limit`` 0 all rows."""

    model: str
    rows: str
    backends: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    batching: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int = 0
    limit: int = 60
    budget_seconds: float = 300.0
    limits: Limits = Limits()  # noqa: RUF009 - frozen


def tune(settings: TuneSettings, *, say: Say, console: Console) -> Path:
    """Measure, print the table and return the plan's path.

    What cannot start, and a run in which no candidate is left, is raised as RmscoreError. Ctrl-C is told in a line and
    raised again; no plan is written then.
    """
    model = open_checkpoint(settings.model)
    if settings.device == "cuda" and not cuda_works():
        raise SettingError("device 'cuda': PyTorch sees no CUDA device here; use --device cpu")
    cells, left_out = candidates(
        model.architecture, settings.device, backends=settings.backends, precisions=settings.precisions,
        batching=settings.batching, limits=settings.limits,
    )  # fmt: skip
    rows = _count_rows(settings)
    for line in left_out:
        say(line)
    with tempfile.TemporaryDirectory(prefix="rmscore-tune-") as scratch:
        suite = open_suite(_suite_settings(settings, cells), Path(scratch))
        suite.say = say
        trials = _measured(suite, cells, settings, say)
    best_first = ranked(trials)
    if not best_first:
        raise BackendError(f"no candidate is left of {len(trials)}: {trials[-1].dropped}")
    today = dt.datetime.now().astimezone().date().isoformat()
    choices = _choices(best_first, f"tuned {today} on {rows} rows of {Path(settings.rows).name}")
    path = write(_plan(model, suite, settings, trials, choices, today))
    _show(trials, choices[0], console)
    say(f"{path}: written; score and rmscore.load use it on {settings.device} with --threads {suite.threads}")
    return path


def _count_rows(settings: TuneSettings) -> int:
    """Read the rows before anything is launched: a mistake in them, or none to count flips over, is told at once."""
    if not Path(settings.rows).is_file():
        raise RowError(f"{settings.rows}: no such file; tune needs rows in a file that every launch can read")
    rows = list(read_rows(settings.rows, limit=settings.limit or None))
    if not rows:
        raise RowError(f"{settings.rows}: holds no rows, so there is nothing to measure")
    if settings.limits.max_flips is not None and not any(row.side for row in rows):
        raise SettingError(f"--max-flips counts preference pairs, and {settings.rows} has none; use --max-delta")
    return len(rows)


def _suite_settings(settings: TuneSettings, cells: Sequence[Cell]) -> SuiteSettings:
    return SuiteSettings(
        settings.model, settings.rows,
        backends=tuple(dict.fromkeys(f"{cell.backend}@{cell.batching}" for cell in cells)),
        devices=(settings.device,),
        precisions=tuple(dict.fromkeys(cell.precision for cell in cells)),
        limit=settings.limit, threads=settings.threads,
    )  # fmt: skip


def _measured(suite: Suite, cells: Sequence[Cell], settings: TuneSettings, say: Say) -> list[Trial]:
    started = time.monotonic()
    done = 0

    def launch(cell: Cell, number: int) -> tuple[Outcome, Agreement]:
        try:
            return suite.run(cell, number)
        except WorkerFailure as error:
            if isinstance(suite.reference, WorkerFailure):  # without a judge there is nothing to tune by
                raise BackendError(str(suite.reference)) from error
            raise WorkerFailure(f"the worker {error.__cause__}") from error

    def tell(trial: Trial, number: int) -> None:
        nonlocal done
        done += 1
        rate = f"{_figure(1 / trial.seconds_per_row[-1])} rows/s" if trial.seconds_per_row else ""
        result = f"DROPPED: {trial.dropped}" if trial.dropped else rate
        say(f"[{time.monotonic() - started:4.0f} s] launch {number + 1}  {_name(trial.cell):30}  {result}")

    try:
        return measure(cells, launch, settings.limits, budget_seconds=settings.budget_seconds, tell=tell)
    except KeyboardInterrupt:
        say(f"stopped at launch {done + 1}, with {len(cells)} candidates; no plan was written")
        raise


def _name(cell: Cell) -> str:
    return f"{cell.backend} {cell.precision} {cell.batching}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - three digits would need an exponent


def _choices(best_first: Sequence[Trial], start: str) -> tuple[Choice, ...]:
    """Return the fastest of each precision, the fastest of all first."""
    choices: dict[str, Choice] = {}
    for trial in best_first:
        precision = trial.cell.precision
        if precision in choices:
            continue
        pool = [each for each in best_first if not choices or each.cell.precision == precision]
        because = f"{start}: {_sentence(trial, rival(trial, pool))}; {_agreement(trial)}"
        choices[precision] = Choice(trial.cell.backend, precision, trial.cell.batching, because)
    return tuple(choices.values())


def _sentence(best: Trial, other: Trial | None) -> str:
    if other is None:
        return "the only candidate within the limits"
    times, low, high = ratio(best, other)
    interval = "(too few launches for an interval)" if low is None else f"[{low:.2f}, {high:.2f}]"
    return f"{times:.2f}x {interval} as fast as {_name(other.cell)}"


def _agreement(trial: Trial) -> str:
    delta = f"max |Δ| {trial.max_abs_delta:.1e}"
    if trial.cell.precision == "fp32":
        return delta
    flips = "" if trial.flips is None else f", flips {trial.flips:.2%}"
    return f"{delta}, τ {trial.kendall_tau:.4f}{flips}"


def _plan(
    model: RewardModel, suite: Suite, settings: TuneSettings, trials: Sequence[Trial], choices: tuple[Choice, ...],
    today: str,
) -> Plan:  # fmt: skip
    folder, size = identity(model)
    measured: list[dict[str, Any]] = [asdict(trial) for trial in trials]
    return Plan(
        suite.model_hash, folder, size, settings.device, suite.threads, facts(settings.device), today, choices, measured
    )


def _show(trials: Sequence[Trial], chosen: Choice, console: Console) -> None:
    """Print the candidates, the fastest first, what was dropped and why, and the choice."""
    best_first = ranked(trials)
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("candidate", "rows/s [95 %]", "launches", "max |Δ|", "τ", "flips"):
        left = title in {"candidate", "rows/s [95 %]"}
        table.add_column(title, justify="left" if left else "right", no_wrap=title != "candidate", overflow="fold")
    for trial in [*best_first, *(each for each in trials if each.dropped and each.seconds_per_row)]:
        rate, low, high = trial.rows_per_second()
        flips = "–" if trial.flips is None else f"{trial.flips:.1%}"
        table.add_row(
            _name(trial.cell),
            _figure(rate) if low is None or high is None else f"{_figure(rate)} [{_figure(low)}, {_figure(high)}]",
            str(len(trial.seconds_per_row)), f"{trial.max_abs_delta:.1e}", f"{trial.kendall_tau:.4f}", flips,
            style="red" if trial.dropped else "bold" if trial is best_first[0] else None,
        )  # fmt: skip
    console.print(table)
    lines = [f"dropped: {_name(each.cell)}: {each.dropped}" for each in trials if each.dropped]
    close = [_name(each.cell) for each in in_the_race(trials) if each is not best_first[0]]
    if close and best_first[0].rows_per_second()[1] is None:
        lines.append("one launch each, so no intervals: the first launches spent the --budget")
    elif close:
        lines.append(f"not told apart from the fastest: {', '.join(close)}")
    for line in [*lines, f"chosen: {chosen.backend} {chosen.precision} {chosen.batching}, {chosen.because}"]:
        console.print(line, markup=False, highlight=False)
