"""Verdicts are proven or not given: Welch and Holm as published, A/A runs quiet, refusals by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rmscore.compare import compare, holm, welch
from rmscore.errors import ResultError, SettingError
from rmscore.results import Cell, Failure, Measurement, Run

EAGER, GRAPH, PACKED = "eager cpu fp32 one", "onnxruntime cpu fp32 bucketed:8", "packed cpu fp32 tokens:512"
EXTRA = {"passes": 1, "model_hash": "m1", "rows_hash": "r1", "threads": 2, "max_abs_delta": 1e-6}


def run(name="base", *, rows=8, **cells):
    """Return a run whose cells (given as ``{cell: seconds per row of each launch}``) scored rows one by one."""
    launches = [
        Measurement(
            Cell(*cell.split()),
            launch,
            np.full(rows, float(seconds)),
            np.ones(rows, np.int64),
            EXTRA | {"tokens": 300, "padded_tokens": 100, "load_seconds": 1 + launch, "first_call_seconds": 0.5},
        )
        for cell, times in cells.items()
        for launch, seconds in enumerate(times)
    ]
    return Run(Path(f"{name}.json"), name, launches)


def changed(base, **extra):
    """Return the run with other values recorded in every launch."""
    launches = [
        Measurement(each.cell, each.launch, each.seconds_per_batch, each.rows_per_batch, {**each.extra, **extra})
        for each in base.measurements
    ]
    return Run(base.path, base.digest, launches, base.failures, base.environment)


def verdict(base, candidate, **settings):
    """Return the one comparison of two lists of seconds per row."""
    (pair,) = compare(run("base", **{EAGER: base}), run("candidate", **{EAGER: candidate}), **settings).pairs
    return pair


def test_welch_by_hand():
    """Means 1 and 4, variances 1 and 2, sizes 3 and 2: t = -3 / sqrt(4/3) on 32/19 degrees of freedom."""
    difference, low, high, p, _ = welch(np.array([0.0, 1.0, 2.0]), np.array([3.0, 5.0]))
    half = scipy.stats.t.ppf(0.975, 32 / 19) * (4 / 3) ** 0.5
    assert difference == -3
    assert (low, high) == pytest.approx((-3 - half, -3 + half))
    assert p == pytest.approx(2 * scipy.stats.t.sf(3 / (4 / 3) ** 0.5, 32 / 19))


def test_pair_is_welch_on_log_seconds():
    """Ratio, interval and p are scipy's Welch test on the logarithms of seconds per row."""
    base, candidate = [1.0, 1.1, 0.95, 1.02, 1.07], [0.7, 0.78, 0.74]
    pair = verdict(base, candidate)
    judged = scipy.stats.ttest_ind(np.log(base), np.log(candidate), equal_var=False)
    interval = judged.confidence_interval(0.95)
    assert pair.ratio == pytest.approx(np.exp(np.mean(np.log(base)) - np.mean(np.log(candidate))))
    assert (pair.low, pair.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))
    assert pair.p == pair.holm_p == pytest.approx(judged.pvalue)
    assert pair.verdict == "faster"


