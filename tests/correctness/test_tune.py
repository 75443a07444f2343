"""Tuning: what is tried, what is dropped, when it ends, and when its plan is used."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("scipy")
pytest.importorskip("torch")

import rmscore
from rmscore.backends.architectures import PACKED
from rmscore.checkpoint import content_hash, open_checkpoint
from rmscore.errors import BackendError, OutputError, SettingError, UnknownBackend
from rmscore.launch import WorkerFailure
from rmscore.results import Cell
from rmscore.tolerance import Agreement
from rmscore.tune import Limits, candidates, in_the_race, measure, parse_duration, parse_share, ranked, ratio, rival
from rmscore.tuned import Choice, Plan, facts, find_plan, identity, write

DEBERTA = "DebertaV2ForSequenceClassification"
ROWS = [{"prompt": f"What is {i}?", "response": "a " * i} for i in range(6)]


def cell(backend, precision="fp32", batching="one"):
    return Cell(backend, "cpu", precision, batching)


def agreed(delta=1e-6, tau=1.0, flips=0.0, spread=0.01):
    return Agreement(delta, spread, tau, flips, 0.0, 1.0)


def outcome(seconds_per_row, precision="fp32"):
    return SimpleNamespace(
        seconds_per_batch=[seconds_per_row * 10], rows_per_batch=[10], load_seconds=2.0, encode_seconds=0.0,
        first_call_seconds=0.0, record={"effective_precision": precision},
    )  # fmt: skip


class Race:
    """Launches of made-up speed: seconds per row by backend, one per cent of noise, a clock that each launch moves."""

    def __init__(self, seconds, agreements=()):
        self.seconds, self.agreements = seconds, dict(agreements)
        self.now, self.log = 0.0, []

    def launch(self, cell, number):
        seconds = self.seconds[cell.backend]
        if isinstance(seconds, Exception):
            raise seconds
        self.log.append((cell.backend, number))
        self.now += 2 + 10 * seconds
        noise = 1 + 0.01 * math.sin(len(self.log))
        return outcome(seconds * noise, cell.precision), self.agreements.get(cell.backend, agreed())

    def run(self, budget=300.0, limits=None, precision="fp32"):
        cells = [cell(name, precision) for name in self.seconds]
        return measure(
            cells, self.launch, limits or Limits(), budget_seconds=budget, tell=lambda *_: None, clock=lambda: self.now
        )  # fmt: skip

    def launches(self, backend):
        return sum(name == backend for name, _ in self.log)


def test_the_names_of_packed_are_its_networks():
    """The list that a choice reads without PyTorch is the list of networks."""
    from rmscore.backends.packed import NETWORKS

    assert tuple(NETWORKS) == PACKED


def test_fp32_alone_is_tried_unless_a_bound_allows_more():
    """Lower precisions come in with a correctness budget or by name, for the engines that gain by them."""
    plain, _ = candidates(DEBERTA, "cpu")
    assert {each.precision for each in plain} == {"fp32"}
    assert {f"{each.backend}@{each.batching}" for each in plain if each.backend == "packed"} == {
        "packed@one",
        "packed@tokens:1024",
        "packed@tokens:4096",
    }
    bounded, _ = candidates(DEBERTA, "cpu", limits=Limits(max_flips=0.01))
    assert set(plain) < set(bounded)
    assert {each.backend for each in bounded if each.precision == "int8"} == {"packed"}
    named, _ = candidates(DEBERTA, "cpu", backends=("packed@one", "eager"), precisions=("bf16",), batching=("naive:2",))
    assert named == [cell("packed", "bf16"), cell("eager", "bf16", "naive:2")]


def test_what_cannot_be_measured_is_left_out_with_a_line(monkeypatch):
    """A missing engine and an unknown architecture cost their candidates; an unknown name is an error."""
    monkeypatch.setattr(
        "rmscore.backends.BackendSpec.missing", lambda self: ("openvino",) if self.name == "openvino" else ()
    )
    cells, lines = candidates("OtherForSequenceClassification", "cpu")
    assert {each.backend for each in cells} == {"eager", "onnxruntime"}
    assert lines == [
        "left out: backend 'openvino' needs openvino: pip install 'rmscore[openvino]'",
        "left out: packed has no OtherForSequenceClassification",
    ]
    with pytest.raises(UnknownBackend, match="did you mean 'packed'"):
        candidates(DEBERTA, "cpu", backends=("paked",))
    with pytest.raises(SettingError, match="no candidate has precision 'fp33' on cpu"):
        candidates(DEBERTA, "cpu", precisions=("fp33",))
    with pytest.raises(SettingError, match="unknown device 'tpu'"):
        candidates(DEBERTA, "tpu")
    with pytest.raises(SettingError, match="nothing to measure on cpu: left out: packed has no"):
        candidates("OtherForSequenceClassification", "cpu", backends=("packed",))


def test_the_slow_are_dropped_and_the_rest_share_the_budget():
    """Candidates whose intervals lie below the fastest's are launched no more; the time goes to those that remain."""
    race = Race({"packed": 0.10, "onnxruntime": 0.1005, "eager": 0.3, "openvino": 0.2})
    trials = race.run(budget=100)
    assert race.now <= 100
    assert {"packed", "onnxruntime"} == {each.cell.backend for each in in_the_race(trials)}
    assert race.launches("packed") > 10
    assert max(race.launches("eager"), race.launches("openvino")) <= 3
    assert [each.cell.backend for each in ranked(trials)][2:] == ["openvino", "eager"]


