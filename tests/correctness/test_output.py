"""Output: lines that read back exactly, a file that is complete or resumable, and refusals that lose nothing."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmscore.errors import BackendError, OutputError, RowError
from rmscore.output import OutputWriter, StreamWriter, check_carry, score_line
from rmscore.types import Row, Text

SETTINGS = {"model_hash": "abc", "precision": "fp32", "head": ("score",)}
SCORES = [0.5, -1.25, 3e-7, 1e20, -0.0, 16777216.0, 0.1, 2.0]


def rows_of(count):
    return [Row(f"r{index}", Text("x"), f"in.jsonl, line {index + 1}") for index in range(count)]


ROWS = rows_of(len(SCORES))
LINES = [score_line(row, score) for row, score in zip(ROWS, SCORES, strict=True)]
WHOLE = "".join(line + "\n" for line in LINES)


def score_all(path, *, rows=None, settings=SETTINGS, stop_after=None, **options):
    """Write the rows three at a time as a run does; ``stop_after`` groups the run dies."""
    left = iter(ROWS if rows is None else rows)
    known = dict(zip((row.id for row in ROWS), LINES, strict=True))
    with OutputWriter(path, settings, **options) as out:
        replayed = list(out.replay(left))
        lines = [known[row.id] for row in left]
        for group, start in enumerate(range(0, len(lines), 3)):
            if group == stop_after:
                raise KeyboardInterrupt
            out.write_group(lines[start : start + 3])
        out.commit()
    return replayed, len(lines)


def names(path):
    return sorted(file.name for file in path.iterdir())


def refused(path, **options):
    with pytest.raises(OutputError) as caught:
        score_all(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_reads_back_exactly(score):
    """A score is printed with the fewest digits that read back as the same float32, the sign of zero included."""
    text = score_line(ROWS[0], score).partition('"score": ')[2][:-1]
    back = np.float32(json.loads(text))
    assert back.tobytes() == np.float32(score).tobytes()
    assert len(text) <= len(repr(score)) + 2


def test_a_line_holds_what_the_row_brings():
    """Identity, score, the pair's halves and carried fields are there; several objectives are a list."""
    row = Row("7/chosen", Text("x"), "w", "chosen", 7, {"source": "a\u2028\ud800", "n": None})
    assert json.loads(score_line(row, 0.25)) == {
        "id": "7/chosen",
        "score": 0.25,
        "pair": 7,
        "side": "chosen",
        "source": "a\u2028\ud800",
        "n": None,
    }
    assert json.loads(score_line(ROWS[0], [0.5, 2.0])) == {"id": "r0", "score": [0.5, 2.0]}
    assert score_line(ROWS[0], np.float32(0.1)) == score_line(ROWS[0], float(np.float32(0.1)))
    assert score_line(ROWS[0], np.array([0.1], np.float32)) == '{"id": "r0", "score": [0.1]}'
    assert score_line(row, 1.0).isascii()


@pytest.mark.parametrize(
    "score", [float("nan"), float("inf"), -float("inf"), [0.0, float("nan")], np.float32("nan"), 1e39]
)
def test_what_is_no_score_is_never_written(score):
    """NaN and infinity raise an error that names the row."""
    with pytest.raises(BackendError, match=r"^in\.jsonl, line 1: "):
        score_line(ROWS[0], score)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"x"])
def test_what_json_cannot_hold_is_not_carried(value):
    """A carried value without a form in JSON is an error naming row and field."""
    with pytest.raises(RowError, match="w: field 'odd' "):
        score_line(Row(0, Text("x"), "w", carry={"odd": value}), 1.0)


@pytest.mark.parametrize("name", ["id", "score", "pair", "side"])
def test_carried_names_may_not_be_the_outputs_own(name):
    """A carried field never replaces one of the output's."""
    check_carry(["source"])
    with pytest.raises(OutputError, match=f"carry '{name}'"):
        check_carry(["source", name])
    with pytest.raises(OutputError, match=f"carry '{name}'"):
        score_line(Row(0, Text("x"), "w", carry={name: 1}), 1.0)


def test_a_finished_file(tmp_path):
    """The file appears complete under its name, the settings beside it, and nothing else is left."""
    path = tmp_path / "out.jsonl"
    score_all(path)
    assert path.read_text() == WHOLE
    assert json.loads((tmp_path / "out.jsonl.meta.json").read_text()) == {**SETTINGS, "head": ["score"]}
    assert names(tmp_path) == ["out.jsonl", "out.jsonl.meta.json"]