def test_holm_textbook():
    """0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02: step down, never below a smaller p's."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_keeps_a_lone_hit_among_many_unclear():
    """A p below 5 % alone is not enough among three comparisons, and the reason says so."""
    noisy = {EAGER: [1.0, 1.2, 0.9, 1.1], GRAPH: [0.8, 0.95, 0.75, 0.85], PACKED: [0.95, 1.15, 0.9, 1.05]}
    pair = compare(run(**noisy)).pairs[0]
    assert pair.p < 0.05 < pair.holm_p
    assert pair.verdict == "unclear"
    assert "after Holm's correction over 3 comparisons" in pair.reason


def test_detectable_difference_has_its_power():
    """A true difference of the detectable size is found in 80 % of tries (500 tries of 5 and 5 launches)."""
    draw = np.random.default_rng(11)
    true = (scipy.stats.t.ppf(0.975, 8) + scipy.stats.t.ppf(0.8, 8)) * 0.02 * (2 / 5) ** 0.5
    tries = [welch(draw.normal(true, 0.02, 5), draw.normal(0, 0.02, 5)) for _ in range(500)]
    assert np.mean([p < 0.05 for *_, p, _ in tries]) == pytest.approx(0.8, abs=0.05)
    assert np.mean([detectable for *_, detectable in tries]) == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_equal_runs_are_rarely_called_different(noise):
    """Two runs of the same thing, 5 launches of 3 cells: at most 5 % of 400 tries have any faster or slower."""
    draw, alarms = np.random.default_rng(2024), 0
    for _ in range(400):
        times = np.exp(draw.normal(0, noise, (2, 3, 5)))
        base, candidate = (dict(zip((EAGER, GRAPH, PACKED), side, strict=True)) for side in times)
        pairs = compare(run("base", rows=1, **base), run("candidate", rows=1, **candidate)).pairs
        alarms += any(pair.verdict in {"faster", "slower"} for pair in pairs)
    assert alarms <= 0.05 * 400


@pytest.mark.parametrize(
    ("candidate", "word"),
    [
        ([0.80, 0.81, 0.79], "faster"),
        ([1.30, 1.28, 1.31], "slower"),
        ([1.01, 1.00, 1.02], "same"),
        ([1.00, 1.40, 0.70], "unclear"),
    ],
)
def test_every_verdict_is_reached(candidate, word):
    """Clear gains, clear losses, proven equality and noise each have their word, for the pair and for the run."""
    base = run("base", **{EAGER: [1.00, 1.01, 0.99]})
    comparison = compare(base, run("candidate", **{EAGER: candidate}))
    assert [pair.verdict for pair in comparison.pairs] == [word]
    assert comparison.verdict == word


def test_one_cell_has_nothing_to_compare():
    """A run of one cell alone gives no pair and the word for it."""
    comparison = compare(run(**{EAGER: [1.0, 1.1]}))
    assert (comparison.pairs, comparison.verdict) == ([], "nothing to compare")


def test_insignificance_is_not_equality():
    """Equal means with wide noise are unclear: an interval beyond the margin proves nothing."""
    pair = verdict([1.0, 1.3, 0.8], [1.0, 1.3, 0.8])
    assert (pair.p, pair.verdict) == (1.0, "unclear")


def test_same_precedes_significance():
    """A difference that is certain but wholly inside the margin is same; with a narrower margin it is faster."""
    base, candidate = [1.000, 1.001, 0.999, 1.0], [0.980, 0.981, 0.979, 0.98]
    assert verdict(base, candidate).p < 0.001
    assert verdict(base, candidate).verdict == "same"
    assert verdict(base, candidate, margin=0.01).verdict == "faster"


@pytest.mark.parametrize(
    ("base", "candidate", "word", "p"),
    [([0.1] * 3, [0.1] * 5, "same", 1), ([0.1] * 3, [0.05] * 3, "faster", 0), ([0.3] * 7, [0.7] * 3, "slower", 0)],
)
def test_no_variance_is_certain(base, candidate, word, p):
    """Launches without any variance divide by nothing: the interval is the ratio itself."""
    pair = verdict(base, candidate)
    assert pair.low == pair.high == pair.ratio == pytest.approx(base[0] / candidate[0])
    assert (pair.p, pair.verdict, pair.detectable) == (p, word, 1.0)


def test_one_side_without_variance():
    """Variance on one side only is Welch's test with that side's degrees of freedom."""
    pair = verdict([1.0, 1.0, 1.0], [0.5, 0.51, 0.49])
    assert pair.p == pytest.approx(scipy.stats.ttest_1samp(np.log([0.5, 0.51, 0.49]), 0).pvalue)


@pytest.mark.parametrize(("base", "candidate"), [([1.0], [0.1]), ([1.0], [0.1, 0.1]), ([1.0, 1.0], [0.1])])
def test_one_launch_proves_nothing(base, candidate):
    """Below two launches a side there is a ratio but no interval, no p and no verdict."""
    pair = verdict(base, candidate)
    assert (pair.verdict, pair.low, pair.p, pair.holm_p) == ("unclear", None, None, None)
    assert pair.reason == f"launches {len(base)} and {len(candidate)}, 2 and 2 are needed"
    assert pair.ratio == pytest.approx(10)


def test_untested_pairs_do_not_count_for_holm():
    """Holm adjusts over the comparisons made, not over those that lack launches."""
    pairs = compare(run(**{EAGER: [1.0, 1.01], GRAPH: [0.5, 0.51], PACKED: [0.3]})).pairs
    assert [pair.p is None for pair in pairs] == [False, True, True]
    assert pairs[0].holm_p == pairs[0].p


def seconds():
    return st.lists(st.floats(0.01, 100), min_size=2, max_size=6)


@settings(deadline=None)
@given(seconds(), seconds())
def test_swapping_inverts(base, candidate):
    """Base and candidate swapped: the ratio and its interval invert, p stays, faster and slower change places."""
    one, other = verdict(base, candidate), verdict(candidate, base)
    assume(min(abs(np.log(bound) - edge) for bound in (one.low, one.high) for edge in np.log([1 / 1.05, 1.05])) > 1e-9)
    assert (other.ratio, other.low, other.high) == pytest.approx((1 / one.ratio, 1 / one.high, 1 / one.low), rel=1e-6)
    assert other.p == pytest.approx(one.p, rel=1e-6, abs=1e-12)
    assert other.detectable == pytest.approx(one.detectable, rel=1e-6)
    assert other.verdict == {"faster": "slower", "slower": "faster"}.get(one.verdict, one.verdict)


@settings(deadline=None)
@given(seconds(), seconds(), st.floats(0.01, 100))
def test_verdict_does_not_depend_on_the_unit(base, candidate, unit):
    """Times in another unit give the same ratio: only relative differences count."""
    one = verdict(base, candidate)
    other = verdict([unit * each for each in base], [unit * each for each in candidate])
    assert (other.ratio, other.low, other.high) == pytest.approx((one.ratio, one.low, one.high), rel=1e-6)


def cells(count):
    return {f"engine{index} cpu fp32 one": [1.0 + index, 1.1 + index] for index in range(count)}


def test_up_to_eight_cells_are_all_compared():
    """Eight cells give 28 pairs in file order; nine give eight, each against the first cell in the file."""
    assert len(compare(run(**cells(8))).pairs) == 28
    pairs = compare(run(**cells(9))).pairs
    assert [(pair.base.backend, pair.candidate.backend) for pair in pairs] == [
        ("engine0", f"engine{index}") for index in range(1, 9)
    ]


def test_baseline_is_named_by_its_words():
    """Enough words to mean one cell name the baseline; all other cells are compared with it and no others."""
    pairs = compare(
        run(**{EAGER: [1, 1.1], GRAPH: [2, 2.1], PACKED: [3, 3.1]}), baseline="bucketed:8 onnxruntime"
    ).pairs
    assert [(str(pair.base), str(pair.candidate)) for pair in pairs] == [(GRAPH, EAGER), (GRAPH, PACKED)]


def test_two_runs_compare_equal_cells_and_list_the_rest():
    """Only equal cells are compared; those of one run alone are listed as gone or new, failures beside them."""
    base, candidate = run(**{EAGER: [1, 1.1], GRAPH: [2, 2.1]}), run("new", **{GRAPH: [2, 2.2], PACKED: [3, 3.1]})
    failure = Failure(EAGER, 1, "killed")
    candidate = Run(candidate.path, candidate.digest, candidate.measurements, [failure])
    found = compare(base, candidate)
    assert [str(pair.base) for pair in found.pairs] == [GRAPH]
    assert ([str(cell) for cell in found.gone], [str(cell) for cell in found.new]) == ([EAGER], [PACKED])
    assert found.failures == [("candidate", failure)]


@pytest.mark.parametrize("key", ["model_hash", "rows_hash"])
def test_other_subject_is_refused(key):
    """Runs of another model or other rows are refused with both hashes and both files."""
    base, candidate = run(**{EAGER: [1, 1.1]}), changed(run("new", **{EAGER: [1, 1.1]}), **{key: "other"})
    with pytest.raises(ResultError, match=rf"{key} is '.1' in base\.json and 'other' in new\.json"):
        compare(base, candidate)


def test_same_file_is_refused():
    """A run compared with itself, by path or by a copy of the file, is refused."""
    base = run(**{EAGER: [1, 1.1]})
    copy = Run(Path("copy.json"), base.digest, base.measurements)
    rewritten = Run(base.path, "other", base.measurements)
    for other in (base, copy, rewritten):
        with pytest.raises(ResultError, match="are the same file"):
            compare(base, other)


def test_nothing_in_common_is_refused():
    """Two runs without an equal cell are refused with the cells of both."""
    with pytest.raises(ResultError, match=rf"no cell is both in base\.json \({EAGER}\) and in new\.json \({PACKED}\)"):
        compare(run(**{EAGER: [1, 1.1]}), run("new", **{PACKED: [1, 1.1]}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"margin": 0}, "margin of 0"),
        ({"margin": 5}, "margin of 5"),
        ({"margin": True}, "margin of True"),
        ({"margin": float("nan")}, "margin of nan"),
        ({"metric": "rows"}, r"no metric 'rows' \(.*choose from: p50, p95, rows_per_second\)"),
        ({"baseline": "eagre one"}, "0 cells are called 'eagre one', one must be .*did you mean 'eager cpu fp32 one'"),
        ({"baseline": "cpu"}, "2 cells are called 'cpu'"),
        ({"baseline": " "}, "0 cells are called ' '"),
    ],
)
def test_impossible_setting_is_refused(settings, words):
    """A margin, metric or baseline that does not exist is refused with its value and the choice."""
    with pytest.raises(SettingError, match=words):
        compare(run(**{EAGER: [1, 1.1], GRAPH: [2, 2.1]}), **settings)


def test_baseline_of_two_runs_is_refused():
    """Of two files the first is the baseline: naming a cell would be silently ignored."""
    with pytest.raises(SettingError, match="'eager one'"):
        compare(run(**{EAGER: [1, 1.1]}), run("new", **{EAGER: [1, 1.2]}), baseline="eager one")


def test_percentile_metric_needs_its_rows():
    """p95 of 71 rows is refused as a metric, of 72 rows it is compared, and equals the ratio of latencies."""
    with pytest.raises(ResultError, match=rf"base\.json: p95 needs 72 rows and {EAGER} has 71"):
        compare(run(rows=71, **{EAGER: [1, 1.1], GRAPH: [2, 2.2]}), metric="p95")
    (pair,) = compare(run(rows=72, **{EAGER: [1, 1.1], GRAPH: [2, 2.2]}), metric="p95").pairs
    assert pair.ratio == pytest.approx(0.5)


@pytest.mark.parametrize("time", [float("nan"), float("inf"), 0.0, -1.0])
@pytest.mark.parametrize("metric", ["rows_per_second", "p50"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_a_time_gives_no_verdict(time, metric):
    """A run built by hand around a time that is none is an error, whatever the metric."""
    with pytest.raises(ResultError, match="not a positive number"):
        compare(run(**{EAGER: [1, 1.1], GRAPH: [2, time]}), metric=metric)
