"""Reports say what the comparison proved, in tables that hold at 80 columns and JSON that survives."""

from __future__ import annotations

import io
import itertools
import json

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from rmscore.compare import compare
from rmscore.report import SCHEMA, headline, markdown, notes, sentences, terminal, to_json
from rmscore.results import read

from .test_compare import run as timed
from .test_results import document, entry

EAGER, ONE, BUCKETED = "eager cpu fp32 one", "onnxruntime cpu fp32 one", "onnxruntime cpu fp32 bucketed:8"
SPEEDS = {EAGER: 0.85, ONE: 1.42, BUCKETED: 0.81}
WIDEST = {"onnxruntime cuda:0 bf16 bucketed:16": 1234.5, "onnxruntime cpu int8 bucketed:8": 2.5, EAGER: 0.85}


@pytest.fixture
def measured(tmp_path):
    """Return a function that saves a run of the given rows per second and reads it back."""

    def write(speeds, name="run.json", *, rows=60, noise=0.01, launches=5, seed=1, **changed):
        draw = np.random.default_rng(seed)
        entries = [
            entry(cell, launch, (np.exp(draw.normal(0, noise)) / speed * np.ones(rows)).tolist(), **changed)
            for launch in range(launches)
            for cell, speed in speeds.items()
        ]
        failures = [
            {"cell": "compile cpu fp32 one", "launch": 2, "last_words": "[red]\x1b[31mout of\nmemory @all | `x`"}
        ]
        path = tmp_path / name
        path.write_text(json.dumps(document(*entries, failures=failures, environment={"python": f"3.{seed}"})))
        return read(path)

    return write


def printed(comparison, width=80):
    """Return the lines that a plain terminal of that width shows."""
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(terminal(comparison, width))
    return console.file.getvalue().splitlines()


def test_winner_is_named_in_plain_words(measured):
    """The fastest cell is named where every comparison proves it, with ratio, interval and verdict word."""
    comparison = compare(measured(SPEEDS))
    assert headline(comparison) == "fastest: onnxruntime one"
    (pair,) = [each for each in comparison.pairs if (str(each.base), str(each.candidate)) == (EAGER, ONE)]
    expected = f"onnxruntime one is {pair.ratio:.2f}x [{pair.low:.2f}, {pair.high:.2f}] as fast as eager one (faster)"
    assert expected in sentences(comparison)


def test_order_of_cells_does_not_decide_the_words(measured):
    """The winner is the candidate of its sentences, wherever it stands in the file."""
    comparison = compare(measured(dict(reversed(SPEEDS.items()))))
    assert headline(comparison) == "fastest: onnxruntime one"
    assert all(line.startswith("onnxruntime one is 1.") and line.endswith("(faster)") for line in sentences(comparison))


def test_unproven_lead_is_no_win(measured):
    """Where launches scatter, the leading cell is said to lead and to have won nothing; same is never claimed."""
    comparison = compare(measured({EAGER: 1.0, ONE: 1.02}, noise=0.2))
    assert "leads, no winner: unclear against" in headline(comparison)
    assert all("(unclear: both no difference and one above 5 % remain possible)" in x for x in sentences(comparison))
    assert not any("same" in line for line in printed(comparison))


def test_proven_equality_names_its_margin(measured):
    """Same is said with the margin inside which it was proven."""
    (line,) = sentences(compare(measured({EAGER: 1.0, ONE: 1.001}, noise=0.002)))
    assert line.endswith("(same within 5 %)")


def test_baseline_mode_claims_no_more_than_it_compared(measured):
    """Where cells were compared with a baseline only, a lead over the others is not called a win."""
    comparison = compare(measured(SPEEDS), baseline="eager one")
    assert headline(comparison) == "onnxruntime one leads; only comparisons with eager one were made"


def test_two_runs_are_counted(measured):
    """Of two runs each equal cell has its sentence and the headline counts the verdicts, worst first."""
    slower = SPEEDS | {ONE: 1.0}
    comparison = compare(measured(SPEEDS), measured(slower, "new.json", seed=2))
    assert headline(comparison).startswith("slower: of 3 cells in both files")
    assert any(line.startswith("onnxruntime one: the candidate is 0.7") for line in sentences(comparison))
    assert any(line.endswith("as fast as the base (slower)") for line in sentences(comparison))


def test_single_cell_has_nothing_to_compare(measured):
    """One cell in one file says so and still shows the cell."""
    comparison = compare(measured({EAGER: 0.85}))
    assert printed(comparison)[0] == "nothing to compare: one cell in one file"
    assert "nothing to compare" in markdown(comparison)
    assert any(line.startswith("eager one") for line in printed(comparison))


