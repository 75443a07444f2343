"""Which way of scoring is fastest within a correctness budget: candidates → launches, the slow dropped first → ranking.

Nothing here starts a process: a launch is a function that the caller gives.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rmscore.backends import Settings, find, specs
from rmscore.backends.architectures import PACKED
from rmscore.compare import welch
from rmscore.errors import EngineMissing, SettingError, nearest
from rmscore.launch import WorkerFailure
from rmscore.plan import parse_batching
from rmscore.results import Cell
from rmscore.tolerance import Agreement
from rmscore.worker import Outcome

DEFAULT = {
    "cpu": (
        "eager@one", "onnxruntime@one", "onnxruntime@bucketed:8", "openvino@one",
        "packed@one", "packed@tokens:1024", "packed@tokens:4096",
    ),
    "cuda": ("eager@bucketed:8", "compile@bucketed:8", "onnxruntime@bucketed:8", "packed@tokens:4096", "packed@tokens:16384"),
}  # fmt: skip
"""What is tried where the user names nothing."""

LOWER: Mapping[str, Mapping[str, Sequence[str]]] = {
    "cpu": {"packed": ("bf16", "int8"), "openvino": ("bf16",)},
    "cuda": {"eager": ("bf16",), "compile": ("bf16",), "packed": ("bf16",)},
}
"""What a correctness budget adds to fp32: the engines that gain by it."""

LEAST = 2
"""Launches that an interval needs."""

SEED = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The user's correctness budget, beside the table of tolerances: None sets no bound."""

    max_delta: float | None = None
    max_flips: float | None = None

    def __bool__(self) -> bool:
        """Whether the user gave any."""
        return self.max_delta is not None or self.max_flips is not None

    def breach(self, agreed: Agreement, device: str, precision: str) -> str:
        """Return what breaks the budget or the table, or nothing; NaN breaks both."""
        flips = agreed.flips
        if self.max_delta is not None and not agreed.max_abs_delta <= self.max_delta:
            return f"max |Δ| {agreed.max_abs_delta:.1e} is over --max-delta {self.max_delta:g}"
        if self.max_flips is not None and (flips is None or not flips <= self.max_flips):
            share = "not known" if flips is None else f"{flips:.2%}"
            return f"the share of flipped pairs is {share}, --max-flips {self.max_flips:.2%}"
        if not agreed.passes(device, precision):
            figures = f"max |Δ| {agreed.max_abs_delta:.1e} ({agreed.delta_of_spread:.2g} of the spread of scores)"
            return f"{figures}, τ {agreed.kendall_tau:.3f}: outside the tolerances of {device} {precision}"
        return ""


@dataclass(slots=True)
class Trial:
    """What is known of one candidate: a time for each launch, the worst agreement of any, and why it was dropped."""

    cell: Cell
    seconds_per_row: list[float] = field(default_factory=list)
    max_abs_delta: float = 0.0
    kendall_tau: float = 1.0
    flips: float | None = None
    launch_seconds: float = 0.0
    dropped: str = ""

    @property
    def log_seconds(self) -> float:
        """Mean log time: what candidates are ranked by."""
        return float(np.log(self.seconds_per_row).mean())

    def rows_per_second(self) -> tuple[float, float | None, float | None]:
        """Return rows per second with its 95 % interval over launches; one launch has none.

        Student's interval on log time, which is Welch's against a value without variance.
        """
        if len(self.seconds_per_row) < LEAST:
            return math.exp(-self.log_seconds), None, None
        mean, low, high, _, _ = welch(np.zeros(LEAST), np.log(self.seconds_per_row))
        return math.exp(mean), math.exp(low), math.exp(high)


def candidates(
    architecture: str,
    device: str,
    *,
    backends: Sequence[str] = (),
    precisions: Sequence[str] = (),
    batching: Sequence[str] = (),
    limits: Limits = Limits(),
) -> tuple[list[Cell], list[str]]:
    """Return the cells to measure, and a line for each backend that is left out.

    ``backends`` are names, or ``name@batching``; a plain name gets ``batching``, else the batchings of ``DEFAULT``.
    ``precisions`` default to fp32, and where there is a correctness budget to those of ``LOWER`` as well. Raises
    UnknownBackend, and SettingError where nothing is left to measure.
    """
    if device not in DEFAULT:
        find("eager", Settings(device))  # raises, naming the devices there are
    cells: list[Cell] = []
    left_out: dict[str, None] = {}
    for name, policy in _entries(backends, batching, device):
        why = _unable(name, architecture, device)
        if why:
            left_out[f"left out: {why}"] = None
            continue
        lower = LOWER[device].get(name, ()) if limits else ()
        able = specs()[name].precisions[device]
        cells += [Cell(name, device, each, policy) for each in precisions or ("fp32", *lower) if each in able]
    for each in precisions:
        if not any(cell.precision == each for cell in cells):
            known = {possible for spec in specs().values() for possible in spec.precisions.get(device, ())}
            raise SettingError(f"no candidate has precision {each!r} on {device} {nearest(each, known)}")
    if not cells:
        raise SettingError(f"nothing to measure on {device}: " + "; ".join(left_out))
    return list(dict.fromkeys(cells)), list(left_out)


