"""Decides which cell is faster, and says so only where the launches prove it: Runs → Comparison (pure)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from rmscore.environment import differences, settings
from rmscore.errors import ResultError, SettingError, nearest
from rmscore.results import Cell, Failure, Measurement, Run, rows_needed

try:
    from scipy.special import stdtr, stdtrit
except ModuleNotFoundError as missing:
    raise ResultError("comparing needs scipy: pip install 'rmscore[stats]'") from missing

Verdict = Literal["faster", "slower", "same", "unclear", "nothing to compare"]
Side = Literal["base", "candidate"]

ALPHA, POWER = 0.05, 0.8  # ALPHA is the two-sided level of every interval and test
ALL_PAIRS = 8  # up to this many cells of one run are all compared with each other
METRICS = {"rows_per_second": None, "p50": 0.5, "p95": 0.95}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over launches with its 95 % t interval; one launch has no interval."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell of one run over its launches; ``p50`` and ``p95`` in seconds, None where the rows cannot carry them."""

    side: Side
    cell: Cell
    launches: int
    rows: int
    rows_per_second: Estimate | None
    p50: Estimate | None
    p95: Estimate | None
    padded_share: float | None
    max_abs_delta: float | None
    cold_seconds: float | None
    peak_rss_bytes: float | None
    gpu_bytes: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """One comparison. ``ratio`` is base time over candidate time: 1.31 means the candidate is 1.31 times as fast.

    ``low`` and ``high`` are its 95 % Welch interval, ``p`` Welch's two-sided p and ``holm_p`` the same adjusted over
    the comparisons made; ``detectable`` is the ratio the launches would have shown with 80 % power. All five are None
    where a side has fewer than two launches. ``reason`` says why a verdict is ``unclear``.
    """

    base: Cell
    candidate: Cell
    launches: tuple[int, int]
    ratio: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    holm_p: float | None = None
    detectable: float | None = None
    verdict: Verdict = "unclear"
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All that was compared; ``candidate`` is None where the cells of one run were compared with each other.

    ``new`` and ``gone`` are cells only candidate or base has; ``differences`` are lines on machines and settings.
    """

    base: Run
    candidate: Run | None
    metric: str
    margin: float
    cells: Sequence[Summary]
    pairs: Sequence[Pair]
    new: Sequence[Cell]
    gone: Sequence[Cell]
    differences: Sequence[str]
    failures: Sequence[tuple[Side, Failure]]

    @property
    def verdict(self) -> Verdict:
        """The whole run in one word for a gate: the first of these that any pair has."""
        order: tuple[Verdict, ...] = ("slower", "unclear", "faster", "same")
        return next((word for word in order if word in {pair.verdict for pair in self.pairs}), "nothing to compare")


def compare(
    base: Run,
    candidate: Run | None = None,
    *,
    margin: float = 0.05,
    metric: str = "rows_per_second",
    baseline: str | None = None,
) -> Comparison:
    """Compare equal cells of two runs, or the cells of one run with each other.

    One run: all pairs up to eight cells; above that, or where ``baseline`` names a cell (``eager one``), each against
    the baseline, by default the first in the file. ``margin`` is the difference that does not matter: a ratio whose
    interval lies inside [1/(1+margin), 1+margin] is ``same``. ``metric`` is ``rows_per_second``, ``p50`` or ``p95``.

    SettingError: no such margin, metric or baseline. ResultError: the same file twice, different models or rows, no
    cell in common, a percentile the rows cannot carry, a time that is not a positive number.
    """
    if isinstance(margin, bool) or not 0 < margin < 1:
        raise SettingError(f"a margin of {margin!r} cannot be used: give a fraction between 0 and 1, such as 0.05")
    if metric not in METRICS:
        raise SettingError(f"there is no metric {metric!r} {nearest(metric, METRICS)}")
    couples = _couples(base, baseline) if candidate is None else _common(base, candidate, baseline)
    other = candidate or base
    sides: dict[Side, Run] = {"base": base, "candidate": other} if candidate else {"base": base}
    pairs = [_pair(base.launches(a), other.launches(b), metric, (base, other)) for a, b in couples]
    return Comparison(
        base=base,
        candidate=candidate,
        metric=metric,
        margin=margin,
        cells=[_summary(side, run, cell) for side, run in sides.items() for cell in run.cells],
        pairs=_judged(pairs, margin),
        new=[cell for cell in other.cells if cell not in base.cells],
        gone=[cell for cell in base.cells if cell not in other.cells],
        differences=_differences(base, candidate),
        failures=[(side, each) for side, run in sides.items() for each in run.failures],
    )


def welch(base: NDArray[np.float64], candidate: NDArray[np.float64]) -> tuple[float, float, float, float, float]:
    """Return (difference, low, high, p, detectable) of the means of two samples with at least two values each.

    The 95 % interval and the two-sided p are Welch's (Biometrika 34, 1947; degrees of freedom: Satterthwaite 1946).
    ``detectable`` is the true difference that such samples show with 80 % power at two-sided 5 %:
    (t[df, 0.975] + t[df, 0.80]) · standard error (Zar, Biostatistical Analysis, 5th ed. 2010, section 8.4).
    Samples without any variance are certain: interval and p collapse onto the difference.
    """
    (one, a), (other, b) = _moments(base), _moments(candidate)
    difference, a, b = one - other, a / len(base), b / len(candidate)  # squared standard errors
    error = math.sqrt(a + b)
    if error == 0:
        return difference, difference, difference, float(difference == 0), 0.0
    freedom = (a + b) ** 2 / (a**2 / (len(base) - 1) + b**2 / (len(candidate) - 1))
    half = float(stdtrit(freedom, 1 - ALPHA / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(difference) / error))
    return difference, difference - half, difference + half, p, half + float(stdtrit(freedom, POWER)) * error


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjusted p in the given order (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    adjusted, reached = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = reached
    return adjusted


def _pair(a: Sequence[Measurement], b: Sequence[Measurement], metric: str, runs: tuple[Run, Run]) -> Pair:
    """Return the comparison without its verdict."""
    logs = np.log(_seconds(a, metric, runs[0])), np.log(_seconds(b, metric, runs[1]))
    pair = Pair(a[0].cell, b[0].cell, (len(a), len(b)), math.exp(_moments(logs[0])[0] - _moments(logs[1])[0]))
    if min(pair.launches) < 2:  # noqa: PLR2004 - one value has no variance
        return replace(pair, reason=f"launches {len(a)} and {len(b)}, 2 and 2 are needed")
    _, low, high, p, detectable = welch(*logs)
    return replace(pair, low=math.exp(low), high=math.exp(high), p=p, detectable=math.exp(detectable))


def _judged(pairs: Sequence[Pair], margin: float) -> list[Pair]:
    """Return the comparisons with Holm's p over those that have one, and their verdicts."""
    p_values = [pair.p for pair in pairs if pair.p is not None]
    adjusted = iter(holm(p_values))
    judged = []
    for pair in pairs:
        if pair.p is None or pair.low is None or pair.high is None:
            judged.append(pair)
            continue
        holm_p, verdict, reason = next(adjusted), "unclear", ""
        if 1 / (1 + margin) <= pair.low and pair.high <= 1 + margin:
            verdict = "same"
        elif holm_p < ALPHA:
            verdict = "faster" if pair.ratio > 1 else "slower"
        elif pair.p < ALPHA:
            reason = f"p {pair.p:.3f} is {holm_p:.3f} after Holm's correction over {len(p_values)} comparisons"
        else:
            reason = f"both no difference and one above {100 * margin:g} % remain possible"
        judged.append(replace(pair, holm_p=holm_p, verdict=cast("Verdict", verdict), reason=reason))
    return judged


