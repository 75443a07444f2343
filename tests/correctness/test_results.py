"""A benchmark file is read exactly or refused by name: file, entry and what to do."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from rmscore.errors import ResultError, SettingError
from rmscore.results import Cell, percentile, read, rows_needed

EAGER = "eager cpu fp32 one"


def entry(cell=EAGER, launch=0, seconds=(0.5, 0.25, 0.25), rows=None, passes=1, **changed):
    """Return one entry of a pytest-benchmark file as the plugin fills it."""
    backend, device, precision, batching = cell.split()
    extra = {
        "backend": backend,
        "device": device,
        "precision": precision,
        "batching": batching,
        "model_hash": "m1",
        "rows_hash": "r1",
        "launch": launch,
        "seed": 7,
        "order": launch,
        "rows_per_batch": [1] * len(seconds) if rows is None else list(rows),
        "passes": passes,
        "tokens": 300,
        "padded_tokens": 100,
        "max_abs_delta": 1e-6,
        "kendall_tau": 1.0,
        "rows_per_second": 3.0,
        "load_seconds": 2.0,
        "first_call_seconds": 0.5,
        "peak_rss_bytes": 2**31,
        "gpu_bytes": None,
        "effective_precision": precision,
        "threads": 2,
        "versions": {"torch": "2.13.0"},
        "truncated": 0,
    }
    data = list(seconds)
    stats = {"min": min(data), "max": max(data), "mean": sum(data) / len(data), "rounds": len(data), "data": data}
    name = f"test_speed[{cell}-{launch}]"
    return {"name": name, "fullname": name, "stats": stats, "extra_info": {"rmscore": extra | changed}}


def document(*entries, failures=(), environment=None):
    """Return a whole pytest-benchmark file."""
    own = {"failures": list(failures), "environment": environment or {"python": "3.11"}, "command": [], "seed": 7}
    return {"machine_info": {}, "commit_info": {}, "benchmarks": list(entries), "version": "5.3.1", "rmscore": own}


@pytest.fixture
def save(tmp_path):
    def write(content, name="run.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_read_keeps_samples_and_cell(save):
    """A file gives back its samples, its cell in four words and its failures."""
    failure = {"cell": dict(zip(("backend", "device", "precision", "batching"), EAGER.split(), strict=True))}
    run = read(save(document(entry(launch=3), failures=[failure | {"launch": 1, "last_words": "killed"}])))
    (only,) = run.measurements
    assert (str(only.cell), only.launch) == (EAGER, 3)
    assert only.seconds_per_batch.dtype == np.float64
    assert only.seconds_per_batch.tolist() == [0.5, 0.25, 0.25]
    assert [(each.cell, each.launch, each.last_words) for each in run.failures] == [(EAGER, 1, "killed")]
    assert (run.model_hash, run.rows_hash, run.environment) == ("m1", "r1", {"python": "3.11"})


def test_figures_are_derived_from_samples(save):
    """Seconds per row is total time over total rows; a row's latency is its batch's time; passes repeat rows."""
    (only,) = read(save(document(entry(seconds=(1.0, 0.4, 1.2, 0.4), rows=(5, 2, 5, 2), passes=2)))).measurements
    assert only.seconds_per_row == pytest.approx(3.0 / 14)
    assert only.rows_per_second == pytest.approx(14 / 3.0)
    assert only.rows == 7
    assert sorted(only.row_latencies) == [0.4] * 4 + [1.0] * 5 + [1.2] * 5
    assert only.p50 == pytest.approx(1.0)
    assert only.p95 is None


def test_cells_keep_file_order(save):
    """The first cell of the file is the first cell of the run, however launches are interleaved."""
    names = ["packed cpu fp32 tokens:512", EAGER, "packed cpu fp32 tokens:512"]
    run = read(save(document(*(entry(name, launch) for launch, name in enumerate(names)))))
    assert run.cells == (Cell(*names[0].split()), Cell(*EAGER.split()))
    assert [each.launch for each in run.launches(run.cells[0])] == [0, 2]


def test_foreign_benchmarks_are_passed_over(save):
    """Entries of other tests in the same file are no measurements of ours."""
    foreign = {"name": "test_other", "stats": {"mean": 1.0}, "extra_info": {}}
    assert len(read(save(document(foreign, entry()))).measurements) == 1


@pytest.mark.parametrize(("q", "rows"), [(0.5, 6), (0.95, 72), (0.05, 72), (0.99, 368)])
def test_rows_needed_is_least_carrying_sample(q, rows):
    """The sample needed is the least n with q^n and (1-q)^n at most 2.5 %."""
    assert rows_needed(q) == rows
    assert max(q**rows, (1 - q) ** rows) <= 0.025 < max(q ** (rows - 1), (1 - q) ** (rows - 1))


def test_rows_needed_refuses_impossible_quantile():
    """A quantile outside (0, 1) is refused with the value quoted."""
    with pytest.raises(SettingError, match=r"1\.5"):
        rows_needed(1.5)


def test_percentile_is_refused_below_its_sample():
    """p95 of 71 values does not exist, of 72 it does, and repeated passes over 71 rows do not help."""
    assert percentile(np.arange(71.0), 0.95) is None
    assert percentile(np.arange(72.0), 0.95) == pytest.approx(0.95 * 71)
    assert percentile(np.arange(710.0), 0.95, rows=71) is None
    assert percentile(np.arange(5.0), 0.5) is None
    assert percentile(np.arange(6.0), 0.5) == 2.5


def test_order_statistics_bound_the_percentile():
    """Of samples of 72, the largest lies below the true p95 in at most 2.5 %, of samples of 71 in more."""
    assert 0.95**72 <= 0.025 < 0.95**71
    draws = np.random.default_rng(5).random((20_000, 72)).max(axis=1)
    assert np.mean(draws < 0.95) == pytest.approx(0.95**72, abs=0.004)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "stops in the middle"),
        ('{"benchmarks": [{"name": "a", "st', "stops in the middle"),
        ("hello", "not JSON"),
        ("[" * 100_000, "JSON"),
        ('{"benchmarks": 1' + "0" * 5000 + "}", "not JSON"),
        ("[]", "not a benchmark file"),
        ('{"benchmarks": {}}', "not a benchmark file"),
        ('{"benchmarks": []}', "no entry that rmscore measured"),
        ('{"benchmarks": [7]}', r"benchmarks\[0\]: 7 is not an object"),
        ('{"benchmarks": [], "rmscore": 3}', "rmscore: 3 is not an object"),
    ],
)
def test_unreadable_file_is_refused(save, content, words):
    """What is no benchmark file is refused in one line that names it."""
    path = save(content)
    with pytest.raises(ResultError, match=words) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_refused(tmp_path):
    """A path without a file behind it is refused by name."""
    with pytest.raises(ResultError, match=r"gone\.json: cannot be read \(No such file"):
        read(tmp_path / "gone.json")
    with pytest.raises(ResultError, match=r"cannot be read \(Is a directory"):
        read(tmp_path)


def test_run_of_failures_only_says_why(save):
    """Where every launch failed the message ends with the last one's last words."""
    failures = [{"cell": EAGER, "launch": 0, "last_words": "Traceback\nMemoryError"}]
    with pytest.raises(ResultError, match=r"all 1 launches failed, eager cpu fp32 one with .*MemoryError") as caught:
        read(save(document(failures=failures)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stats", [{}, {"data": []}, {"data": None}, None])
def test_summary_without_raw_data_is_refused(save, stats):
    """A file without raw samples names the flag that saves them."""
    bad = entry() | {"stats": stats}
    with pytest.raises(ResultError, match=r"benchmarks\[0\].*--benchmark-save-data or use rmscore bench"):
        read(save(document(bad)))


@pytest.mark.parametrize("sample", [float("nan"), float("inf"), 0, -0.1, True, "0.5", None, 1e400, 10**400, 5e-324])
def test_impossible_sample_is_refused(save, sample):
    """Only a positive finite number that is no boolean is a time."""
    bad = entry()
    bad["stats"]["data"][1] = sample
    with pytest.raises(ResultError, match=r"run\.json, benchmarks\[1\].*eager.*stats\.data\[1\]"):
        read(save(document(entry(launch=1), bad)))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rows_per_batch": [1, 1]}, "rows_per_batch has 2 values for 3 samples"),
        ({"rows_per_batch": None}, "rows_per_batch has None values"),
        ({"rows_per_batch": [1, True, 1]}, r"rows_per_batch\[1\] is True"),
        ({"rows_per_batch": [1, 0, 1]}, r"rows_per_batch\[1\] is 0"),
        ({"rows_per_batch": [1, 1.0, 1]}, r"rows_per_batch\[1\] is 1\.0"),
        ({"passes": 2}, "3 rows are no whole number of rows in 2 passes"),
        ({"passes": True}, "passes is True"),
        ({"launch": True}, "launch is True"),
        ({"launch": -1}, "launch is -1"),
        ({"backend": 3}, "backend is 3"),
        ({"batching": "one two"}, "batching is 'one two'"),
        ({"model_hash": None}, "model_hash is None"),
        ({"max_abs_delta": float("nan")}, "max_abs_delta is nan"),
        ({"kendall_tau": float("nan")}, "kendall_tau is nan"),
        ({"versions": {"x": [float("inf")]}}, "x is inf"),
        ({"peak_rss_bytes": True}, "peak_rss_bytes is True"),
        ({"load_seconds": -1}, "load_seconds is -1"),
        ({"tokens": 10**400}, "tokens is 1000"),
    ],
)
def test_impossible_record_is_refused(save, changed, words):
    """A record with a value of the wrong kind is refused by file, entry and value."""
    with pytest.raises(ResultError, match=rf"run\.json, benchmarks\[0\].*{words}"):
        read(save(document(entry(**changed))))