def _entries(backends: Sequence[str], batching: Sequence[str], device: str) -> list[tuple[str, str]]:
    usual: dict[str, list[str]] = {}
    for named in DEFAULT[device]:
        name, _, policy = named.partition("@")
        usual.setdefault(name, []).append(policy)
    entries = []
    for named in backends or usual:
        name, _, own = named.partition("@")
        policies = [own] if own else batching or usual.get(name, ["one"])
        entries += [(name, str(parse_batching(policy))) for policy in policies]
    return entries


def _unable(name: str, architecture: str, device: str) -> str:
    """Return why a backend cannot be measured, or nothing; UnknownBackend for a name that is none."""
    try:
        spec = find(name)
    except EngineMissing as error:
        return str(error)
    if device not in spec.precisions:
        return f"backend {name!r} does not run on {device}"
    return f"packed has no {architecture}" if name == "packed" and architecture not in PACKED else ""


def measure(
    cells: Sequence[Cell],
    launch: Callable[[Cell, int], tuple[Outcome, Agreement]],
    limits: Limits,
    *,
    budget_seconds: float,
    tell: Callable[[Trial, int], object],
    clock: Callable[[], float] = time.monotonic,
) -> list[Trial]:
    """Launch every candidate once, then those still in the race, in shuffled blocks, until the budget is spent.

    Every candidate has its first launch, whatever it takes; after that none starts that would not end in time. A
    candidate that fails or breaks the limits is dropped at once; one whose interval lies wholly below the fastest's is
    launched no more. The intervals are those of a fixed number of launches, though the race looks at them as it goes.
    ``launch`` raises WorkerFailure; ``tell`` hears of every launch.
    """
    shuffle, started, block = random.Random(SEED), clock(), 0  # noqa: S311 - an order, not a secret
    trials = [Trial(cell) for cell in cells]
    running = trials
    while not block or len(running) > 1:
        for trial in shuffle.sample(running, len(running)):
            if block and clock() - started + trial.launch_seconds > budget_seconds:
                return trials
            _launch(trial, block, launch, limits)
            tell(trial, block)
        running = in_the_race(trials)
        block += 1
    return trials


def _launch(
    trial: Trial, number: int, launch: Callable[[Cell, int], tuple[Outcome, Agreement]], limits: Limits
) -> None:
    cell = trial.cell
    try:
        outcome, agreed = launch(cell, number)
    except WorkerFailure as error:
        trial.dropped = str(error)
        return
    seconds = sum(outcome.seconds_per_batch)
    trial.seconds_per_row.append(seconds / sum(outcome.rows_per_batch))
    trial.launch_seconds = outcome.load_seconds + outcome.encode_seconds + outcome.first_call_seconds + seconds
    trial.max_abs_delta = max(trial.max_abs_delta, agreed.max_abs_delta)
    trial.kendall_tau = min(trial.kendall_tau, agreed.kendall_tau)
    trial.flips = agreed.flips if trial.flips is None else max(trial.flips, agreed.flips or 0.0)
    effective = outcome.record.get("effective_precision") or cell.precision
    trial.dropped = limits.breach(agreed, cell.device, str(effective))


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return the candidates that were measured and not dropped, the fastest first."""
    return sorted((each for each in trials if each.seconds_per_row and not each.dropped), key=lambda t: t.log_seconds)


def in_the_race(trials: Sequence[Trial]) -> list[Trial]:
    """Return the candidates that may still be the fastest: not dropped, interval not wholly below the fastest's."""
    alive = ranked(trials)
    least = alive[0].rows_per_second()[1] if alive else None
    if least is None:
        return alive
    return [each for each in alive if (high := each.rows_per_second()[2]) is None or high >= least]


def rival(best: Trial, others: Sequence[Trial]) -> Trial | None:
    """Return what a choice is held against: the fastest of another backend, else the next of its own."""
    rest = [each for each in others if each is not best]
    return next((each for each in rest if each.cell.backend != best.cell.backend), rest[0] if rest else None)


def ratio(best: Trial, other: Trial) -> tuple[float, float | None, float | None]:
    """Return how many times as fast the first is as the second, with Welch's 95 % interval on log time over launches."""
    if min(len(best.seconds_per_row), len(other.seconds_per_row)) < LEAST:
        return math.exp(other.log_seconds - best.log_seconds), None, None
    mean, low, high, _, _ = welch(np.log(other.seconds_per_row), np.log(best.seconds_per_row))
    return math.exp(mean), math.exp(low), math.exp(high)


def parse_duration(text: str) -> float:
    """Read ``90``, ``90s``, ``5m`` or ``1.5h`` as seconds; SettingError for anything else."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError as error:
        raise SettingError(f"budget {text!r}: write a time such as 90s, 5m or 1h") from error
    if not 0 <= seconds < math.inf:
        raise SettingError(f"budget {text!r}: write a time such as 90s, 5m or 1h")
    return seconds


def parse_share(text: str) -> float:
    """Read ``0.5%`` or ``0.005`` as a fraction from 0 to 1; SettingError for anything else."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise SettingError(f"share of flips {text!r}: write it as 0.5% or 0.005") from error
    if not 0 <= share <= 1:
        raise SettingError(f"share of flips {text!r}: it lies between 0% and 100%")
    return share
