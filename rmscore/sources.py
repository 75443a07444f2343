"""Files and streams → records, one at a time, each with the words that name its place in error messages."""

from __future__ import annotations

import contextlib
import csv
import difflib
import functools
import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from rmscore.errors import EngineMissing, RowError, nearest

Record = tuple[str, Any]
"""Where something was read, and what."""

MAX_LINE_BYTES: Final = 64 << 20


def read_file(path: Path) -> Iterator[Record]:
    """Read ``.csv`` and ``.parquet`` as such, any other name and ``-``, standard input, as JSON lines; unpack ``.gz``.

    Raises RowError at once for a file that is not there, EngineMissing where pyarrow is needed and missing, and
    RowError naming the place when something unreadable is reached.
    """
    if str(path) == "-":
        return _json_lines(_lines(path, "standard input"))
    try:
        path.stat()
    except (OSError, ValueError) as error:
        raise RowError(f"{str(path)!r:.300}: there is no such file{_similar(path)}") from error
    if path.is_dir():
        raise RowError(f"{path}: is a folder; name one file in it")
    kind = (path.with_suffix("") if _packed(path) else path).suffix.lower()
    if kind == ".parquet":
        return _parquet(path)
    return _csv(_lines(path, str(path)), str(path)) if kind == ".csv" else _json_lines(_lines(path, str(path)))


def _similar(path: Path) -> str:
    names = [file.name for file in path.parent.glob("*")] if len(path.name) < 256 else []  # noqa: PLR2004 - a name's limit
    close = difflib.get_close_matches(path.name, names, n=3)
    return f" {nearest(path.name, close)}" if close else ""


def _packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _lines(path: Path, name: str) -> Iterator[Record]:
    """Yield every line and its place; a line ends with a line feed and nothing else."""
    where = name
    try:
        with _open(path) as file:
            for number, line in enumerate(iter(functools.partial(file.readline, MAX_LINE_BYTES + 1), b""), 1):
                where = f"{name}, line {number}"
                if len(line) > MAX_LINE_BYTES:
                    raise RowError(f"{where}: is longer than {MAX_LINE_BYTES >> 20} MiB; put one row on a line")
                text = line.decode()
                yield where, text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        bad = f"byte 0x{error.object[error.start]:02x} at position {error.start + 1}"
        raise RowError(f"{where}: is not UTF-8 text ({bad}); save the file as UTF-8") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RowError(f"{where}: what follows is no complete gzip data; fetch or pack the file again") from error
    except OSError as error:
        raise RowError(f"{name}: cannot be read: {error.strerror or error}") from error


def _open(path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
    if str(path) == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    return cast("BinaryIO", gzip.open(path, "rb")) if _packed(path) else path.open("rb")


def _json_lines(lines: Iterator[Record]) -> Iterator[Record]:
    for where, line in lines:
        try:
            yield where, json.loads(line)
        except json.JSONDecodeError as error:
            if line.isspace():
                continue
            fault = f"is not valid JSON at column {min(error.pos, len(line.rstrip())) + 1} ({error.msg})"
            raise RowError(f"{where}: {fault}; one JSON object a line is needed") from error
        except RecursionError as error:
            raise RowError(f"{where}: the JSON is nested too deep; take the nested field out") from error
        except ValueError as error:  # an integer of more digits than Python converts
            raise RowError(f"{where}: holds a number that is too long; write it as text, in quotes") from error


def _csv(lines: Iterator[Record], name: str) -> Iterator[Record]:
    csv.field_size_limit(max(MAX_LINE_BYTES, csv.field_size_limit()))  # the process's own, so only ever raised
    places: list[str] = []
    header: list[str] = []
    try:
        for cells in csv.reader(_noting(lines, places), strict=True):
            where = places[0]  # a row may span lines
            places.clear()
            if not header:
                header = _header(cells, where)
            elif cells and len(cells) != len(header):
                raise RowError(
                    f"{where}: has {len(cells)} cells, the header names {len(header)}; quote texts with commas"
                )
            elif cells:
                yield where, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        fault = f"is not valid CSV ({error})"
        raise RowError(f"{places[0]}: {fault}; quote the texts and double the quotes in them") from error
    if not header:
        raise RowError(f"{name}: is empty; the first line of a CSV file names the columns")


def _noting(lines: Iterable[Record], places: list[str]) -> Iterator[str]:
    for where, line in lines:
        places.append(where)
        yield line


def _header(cells: list[str], where: str) -> list[str]:
    if not cells or not all(cells) or len(set(cells)) < len(cells):
        raise RowError(f"{where}: the header is {','.join(cells)!r:.200}; every column needs a name of its own")
    return cells


def _parquet(path: Path) -> Iterator[Record]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise EngineMissing(f"{path}: reading parquet needs pyarrow: pip install 'rmscore[parquet]'") from error

    def records() -> Iterator[Record]:
        index = 0
        try:
            # Not read ahead: memory holds some pages of a row group, not all of it.
            with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
                for batch in file.iter_batches(batch_size=256):
                    for record in batch.to_pylist():
                        yield f"{path}, row {index}", record
                        index += 1
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            fault = str(error).partition("\n")[0]
            raise RowError(f"{path}: cannot be read after {index} rows ({fault}); write the file again") from error

    return records()
