"""Reads what was measured: a pytest-benchmark JSON file → Run, refusing whatever cannot be trusted."""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmscore.errors import ResultError, SettingError

TAIL = 0.025  # each side of an equal-tailed 95 % interval
PARTS = ("backend", "device", "precision", "batching")
_HASHES = ("model_hash", "rows_hash")
_LEAST = dict.fromkeys(("tokens", "padded_tokens", "peak_rss_bytes", "gpu_bytes", "max_abs_delta"), 0.0)
_LEAST |= {"load_seconds": 0.0, "first_call_seconds": 0.0, "rows_per_second": 0.0, "kendall_tau": -2.0}
_SECONDS = (1e-12, 1e9)  # a batch outside this range was not timed by a clock
_MANY, _HUGE = 10**9, 1e300


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured: one backend on one device in one precision with one batching."""

    backend: str
    device: str
    precision: str
    batching: str

    def __str__(self) -> str:
        """Return the four words, as in ``onnxruntime cpu fp32 bucketed:8``."""
        return f"{self.backend} {self.device} {self.precision} {self.batching}"


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """One launch of one cell: ``seconds_per_batch`` float64 and ``rows_per_batch`` int64, both [batches].

    The batches are those of all measured passes over the rows, in order; ``extra`` is the entry's own record.
    """

    cell: Cell
    launch: int
    seconds_per_batch: NDArray[np.float64]
    rows_per_batch: NDArray[np.int64]
    extra: Mapping[str, Any]

    @property
    def rows(self) -> int:
        """Distinct rows: those of one pass."""
        return int(self.rows_per_batch.sum()) // int(self.extra["passes"])

    @property
    def seconds_per_row(self) -> float:
        """Total time over total rows."""
        return float(self.seconds_per_batch.sum() / self.rows_per_batch.sum())

    @property
    def rows_per_second(self) -> float:
        """Total rows over total time."""
        return 1 / self.seconds_per_row

    @property
    def row_latencies(self) -> NDArray[np.float64]:
        """Seconds [rows × passes]: a row waits for the whole of its batch."""
        return np.repeat(self.seconds_per_batch, self.rows_per_batch)

    def percentile(self, q: float) -> float | None:
        """Return the ``q`` quantile of the row latencies in seconds, or None where the rows cannot carry it."""
        return percentile(self.row_latencies, q, rows=self.rows)

    @property
    def p50(self) -> float | None:
        """Median row latency in seconds."""
        return self.percentile(0.5)

    @property
    def p95(self) -> float | None:
        """95th percentile of row latency in seconds."""
        return self.percentile(0.95)


@dataclass(frozen=True, slots=True)
class Failure:
    """A launch that gave no measurement, and the last words of its process."""

    cell: str
    launch: int
    last_words: str


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One benchmark file: its measurements in file order, its failures, and where it ran."""

    path: Path
    digest: str
    measurements: Sequence[Measurement]
    failures: Sequence[Failure] = ()
    environment: Mapping[str, Any] | None = None

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells in file order."""
        return tuple(dict.fromkeys(each.cell for each in self.measurements))

    def launches(self, cell: Cell) -> list[Measurement]:
        """Return the cell's launches in file order."""
        return [each for each in self.measurements if each.cell == cell]

    @property
    def model_hash(self) -> str:
        """The checkpoint that was measured."""
        return str(self.measurements[0].extra["model_hash"])

    @property
    def rows_hash(self) -> str:
        """The rows that were scored."""
        return str(self.measurements[0].extra["rows_hash"])

    @property
    def rows(self) -> int:
        """Distinct rows that every launch scored."""
        return self.measurements[0].rows


def rows_needed(q: float) -> int:
    """Return the least sample that carries the ``q`` quantile: 6 for 0.5, 72 for 0.95.

    The smallest and the largest of n values bound the quantile from below and above with error (1-q)^n and q^n; both
    must be at most 2.5 % for the distribution-free (order-statistic) 95 % interval to exist with equal tails.
    Source: Hahn and Meeker, Statistical Intervals (1991), section 5.2.
    """
    if not 0 < q < 1:
        raise SettingError(f"a quantile of {q!r} does not exist: give a fraction between 0 and 1, such as 0.95")
    return math.ceil(math.log(TAIL) / math.log(max(q, 1 - q)))


def percentile(latencies: NDArray[np.float64], q: float, *, rows: int | None = None) -> float | None:
    """Return the ``q`` quantile (linear between order statistics), or None where the sample cannot carry it.

    ``rows`` is how many of the latencies come from distinct rows; a second pass over a row tells nothing new about
    rows that were not drawn. Default: all of them.
    """
    carried = (len(latencies) if rows is None else rows) >= rows_needed(q)
    return float(np.quantile(latencies, q)) if carried else None


def read(path: str | Path) -> Run:
    """Return the run saved at ``path``; ResultError, naming file and entry, for whatever cannot be trusted."""
    path = Path(path)
    content = _content(path)
    document = _document(path, content)
    own = document.get("rmscore", {})
    _check_finite(_object(own, f"{path}, rmscore"), f"{path}, rmscore")
    failures = _failures(own.get("failures") or [], path)
    measurements = []
    for index, entry in enumerate(document["benchmarks"]):
        where = f"{path}, benchmarks[{index}]"
        extra = _object(entry, where).get("extra_info")
        where = f"{where} {str(entry.get('name'))!r}"
        if isinstance(extra, dict) and "rmscore" in extra:
            measurements.append(_measurement(entry, _object(extra["rmscore"], where), where))
    if not measurements:
        raise ResultError(f"{path}: {_why_empty(failures)}")
    _check_whole(measurements, path)
    recorded = own.get("environment")
    digest = hashlib.sha256(content).hexdigest()
    return Run(path, digest, tuple(measurements), failures, recorded if isinstance(recorded, dict) else None)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ResultError(f"{path}: cannot be read ({reason}); give the JSON that rmscore bench wrote") from error