@pytest.mark.parametrize("speeds", [SPEEDS, WIDEST])
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("width", [80, 120, 60])
def test_tables_hold_their_width(measured, speeds, two, width):
    """No line is wider than the terminal, and each table's rows begin with the whole names of its cells."""
    comparison = compare(measured(speeds), measured(speeds, "new.json", seed=2) if two else None)
    lines = printed(comparison, width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    words = [cell.split() for cell in speeds]
    names = [" ".join(each if speeds is WIDEST else (each[0], each[3])) for each in words]
    starts = [index for index, line in enumerate(lines) if line.startswith("cell ")]
    bodies = [list(itertools.takewhile(str.strip, lines[index + 1 :])) for index in starts]
    assert len(bodies) >= 2
    shown = [[next(name for name in names if line.startswith(f"{name} ")) for line in body] for body in bodies]
    assert set(shown[0]) == set(names)


@pytest.mark.parametrize("two", [False, True])
def test_verdicts_stand_beside_their_ratios(measured, two):
    """At 80 columns a comparison's cell, ratio, interval and verdict stand on one line, however wide the names."""
    comparison = compare(measured(WIDEST), measured(WIDEST, "new.json", seed=2) if two else None)
    lines = [line.split() for line in printed(comparison)]
    for pair in comparison.pairs:
        cell = str(pair.candidate).split()
        rows = [line[4:8] for line in lines if line[:4] == cell and line[7:8] == [pair.verdict]]
        ratios = [[float(word.strip("x[],").replace(",", "")) for word in row[:3]] for row in rows]
        assert any(row == pytest.approx([pair.ratio, pair.low, pair.high], rel=6e-3) for row in ratios)


def test_what_all_cells_share_is_said_once(measured):
    """Device, precision, launches and a percentile that all cells lack stand above the table, not in it."""
    lines = printed(compare(measured(SPEEDS)))
    (shared,) = [line for line in lines if line.startswith("device cpu; precision fp32; 60 rows; launches 5")]
    assert "p95 ms refused" in shared
    assert not any(line.startswith("cell ") and "launches" in line for line in lines)


def test_notes_say_what_figures_cannot(measured):
    """Refused percentiles, power, new and gone cells, other machines, failures with last words: a line each."""
    base, candidate = measured({EAGER: 1, ONE: 2}), measured({ONE: 2, BUCKETED: 1}, "new.json", seed=2)
    found = notes(compare(base, candidate))
    for line in (
        "p95 refused: it needs 72 rows, there are 60",
        "detectable: the smallest difference these launches would have shown (80 % power, two-sided 5 %)",
        f"only in the candidate: {BUCKETED}",
        f"only in the base: {EAGER}",
        "differs: python: '3.1' against '3.2'",
        "launch 2 of compile cpu fp32 one failed (candidate): [red] [31mout of memory @all | `x`",
    ):
        assert line in found
    assert all(line.isprintable() for line in found)


def test_unchecked_scores_are_told(measured):
    """A speed whose scores nobody checked is not shown without saying so."""
    assert f"scores not checked against the reference: {EAGER}" in notes(
        compare(measured({EAGER: 1.0}, max_abs_delta=None))
    )


def test_p95_is_shown_where_rows_carry_it(measured):
    """With 72 rows p95 is a figure and no note refuses it."""
    comparison = compare(measured(SPEEDS, rows=72))
    assert not any("refused" in line for line in (*printed(comparison), *notes(comparison)))
    assert any("p95 ms" in line for line in printed(comparison))


def test_few_launches_say_how_many_are_needed(measured):
    """One launch gives ratios without interval and the reason for it."""
    comparison = compare(measured(SPEEDS, launches=1))
    assert all("(unclear: launches 1 and 1, 2 and 2 are needed)" in line for line in sentences(comparison))
    assert not any("detectable:" in line for line in notes(comparison))
    assert printed(comparison)


def test_markdown_tables_have_equal_columns(measured):
    """Every row of a Markdown table has its header's columns, and foreign text mentions nobody and marks up nothing."""
    text = markdown(compare(measured(SPEEDS), measured(SPEEDS, "new.json", seed=2)))
    counts = {}
    for block in text.split("\n\n"):
        rows = [line.replace(r"\|", "") for line in block.splitlines() if line.startswith("|")]
        counts |= {row.count("|"): None for row in rows}
        assert len({row.count("|") for row in rows}) <= 1
    assert len(counts) == 2
    assert text.startswith("### ")
    assert "@all" not in text
    assert r"\`x\`" in text


@pytest.mark.parametrize("two", [False, True])
def test_json_round_trip(measured, two):
    """The JSON holds no NaN, survives writing and reading, and has the verdicts and the refusals."""
    comparison = compare(measured(SPEEDS), measured(SPEEDS, "new.json", seed=2) if two else None)
    data = to_json(comparison)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["schema"] == SCHEMA
    assert [each["verdict"] for each in data["comparisons"]] == [pair.verdict for pair in comparison.pairs]
    assert {json.dumps(each["refused"]) for each in data["cells"]} == {'{"p95": 72}'}
    assert len(data["cells"]) == (6 if two else 3)
    assert data["comparisons"][0]["base"] == dict(
        zip(("backend", "device", "precision", "batching"), EAGER.split(), strict=True)
    )


def test_colours_mark_verdicts(measured):
    """A terminal with colours shows the same words; the verdict is coloured, not replaced."""
    comparison = compare(measured(SPEEDS))
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False)
    console.print(terminal(comparison, 80))
    assert "\x1b[32mfaster" in console.file.getvalue()


def test_summary_of_a_cell():
    """A cell's figures are means over launches with t intervals, its worst delta and its cold seconds."""
    (found,) = compare(timed(rows=72, **{EAGER: [0.5, 0.4, 0.25]})).cells
    rates = np.array([2.0, 2.5, 4.0])
    low, high = scipy.stats.t.interval(0.95, 2, rates.mean(), scipy.stats.sem(rates))
    speed = found.rows_per_second
    assert (speed.mean, speed.low, speed.high) == pytest.approx((rates.mean(), low, high))
    assert found.p50.mean == found.p95.mean == pytest.approx(np.mean([0.5, 0.4, 0.25]))
    assert (found.launches, found.rows, found.padded_share) == (3, 72, 0.25)
    assert (found.max_abs_delta, found.cold_seconds, found.peak_rss_bytes) == (1e-6, 2.5, None)


def test_summary_of_one_launch_has_no_interval():
    """One launch gives a figure without an interval, and too few rows give no percentile."""
    (found,) = compare(timed(rows=5, **{EAGER: [0.5]})).cells
    assert (found.rows_per_second.mean, found.rows_per_second.low, found.rows_per_second.high) == (2.0, None, None)
    assert (found.p50, found.p95) == (None, None)
