"""Scored rows → JSON lines, in a file that appears complete or can be resumed.

While rows are scored they are appended to ``OUT.part``, and the settings that decide a score are in
``OUT.part.meta.json``; :meth:`OutputWriter.commit` gives both their final names. What a stop at any moment leaves can
be resumed, and the resumed file has the rows of an undisturbed run, in its order.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO

import numpy as np

from rmscore.errors import BackendError, OutputError, RowError
from rmscore.types import Row

Score = float | Sequence[float]

OUR_FIELDS: Final = frozenset({"id", "score", "pair", "side"})

_LARGEST: Final = float(np.finfo(np.float32).max)
_BLOCK_BYTES: Final = 1 << 16


def check_carry(names: Iterable[str]) -> None:
    """Raise OutputError for fields that cannot be carried because the output has its own of that name."""
    for name in names:
        if name in OUR_FIELDS:
            raise OutputError(f"carry {name!r}: the output has its own {name!r}; rename the field in the input")


def score_line(row: Row, score: Score) -> str:
    """Return one scored row as JSON, without a line end: ``id``, ``score``, ``pair``, ``side`` and the carried fields.

    A score has the fewest digits that read back as the same float32. Raises BackendError for a score that is not
    finite, RowError for a carried value that JSON cannot hold, OutputError for a carried name that is the output's own.
    """
    if not OUR_FIELDS.isdisjoint(row.carry):
        check_carry(row.carry)
    number = _number(row, score) if isinstance(score, int | float) else ""
    parts = [f'"id": {json.dumps(row.id)}, "score": {number or _numbers(row, score)}']
    if row.side is not None:
        parts.append(f'"pair": {json.dumps(row.pair)}, "side": {json.dumps(row.side)}')
    parts += [f"{json.dumps(str(name))}: {_carried(row, name, value)}" for name, value in row.carry.items()]
    return f"{{{', '.join(parts)}}}"


def _numbers(row: Row, score: Score) -> str:
    values = np.asarray(score, np.float32)
    if not values.ndim:
        return _number(row, float(values))
    return f"[{', '.join(_number(row, float(value)) for value in values)}]"


def _number(row: Row, score: float) -> str:
    if not abs(score) <= _LARGEST:  # NaN compares as false
        raise BackendError(f"{row.where}: the score is {score}, which is none; check the weights for NaN or try fp32")
    return str(np.float32(score))


def _carried(row: Row, name: str, value: Any) -> str:  # noqa: ANN401 - a user's
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        fault = "is nested too deep" if isinstance(error, RecursionError) else f"has no form in JSON ({error})"
        raise RowError(f"{row.where}: field {name!r} {fault}; do not carry it") from error


class StreamWriter:
    """Writes to a stream what OutputWriter writes to a file; nothing to resume. BrokenPipeError is the caller's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def replay(self, rows: Iterator[Row]) -> Iterator[tuple[Row, Score]]:
        """Yield nothing: a stream holds no earlier rows."""
        del rows
        return iter(())

    def write_group(self, lines: Iterable[str]) -> None:
        """Write and flush lines. Raises OutputError when the stream takes no more."""
        try:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {error.strerror or error}") from error

    def commit(self) -> None:
        """Do nothing: what is written is out."""