def test_launch_twice_is_refused(save):
    """A launch of a cell that is there twice would count as two replicates."""
    with pytest.raises(ResultError, match="launch 0 of eager cpu fp32 one is there twice"):
        read(save(document(entry(), entry())))


@pytest.mark.parametrize("changed", [{"model_hash": "m2"}, {"rows_hash": "r2"}])
def test_two_subjects_in_one_file_are_refused(save, changed):
    """One file measures one model on one set of rows."""
    (value,) = changed.values()
    with pytest.raises(ResultError, match=rf"{value}.*one model on one set of rows"):
        read(save(document(entry(), entry(launch=1, **changed))))


def test_unequal_rows_are_refused(save):
    """Launches that scored different numbers of rows did not do the same work."""
    with pytest.raises(ResultError, match=r"rows in a pass is 3 in .* and 2 in"):
        read(save(document(entry(), entry(launch=1, seconds=(1.0, 1.0)))))


def test_reading_does_not_change_the_digest(save):
    """The digest is of the file's bytes: a copy has the same, another run has not."""
    first = document(entry())
    other = copy.deepcopy(first)
    other["benchmarks"][0]["stats"]["data"][0] = 0.6
    digests = [read(save(content, name)).digest for content, name in ((first, "a"), (first, "b"), (other, "c"))]
    assert digests[0] == digests[1] != digests[2]