def _seconds(launches: Sequence[Measurement], metric: str, run: Run) -> NDArray[np.float64]:
    """Return the statistic of each launch as a time [launches]."""
    q = METRICS[metric]
    values = [each.seconds_per_row if q is None else each.percentile(q) for each in launches]
    if q is not None and None in values:
        short = f"{metric} needs {rows_needed(q)} rows and {launches[0].cell} has {launches[0].rows}"
        raise ResultError(f"{run.path}: {short}; score more rows or compare by rows_per_second")
    if not all(value and 0 < value < math.inf for value in values):
        raise ResultError(f"{run.path}: a time of {launches[0].cell} is not a positive number; measure again")
    return np.array(values, np.float64)


def _couples(run: Run, baseline: str | None) -> list[tuple[Cell, Cell]]:
    if baseline is None and len(run.cells) <= ALL_PAIRS:
        return list(itertools.combinations(run.cells, 2))
    words = set(str(run.cells[0] if baseline is None else baseline).split())
    found = [cell for cell in run.cells if words and words <= set(str(cell).split())]
    if len(found) != 1:
        hint = nearest(str(baseline), map(str, run.cells))
        raise SettingError(f"{run.path}: {len(found)} cells are called {baseline!r}, one must be {hint}")
    return [(found[0], cell) for cell in run.cells if cell != found[0]]