def test_blocks_hold_every_candidate_once():
    """Launches are interleaved: no candidate has a launch more than another that is still in the race."""
    race = Race({"packed": 0.1, "onnxruntime": 0.1})
    race.run(budget=60)
    for start in range(0, len(race.log) - 1, 2):
        assert {name for name, _ in race.log[start : start + 2]} == {"packed", "onnxruntime"}
    assert len({race.log[start][0] for start in range(0, len(race.log), 2)}) == 2


def test_every_candidate_has_one_launch_whatever_the_budget():
    """The first launches are the check of correctness and are always done; without a second there is no interval."""
    race = Race({"packed": 1.0, "eager": 9.0})
    trials = race.run(budget=0)
    assert [len(each.seconds_per_row) for each in trials] == [1, 1]
    best, other = ranked(trials)
    assert best.rows_per_second()[1:] == (None, None)
    assert ratio(best, other)[0] == pytest.approx(9, rel=0.03)
    assert ratio(best, other)[1] is None


def test_a_race_that_is_decided_ends():
    """With one candidate left nothing more is measured, though there be time."""
    race = Race({"packed": 0.1, "eager": 1.0})
    race.run(budget=1e6)
    assert len(race.log) <= 6


def test_what_breaks_the_budget_is_dropped_with_its_figure():
    """The table of tolerances and the user's own bounds each drop a candidate, and say by which figure."""
    race = Race(
        {"packed": 0.1, "openvino": 0.1, "eager": 0.2},
        {"packed": agreed(3e-3, flips=0.01), "openvino": agreed(3e-3, tau=0.5)},
    )
    trials = race.run(precision="bf16", limits=Limits(max_flips=0.005))
    why = {each.cell.backend: each.dropped for each in trials}
    assert why["packed"] == "the share of flipped pairs is 1.00%, --max-flips 0.50%"
    assert "τ 0.500: outside the tolerances of cpu bf16" in why["openvino"]
    assert [each.cell.backend for each in ranked(trials)] == ["eager"]
    assert race.launches("packed") == 1
    assert Limits(max_delta=1e-4).breach(agreed(2e-4), "cpu", "bf16") == "max |Δ| 2.0e-04 is over --max-delta 0.0001"
    assert "outside the tolerances of cpu fp32" in Limits(max_delta=1).breach(agreed(2e-5), "cpu", "fp32")
    assert Limits(max_delta=1.0).breach(agreed(math.nan), "cpu", "fp32")
    assert Limits(max_flips=0.5).breach(agreed(flips=None), "cpu", "bf16")
    assert not Limits().breach(agreed(), "cpu", "fp32")