class OutputWriter:
    """Writes ``path``; a context manager, so that a stop keeps what is written. Call :meth:`commit` when all is.

    ``settings`` decide a score. ``resume`` goes on with ``path.part``, else with ``path``; a last line that was cut is
    dropped. ``overwrite`` starts again. Without either, a file that exists is an error. All errors are OutputError.
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], *, resume: bool = False, overwrite: bool = False
    ) -> None:
        self.path = path
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
        self.settings_checked = True
        """False when rows are resumed that came without a record of their settings: worth a warning."""
        self._part = path.with_name(path.name + ".part")
        self._begun: Path | None = None
        self._kept_bytes = 0
        self._file: io.FileIO | None = None
        if resume and overwrite:
            raise OutputError(f"{path}: resume and overwrite exclude each other; give one")
        with _one_line(path):
            self._check_free(resume=resume, overwrite=overwrite)
            if resume:
                self._begun = next((file for file in (self._part, path) if file.exists()), None)
        if self._begun is not None:
            self._check_settings(self._begun)

    def _check_free(self, *, resume: bool, overwrite: bool) -> None:
        if not self.path.parent.is_dir():
            raise OutputError(f"{self.path}: there is no folder {str(self.path.parent)!r}; make it or name another")
        if self.path.exists() and not self.path.is_file():
            raise OutputError(f"{self.path}: is no ordinary file; name another, or leave -o out for standard output")
        for file in (self._part, self.path):
            if file.exists() and not (resume or overwrite):
                raise OutputError(f"{file}: is there already; go on with it by --resume or start again by --overwrite")

    def _check_settings(self, begun: Path) -> None:
        meta = _meta(begun)
        try:
            then = json.loads(meta.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.settings_checked = False
            return
        except (OSError, ValueError) as error:
            raise OutputError(f"{meta}: cannot be read ({error}); start again by --overwrite") from error
        now = self.settings
        then = then if isinstance(then, dict) else {}
        names = sorted({*then, *now} - {name for name in now if name in then and then[name] == now[name]})
        if names:
            changes = "; ".join(f"{name} was {then.get(name)!r:.60}, is {now.get(name)!r:.60}" for name in names)
            raise OutputError(f"{begun}: was begun with other settings ({changes}); use those, or --overwrite")

    def __enter__(self) -> Self:
        with _one_line(self.path):
            if self._begun is None:
                self._open()
            else:
                self._kept_bytes = _whole_lines(self._begun)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        with _one_line(self.path):
            empty = os.fstat(self._file.fileno()).st_size == 0
            self._close()
            if empty:  # nothing worth resuming, so nothing to stand in the way of the next try
                self._part.unlink()
                _meta(self._part).unlink(missing_ok=True)

    def replay(self, rows: Iterator[Row]) -> Iterator[tuple[Row, Score]]:
        """Take the rows that are already written from ``rows`` and yield each with its score, holding one in memory.

        Afterwards ``rows`` stands at the first row to score. Raises OutputError naming the first line that is not the
        row at its place.
        """
        if self._begun is None:
            return
        with _one_line(self.path):
            file = self._begun.open("rb")
        with file:
            number = 0
            while file.tell() < self._kept_bytes:
                number += 1
                with _one_line(self.path):
                    line = file.readline()
                yield _written(line, next(rows, None), f"{self._begun}, line {number}")

    def write_group(self, lines: Iterable[str]) -> None:
        """Append lines and wait until the disk has them."""
        rest = memoryview("".join(f"{line}\n" for line in lines).encode())
        with _one_line(self.path):
            file = self._file or self._open()
            while rest:
                rest = rest[file.write(rest) or 0 :]
            os.fsync(file.fileno())

    def commit(self) -> None:
        """Give the finished file its name."""
        with _one_line(self.path):
            if self._file is None and (self._begun == self._part or _has_cut_line(self._begun, self._kept_bytes)):
                self._open()
            if self._file is not None:
                self._close()
                self._part.replace(self.path)
                if self.settings_checked:
                    _meta(self._part).replace(_meta(self.path))
                _sync_folder(self.path.parent)

    def _open(self) -> io.FileIO:
        """Open the unfinished file for appending, first giving it that name where a finished one is gone on with."""
        if self._begun not in (None, self._part):
            self.path.replace(self._part)
        self._begun = self._begun and self._part
        self._file = io.FileIO(self._part, "wb" if self._begun is None else "r+b")
        self._file.truncate(self._kept_bytes)
        self._file.seek(0, os.SEEK_END)
        if self.settings_checked:
            _meta(self._part).write_text(json.dumps(self.settings, indent=2) + "\n", encoding="utf-8")
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _meta(file: Path) -> Path:
    return file.with_name(file.name + ".meta.json")


def _written(line: bytes, row: Row | None, where: str) -> tuple[Row, Score]:
    try:
        record = json.loads(line)
        found, score = record["id"], np.array(record["score"], np.float32)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise OutputError(f"{where}: is no scored row; repair it or start again by --overwrite") from error
    if not np.isfinite(score).all():
        raise OutputError(f"{where}: is no scored row; repair it or start again by --overwrite")
    if row is None:
        raise OutputError(f"{where}: has id {found!r:.60} where the input has ended; give the input it was begun with")
    if found != row.id:
        expected = f"{row.where} has {row.id!r:.60}"
        raise OutputError(f"{where}: has id {found!r:.60} where {expected}; give the input it was begun with")
    return row, score.tolist()


def _whole_lines(file: Path) -> int:
    """Return the bytes up to and with the last line feed."""
    with file.open("rb") as lines:
        end = lines.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK_BYTES)
            lines.seek(start)
            newline = lines.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def _has_cut_line(file: Path | None, kept_bytes: int) -> bool:
    return file is not None and file.stat().st_size > kept_bytes


def _sync_folder(folder: Path) -> None:
    """Make renames last through a power cut; a file system that cannot is left to its own care."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        advice = "make room and go on by --resume" if full else "name a file in a folder that can be written"
        raise OutputError(f"{path}: cannot be read or written: {error.strerror or error}; {advice}") from error