def test_a_stop_keeps_what_was_written(tmp_path):
    """After a stop the file has not its name; a resumed run scores the rest only and ends in the same file."""
    path = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        score_all(path, stop_after=2)
    assert names(tmp_path) == ["out.jsonl.part", "out.jsonl.part.meta.json"]
    replayed, scored = score_all(path, resume=True)
    assert replayed == list(zip(ROWS[:6], np.array(SCORES[:6], np.float32).tolist(), strict=True))
    assert scored == 2
    assert path.read_text() == WHOLE
    assert names(tmp_path) == ["out.jsonl", "out.jsonl.meta.json"]


@pytest.mark.parametrize("name", ["out.jsonl.part", "out.jsonl"])
@pytest.mark.parametrize("cut", range(0, len(WHOLE) + 1, 7))
def test_a_cut_anywhere_can_be_resumed(tmp_path, name, cut):
    """A file cut at any byte, finished or not, is completed; a line that lost its end is scored again."""
    path = tmp_path / "out.jsonl"
    score_all(path)
    (tmp_path / name).write_text(WHOLE[:cut])
    replayed, scored = score_all(path, resume=True)
    assert len(replayed) == WHOLE[:cut].count("\n")
    assert len(replayed) + scored == len(ROWS)
    assert path.read_text() == WHOLE
    assert names(tmp_path) == ["out.jsonl", "out.jsonl.meta.json"]


def test_resuming_a_finished_file_scores_nothing(tmp_path):
    """A complete file stays as it is, its time of change included; a half line after it goes."""
    path = tmp_path / "out.jsonl"
    score_all(path)
    changed = path.stat().st_mtime_ns
    assert score_all(path, resume=True)[1] == 0
    assert path.stat().st_mtime_ns == changed
    path.write_text(WHOLE + '{"id"')
    assert score_all(path, resume=True)[1] == 0
    assert path.read_text() == WHOLE


def test_resuming_nothing_starts(tmp_path):
    """With nothing to resume, a resumed run is a first run."""
    path = tmp_path / "out.jsonl"
    assert score_all(path, resume=True) == ([], len(ROWS))
    assert path.read_text() == WHOLE


def test_rows_without_a_record_of_their_settings(tmp_path):
    """A bare copy is resumed, and the writer says that its settings could not be checked, claiming none for it."""
    path = tmp_path / "copy.jsonl"
    path.write_text("".join(line + "\n" for line in LINES[:4]))
    assert OutputWriter(path, SETTINGS, resume=True).settings_checked is False
    score_all(path, resume=True)
    assert path.read_text() == WHOLE
    assert names(tmp_path) == ["copy.jsonl"]


def test_other_settings_are_refused(tmp_path):
    """Scores of two models or precisions never end up in one file; the error names what differs."""
    path = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        score_all(path, stop_after=1)
    message = refused(path, resume=True, settings={**SETTINGS, "precision": "bf16", "device": "cpu"})
    assert "device was None, is 'cpu'; precision was 'fp32', is 'bf16'" in message
    assert "model_hash" not in message
    (tmp_path / "out.jsonl.part.meta.json").write_text("{")
    assert "cannot be read" in refused(path, resume=True)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (ROWS[1:], "line 1: has id 'r0' where in.jsonl, line 2 has 'r1'"),
        (ROWS[:2] + ROWS[3:], "line 3: has id 'r2' where in.jsonl, line 4 has 'r3'"),
        (ROWS[:4], "line 5: has id 'r4' where the input has ended"),
    ],
)
def test_another_input_is_refused(tmp_path, rows, says):
    """The rows already written must be the input's first, in its order; the error names the first that is not."""
    path = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        score_all(path, stop_after=2)
    assert says in refused(path, resume=True, rows=rows)
    score_all(path, resume=True)
    assert path.read_text() == WHOLE


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        '{"id": 1}',
        "null",
        '{"id": "r1", "score": null}',
        '{"score": 1, "text": "an input"}',
        '{"id": "r1", "score": "a"}',
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, line):
    """A line that is no scored row stops a resumed run before anything is changed."""
    path = tmp_path / "out.jsonl"
    path.write_text(LINES[0] + "\n" + line + "\n")
    assert "out.jsonl, line 2: is no scored row" in refused(path, resume=True)
    assert path.read_text() == LINES[0] + "\n" + line + "\n"


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.part"])
def test_a_file_that_is_there_is_never_replaced_unasked(tmp_path, name):
    """An earlier result, finished or not, is an error that names both ways on; overwriting starts again."""
    path = tmp_path / "out.jsonl"
    (tmp_path / name).write_text("precious\n")
    message = refused(path)
    assert "--resume" in message
    assert "--overwrite" in message
    assert (tmp_path / name).read_text() == "precious\n"
    score_all(path, overwrite=True)
    assert path.read_text() == WHOLE