def test_a_failed_launch_drops_its_candidate():
    """A worker that dies costs its candidate, not the run."""
    race = Race({"packed": WorkerFailure("was killed by SIGKILL"), "eager": 0.2})
    trials = race.run()
    assert trials[0].dropped == "was killed by SIGKILL"
    assert [each.cell.backend for each in ranked(trials)] == ["eager"]


def test_a_choice_is_held_against_the_best_of_another_backend():
    """``packed`` in one batching is compared with the fastest other engine, else with its own next batching."""
    one, two, other = (
        SimpleNamespace(cell=cell("packed")),
        SimpleNamespace(cell=cell("packed", batching="tokens:64")),
        SimpleNamespace(cell=cell("eager")),
    )
    assert rival(one, [one, two, other]) is other
    assert rival(one, [one, two]) is two
    assert rival(one, [one]) is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("0", 0)]
)  # fmt: skip
def test_a_budget_is_a_time(text, seconds):
    """Seconds, minutes and hours are read."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "five", "-1", "nan", "inf", "5d"])
def test_what_is_no_time_is_refused(text):
    """The message shows how a time is written."""
    with pytest.raises(SettingError, match="write a time such as 90s, 5m or 1h"):
        parse_duration(text)


def test_a_share_is_per_cent_or_a_fraction():
    """``0.5%`` and ``0.005`` are the same; what lies outside 0 to 1 is refused."""
    assert parse_share("0.5%") == parse_share("0.005") == 0.005
    for text in ("5", "-1%", "nan", "few"):
        with pytest.raises(SettingError, match="share of flips"):
            parse_share(text)


@pytest.fixture
def model(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("RMSCORE_CACHE", str(tmp_path / "cache"))
    return open_checkpoint(tiny("electra-small"))


def plan_of(model, **changes):
    folder, size = identity(model)
    choices = (
        Choice("eager", "bf16", "naive:2", "measured so"),
        Choice("eager", "fp32", "bucketed:2", "measured so too"),
    )
    made = Plan(content_hash(model), folder, size, "cpu", 1, facts("cpu"), "2026-01-02", choices)
    return replace(made, **changes)


def test_auto_uses_the_plan_and_says_why(model):
    """Backend, precision and batching come from the plan; what the user names wins."""
    write(plan_of(model))
    with rmscore.load(model.folder, threads=1) as scorer:
        assert (scorer.name, scorer.settings.precision, str(scorer.batching)) == ("eager", "bf16", "naive:2")
        assert scorer.chosen_because == "measured so"
        assert len(scorer.score(ROWS)) == len(ROWS)
    with rmscore.load(model.folder, threads=1, precision="fp32") as scorer:
        assert (scorer.name, scorer.settings.precision, str(scorer.batching)) == ("eager", "fp32", "bucketed:2")
    with rmscore.load(model.folder, threads=1, batching="one") as scorer:
        assert (scorer.settings.precision, str(scorer.batching)) == ("bf16", "one")
    with rmscore.load(model.folder, threads=1, backend="reference") as scorer:
        assert (scorer.name, scorer.settings.precision, str(scorer.batching)) == ("reference", "fp32", "one")


def test_a_plan_survives_the_file(model):
    """What is written is what is read."""
    made = plan_of(model)
    write(made)
    found, why = find_plan(model, "cpu", 1)
    assert (replace(found, measured=()), why) == (made, "")


def test_without_a_plan_there_is_no_reason_and_the_rule_of_thumb(model):
    """``packed`` in token batches where it has the architecture."""
    assert find_plan(model, "cpu", 1) == (None, "")
    with rmscore.load(model.folder, threads=1) as scorer:
        assert (scorer.name, scorer.settings.precision, str(scorer.batching)) == ("packed", "fp32", "tokens:1024")
        assert scorer.chosen_because == "the rule of thumb on cpu in fp32; rmscore tune measures it"


def test_the_rule_of_thumb_goes_on_where_packed_refuses(model, monkeypatch):
    """An architecture that packed lacks, and a checkpoint that it refuses, go to the next engine, which is said."""
    monkeypatch.setattr(
        "rmscore.backends.BackendSpec.missing", lambda self: ("onnxruntime",) if self.name == "onnxruntime" else ()
    )
    with monkeypatch.context() as patch:
        patch.setattr("rmscore.score.PACKED", ())
        with rmscore.load(model.folder, threads=1) as scorer:
            assert (scorer.name, str(scorer.batching)) == ("eager", "one")
            assert "packed has no ElectraForSequenceClassification" in scorer.chosen_because
    real = rmscore.score.load_backend

    def refusing(name, *rest):
        if name == "packed":
            raise BackendError("packed has no such layer")
        return real(name, *rest)

    monkeypatch.setattr("rmscore.score.load_backend", refusing)
    with rmscore.load(model.folder, threads=1) as scorer:
        assert scorer.name == "eager"
        assert scorer.chosen_because.endswith("; packed refused: packed has no such layer")
    with pytest.raises(BackendError, match="no such layer"):
        rmscore.load(model.folder, threads=1, backend="packed")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threads": 7}, "the plan of 2026-01-02 is not used: it is for 7 threads, not 1; tune again"),
        ({"device": "cuda"}, "it is for cuda"),
        ({"model_hash": "0" * 64}, "the checkpoint has changed since"),
        ({"facts": {"cpu_model": "another"}}, "cores_affinity: absent against"),
    ],
)
def test_a_plan_of_other_conditions_is_not_used(model, changes, why):
    """Threads, device, content of the checkpoint and machine must be those that were measured; the reason is told."""
    write(plan_of(model, **changes))
    found, reason = find_plan(model, "cpu", 1)
    assert found is None
    assert why in reason
    with rmscore.load(model.folder, threads=1) as scorer:
        assert scorer.name == "packed"
        assert reason in scorer.chosen_because


def test_another_version_of_an_engine_ends_a_plan(model):
    """A plan measured with another torch is not used, and the two versions are named."""
    here = facts("cpu")
    write(plan_of(model, facts=here | {"versions": here["versions"] | {"torch": "1.0"}}))
    assert "versions.torch: '1.0' against" in find_plan(model, "cpu", 1)[1]


def test_a_plan_of_another_checkpoint_is_no_reason(model):
    """A checkpoint of the same size elsewhere neither lends its plan nor is mentioned."""
    write(plan_of(model, folder="/elsewhere", model_hash="0" * 64))
    assert find_plan(model, "cpu", 1) == (None, "")


def test_a_copied_checkpoint_keeps_its_plan(model):
    """The content decides, not the folder."""
    write(plan_of(model, folder="/elsewhere"))
    assert find_plan(model, "cpu", 1)[0] is not None


def test_a_plan_whose_backend_is_gone_is_not_used(model):
    """A backend that no package gives any more is named as the reason."""
    write(plan_of(model, choices=(Choice("theirs", "fp32", "one", "once"),)))
    with rmscore.load(model.folder, threads=1) as scorer:
        assert scorer.name == "packed"
        assert "the tuned plan is not used: unknown backend 'theirs'" in scorer.chosen_because
    with rmscore.load(model.folder, threads=1, precision="bf16") as scorer:
        assert "the plan of 2026-01-02 has nothing in bf16" in scorer.chosen_because


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"', '{"schema": "rmscore-tuned/1"}', None])
def test_a_broken_plan_is_told_and_not_used(model, text):
    """A plan file that was cut or edited never stops a score."""
    path = write(plan_of(model))
    if text is None:
        saved = json.loads(path.read_text())
        saved["choices"][0]["batching"] = "bucket:8"
        text = json.dumps(saved)
    path.write_text(text)
    assert find_plan(model, "cpu", 1) == (None, f"the plan {path} cannot be read; tune again")


def test_a_cache_that_cannot_be_written_is_told(model, monkeypatch, tmp_path):
    """The message names the variable that moves the cache."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RMSCORE_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="set RMSCORE_CACHE"):
        write(plan_of(model))