def _common(base: Run, candidate: Run, baseline: str | None) -> list[tuple[Cell, Cell]]:
    if baseline is not None:
        raise SettingError(f"a baseline ({baseline!r}) is for one file; of two files the first is the baseline")
    if base.path == candidate.path or base.digest == candidate.digest:
        raise ResultError(f"{base.path} and {candidate.path} are the same file; give two runs")
    for key in ("model_hash", "rows_hash"):
        one, other = getattr(base, key), getattr(candidate, key)
        if one != other:
            where = f"{one!r} in {base.path} and {other!r} in {candidate.path}"
            raise ResultError(f"{key} is {where}; compare runs of the same model and rows")
    common = [(cell, cell) for cell in base.cells if cell in candidate.cells]
    if not common:
        cells = [f"{run.path} ({', '.join(map(str, run.cells))})" for run in (base, candidate)]
        raise ResultError(f"no cell is both in {' and in '.join(cells)}; measure the same cells")
    return common


def _summary(side: Side, run: Run, cell: Cell) -> Summary:
    launches = run.launches(cell)

    def over(how: Callable[[list[float]], float], *keys: str) -> float | None:
        """Return ``how`` over the launches' sums of the keys, None where a launch lacks one."""
        if any(each.extra.get(key) is None for each in launches for key in keys):
            return None
        return how([float(sum(each.extra[key] for key in keys)) for each in launches])

    columns, padded = over(max, "tokens", "padded_tokens"), over(max, "padded_tokens") or 0.0
    return Summary(
        side=side,
        cell=cell,
        launches=len(launches),
        rows=run.rows,
        rows_per_second=_estimate(each.rows_per_second for each in launches),
        p50=_estimate(each.p50 for each in launches),
        p95=_estimate(each.p95 for each in launches),
        padded_share=padded / columns if columns else None,
        max_abs_delta=over(max, "max_abs_delta"),
        cold_seconds=over(statistics.fmean, "load_seconds", "first_call_seconds"),
        peak_rss_bytes=over(max, "peak_rss_bytes"),
        gpu_bytes=over(max, "gpu_bytes"),
    )


def _estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return the mean and its t interval over launches, None where a launch has no value."""
    sample = np.array(list(values), np.float64)  # None becomes NaN
    if np.isnan(sample).any():
        return None
    mean, variance = _moments(sample)
    if len(sample) == 1:
        return Estimate(mean, None, None)
    half = float(stdtrit(len(sample) - 1, 1 - ALPHA / 2)) * math.sqrt(variance / len(sample))
    return Estimate(mean, mean - half, mean + half)


def _moments(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and variance, exact for equal values: rounding must not make a variance of nothing."""
    rest = values - values[0]
    return float(values[0] + rest.mean()), float(rest.var(ddof=1)) if len(rest) > 1 else math.inf


def _differences(base: Run, candidate: Run | None) -> list[str]:
    """Return lines on the conditions that differ between two runs, or between the cells of one."""
    if candidate is None:
        threads = {repr(each.extra.get("threads")) for each in base.measurements}
        return [f"threads: {', '.join(sorted(threads))} in cells of one run"] if len(threads) > 1 else []
    common = set(base.cells) & set(candidate.cells)
    runs = (base, candidate)
    used = [{str(cell): settings(each.extra for each in run.launches(cell)) for cell in common} for run in runs]
    if base.environment is None or candidate.environment is None:
        return ["environment: not recorded in both files, so the machines may differ", *differences(*used)]
    return differences(base.environment, candidate.environment) + differences(*used)