def test_an_overwriting_run_that_stops_keeps_the_old_file(tmp_path):
    """The old result is replaced only by a complete new one."""
    path = tmp_path / "out.jsonl"
    path.write_text("old\n")
    with pytest.raises(KeyboardInterrupt):
        score_all(path, overwrite=True, stop_after=1)
    assert path.read_text() == "old\n"
    score_all(path, resume=True)
    assert path.read_text() == WHOLE


def test_a_run_that_wrote_nothing_leaves_nothing(tmp_path):
    """A run that fails before its first score does not stand in the way of the next."""
    with pytest.raises(KeyboardInterrupt):
        score_all(tmp_path / "out.jsonl", stop_after=0)
    assert names(tmp_path) == []


def test_paths_that_cannot_be_written(tmp_path):
    """A folder, a missing folder and a device are refused before anything is scored."""
    assert "no ordinary file" in refused(tmp_path)
    assert "there is no folder" in refused(tmp_path / "no" / "out.jsonl")
    assert "no ordinary file" in refused(Path("/dev/null"))
    assert "exclude each other" in refused(tmp_path / "a", resume=True, overwrite=True)
    assert "cannot be read or written" in refused(tmp_path / ("n" * 300))


def test_a_full_disk_keeps_what_fits(tmp_path):
    """When the file can grow no more, one line says so, and the rows before can be resumed."""
    path = tmp_path / "out.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(WHOLE) // 2, limits[1]))
    try:
        message = refused(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "make room and go on by --resume" in message
    replayed, _ = score_all(path, resume=True)
    assert len(replayed) == WHOLE[: len(WHOLE) // 2].count("\n")
    assert path.read_text() == WHOLE


def test_an_error_of_the_disk_is_one_line(tmp_path, monkeypatch):
    """Data that the disk did not take is reported, not lost in silence."""

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "No space left on device; make room" in refused(tmp_path / "out.jsonl")
    score_all(tmp_path / "out.jsonl", resume=True)
    assert (tmp_path / "out.jsonl").read_text() == WHOLE


def test_resuming_holds_no_rows(tmp_path):
    """Checking 20,000 written rows against the input takes the memory of a few."""
    path = tmp_path / "out.jsonl"
    count = 20_000
    path.write_text("".join(score_line(row, 0.5) + "\n" for row in rows_of(count)))
    rows = (Row(f"r{index}", Text("x" * 100), "w") for index in range(count))
    tracemalloc.start()
    with OutputWriter(path, SETTINGS, resume=True) as out:
        assert sum(1 for _ in out.replay(rows)) == count
        out.commit()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 500_000


def test_a_stream_gets_the_same_lines():
    """Standard output gets the lines a file gets; there is nothing to resume."""
    stream = io.StringIO()
    with StreamWriter(stream) as out:
        assert list(out.replay(iter(ROWS))) == []
        out.write_group(LINES[:3])
        out.write_group(LINES[3:])
        out.commit()
    assert stream.getvalue() == WHOLE


def test_a_stream_that_takes_no_more():
    """A closed pipe is left to the caller; any other fault is one line."""

    class Broken(io.StringIO):
        def __init__(self, error):
            super().__init__()
            self.error = error

        def flush(self):
            raise self.error

    with pytest.raises(BrokenPipeError):
        StreamWriter(Broken(BrokenPipeError())).write_group(LINES)
    with pytest.raises(OutputError, match="No space left"):
        StreamWriter(Broken(OSError(errno.ENOSPC, "No space left"))).write_group(LINES)