def _document(path: Path, content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        body = content.strip()
        if not body or (body.startswith(b"{") and not body.endswith(b"}")):
            line = content.count(b"\n") + 1
            raise ResultError(f"{path}: stops in the middle of its JSON (line {line}); measure again") from error
        raise ResultError(f"{path}: not JSON ({error}); give the JSON that rmscore bench wrote") from error
    if not isinstance(document, dict) or not isinstance(document.get("benchmarks"), list):
        raise ResultError(
            f"{path}: not a benchmark file (no list 'benchmarks'); give the JSON that rmscore bench wrote"
        )
    return document


def _failures(entries: object, path: Path) -> tuple[Failure, ...]:
    """Return the failures; a cell may be saved as one string, as four, or as an object of the four parts."""
    failures = []
    for index, each in enumerate(entries if isinstance(entries, list) else [entries]):
        where = f"{path}, failures[{index}]"
        entry = _object(each, where)
        cell = entry.get("cell")
        if isinstance(cell, dict):
            cell = [cell.get(part) for part in PARTS]
        words = " ".join(map(str, cell)) if isinstance(cell, list) else str(cell)
        launch = _whole(entry.get("launch"), "launch", where, least=0)
        failures.append(Failure(words, launch, str(entry.get("last_words") or "")))
    return tuple(failures)


def _measurement(entry: Mapping[str, Any], extra: Mapping[str, Any], where: str) -> Measurement:
    for key in (*PARTS, *_HASHES):
        value = extra.get(key)
        if not isinstance(value, str) or not value.isprintable() or len(value.split()) != 1:
            raise ResultError(f"{where}: {key} is {_short(value)}, not a word; measure again with rmscore bench")
    _check_finite(extra, where)
    for key in _LEAST.keys() & extra.keys():
        if extra[key] is not None:
            _number(extra[key], key, where, (_LEAST[key], _HUGE))
    stats = entry.get("stats")
    data = stats.get("data") if isinstance(stats, dict) else None
    if not isinstance(data, list) or not data:
        raise ResultError(f"{where}: holds no raw data; save it with --benchmark-save-data or use rmscore bench")
    counts = extra.get("rows_per_batch")
    if not isinstance(counts, list) or len(counts) != len(data):
        have = len(counts) if isinstance(counts, list) else _short(counts)
        raise ResultError(f"{where}: rows_per_batch has {have} values for {len(data)} samples; measure again")
    seconds = [_number(each, f"stats.data[{index}]", where, _SECONDS) for index, each in enumerate(data)]
    rows = [_whole(each, f"rows_per_batch[{index}]", where) for index, each in enumerate(counts)]
    passes = _whole(extra.get("passes"), "passes", where)
    if sum(rows) % passes:
        raise ResultError(f"{where}: {sum(rows)} rows are no whole number of rows in {passes} passes; measure again")
    cell = Cell(*(extra[part] for part in PARTS))
    launch = _whole(extra.get("launch"), "launch", where, least=0)
    return Measurement(cell, launch, np.array(seconds, np.float64), np.array(rows, np.int64), extra)


def _check_whole(measurements: Sequence[Measurement], path: Path) -> None:
    """One file measures one model on one set of rows, and no launch of a cell twice."""
    seen: set[tuple[Cell, int]] = set()
    first = measurements[0]
    for each in measurements:
        if (each.cell, each.launch) in seen:
            raise ResultError(f"{path}: launch {each.launch} of {each.cell} is there twice; keep one of the two")
        seen.add((each.cell, each.launch))
        pairs = [(key, first.extra[key], each.extra[key]) for key in _HASHES]
        for key, one, other in [*pairs, ("rows in a pass", first.rows, each.rows)]:
            if one != other:
                places = f"{one!r} in {first.cell} and {other!r} in {each.cell}"
                raise ResultError(f"{path}: {key} is {places}; one file measures one model on one set of rows")


def _check_finite(extra: Mapping[str, Any], where: str) -> None:
    rest: list[tuple[object, object]] = list(extra.items())
    while rest:
        key, value = rest.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ResultError(f"{where}: {key} is {value}; what is not a number is never compared: measure again")
        if isinstance(value, dict | list):
            rest += value.items() if isinstance(value, dict) else ((key, each) for each in value)


def _number(value: object, what: str, where: str, bounds: tuple[float, float]) -> float:
    low, high = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < high:
        raise ResultError(f"{where}: {what} is {_short(value)}, not a number from {low:g} to {high:g}; measure again")
    return float(value)


def _whole(value: object, what: str, where: str, *, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MANY:
        raise ResultError(f"{where}: {what} is {_short(value)}, not a whole number from {least}; measure again")
    return value


def _why_empty(failures: Sequence[Failure]) -> str:
    if not failures:
        return "holds no entry that rmscore measured; give the JSON that rmscore bench wrote"
    last = failures[-1]
    return (
        f"all {len(failures)} launches failed, {last.cell} with {last.last_words[-200:]!r}; mend that and measure again"
    )


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ResultError(f"{where}: {_short(value)} is not an object; measure again with rmscore bench")
    return value


def _short(value: object) -> str:
    return reprlib.repr(value)