def rmscore_cli(*words):
    pytest.importorskip("typer")
    done = subprocess.run(
        [sys.executable, "-m", "rmscore.cli", *map(str, words)], capture_output=True, text=True, check=False,
        timeout=300, env=os.environ | {"COLUMNS": "80", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def rows_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_tune_measures_writes_a_plan_and_score_uses_it(model, rows_file):
    """The command prints a table of 80 columns and the choice; a score of the same checkpoint then says it is tuned."""
    words = ("--model", model.folder, "--threads", 1)
    done = rmscore_cli("tune", *words, "--rows", rows_file, "--backends", "eager,packed@one", "--budget", "0")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["candidate", "rows/s", "[95", "%]", "launches", "max", "|Δ|", "τ", "flips"]
    assert max(map(len, lines)) <= 80
    assert "one launch each" in done.stdout
    assert done.stderr.count("launch 1  ") == 2
    (path,) = (model.folder.__class__(os.environ["RMSCORE_CACHE"]) / "tuned").glob("*.json")
    assert f"{path}: written" in done.stderr
    first = json.loads(path.read_text())["choices"][0]
    scored = rmscore_cli("score", rows_file, *words)
    assert scored.returncode == 0
    assert f"backend {first['backend']} (tuned 20" in scored.stderr
    assert "on 6 rows of rows.jsonl" in scored.stderr


def test_mistakes_are_one_line_and_exit_2(model, rows_file, tmp_path):
    """Rows, bounds and budgets that cannot be used are told before anything is measured."""
    (tmp_path / "empty.jsonl").write_text("")
    for words, hint in (
        (("--rows", tmp_path / "none.jsonl"), "no such file"),
        (("--rows", tmp_path / "empty.jsonl"), "holds no rows"),
        (("--rows", rows_file, "--max-flips", "1%"), "has none; use --max-delta"),
        (("--rows", rows_file, "--budget", "soon"), "budget 'soon'"),
        (("--rows", rows_file, "--backends", "paked"), "did you mean 'packed'"),
    ):
        done = rmscore_cli("tune", "--model", model.folder, *words)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1
        assert hint in done.stderr


def tuned(model, rows_file, **changes):
    from rich.console import Console

    from rmscore.tune_command import TuneSettings, tune

    said = []
    settings = TuneSettings(str(model.folder), str(rows_file), backends=("eager", "packed"), threads=1, **changes)
    return tune, settings, said, Console(quiet=True)


def test_ctrl_c_writes_nothing_and_says_so(model, rows_file, monkeypatch, tmp_path):
    """A run that is stopped tells in one line how far it was; no plan appears."""
    tune, settings, said, console = tuned(model, rows_file)

    def run(self, cell, number):
        if cell.backend == "packed":
            raise KeyboardInterrupt
        return outcome(0.1), agreed()

    monkeypatch.setattr("rmscore.suite.Suite.run", run)
    with pytest.raises(KeyboardInterrupt):
        tune(settings, say=said.append, console=console)
    assert said[-1].startswith("stopped at launch ")
    assert said[-1].endswith("no plan was written")
    assert not (tmp_path / "cache" / "tuned").exists()


def test_nothing_left_is_an_error(model, rows_file, monkeypatch):
    """Where every candidate breaks the bounds, or the reference itself fails, there is no plan and an error."""
    tune, settings, said, console = tuned(model, rows_file)
    monkeypatch.setattr("rmscore.suite.Suite.run", lambda *_: (outcome(0.1), agreed(1e-3)))
    with pytest.raises(BackendError, match="no candidate is left of 4: max"):
        tune(settings, say=said.append, console=console)
    assert sum("DROPPED: max" in line for line in said) == 4

    def no_judge(self, cell, number):
        self.reference = WorkerFailure("of the reference was killed by SIGKILL")
        raise WorkerFailure("one of many") from self.reference

    monkeypatch.setattr("rmscore.suite.Suite.run", no_judge)
    with pytest.raises(BackendError, match="of the reference was killed"):
        tune(settings, say=said.append, console=console)
