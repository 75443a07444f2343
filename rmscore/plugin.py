"""The pytest plugin: options ``--rm-*``, the cells as parameters, and the record inside pytest-benchmark's JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from rmscore.errors import EngineMissing, RmscoreError

if TYPE_CHECKING:
    from pathlib import Path

    from rmscore.results import Cell
    from rmscore.suite import Suite, SuiteSettings
    from rmscore.tolerance import Agreement

OPTIONS = {
    "model": ("DIR", "checkpoint folder or hub id (default: a tiny model made for the run)"),
    "rows": ("FILE", "rows to score (default: the sample that ships with rmscore)"),
    "backends": ("A,B", "backends to measure, eager@one for one batching alone (default: eager,compile,onnxruntime)"),
    "devices": ("A,B", "devices to measure on: cpu, cuda (default: cpu)"),
    "precisions": ("A,B", "precisions to measure (default: fp32)"),
    "batching": ("A,B", "batching policies, such as one,naive:8,bucketed:8 (default: one)"),
    "launches": ("N", "fresh processes per cell (default: 5; 1 with --benchmark-disable)"),
    "passes": ("N", "measured passes over the rows in each launch (default: 1)"),
    "limit": ("N", "read only the first N rows of the file; a preference pair is one (default: all)"),
    "seed": ("N", "seed of the order within each block of launches (default: 0)"),
    "threads": ("N", "threads of every engine (default: the cores of the affinity mask)"),
    "timeout-seconds": ("S", "stop a launch after this time (default: 1800)"),
}
SAMPLE_LIMIT = 4
"""Pairs of the default run over the tiny model: eight scored rows, a second of work."""


@dataclass(slots=True)
class State:
    """The plugin's own state, kept on the pytest configuration."""

    suite: Suite | None = None
    say: Callable[[str], object] = str


STATE = pytest.StashKey[State]()


class WorkerClock:
    """The time a worker measured, where pytest-benchmark looks for a timer."""

    def __init__(self) -> None:
        self.now = 0.0


CLOCK = WorkerClock()


def worker_clock() -> float:
    """Return the replayed worker's time; the benchmark's timer, so that saved figures hold no pipe and no start-up."""
    return CLOCK.now


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, named as those of ``rmscore bench``."""
    group = parser.getgroup("rmscore", "rmscore: scoring benchmarks, each launch in its own process")
    for name, (metavar, text) in OPTIONS.items():
        group.addoption(f"--rm-{name}", metavar=metavar, default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the state on the configuration."""
    config.stash[STATE] = State()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that asks for ``rm_launch`` its launches, interleaved and shuffled within each block."""
    if "rm_launch" not in metafunc.fixturenames:
        return
    try:
        order = _settings(metafunc.config, model="", rows="").order()
    except EngineMissing as error:
        metafunc.parametrize(
            "rm_launch", [pytest.param(None, marks=pytest.mark.skip(reason=str(error)))], indirect=True
        )
        return
    except RmscoreError as error:
        raise pytest.UsageError(str(error)) from error
    params = [(*dataclasses.astuple(cell), number) for cell, number in order]
    names = ["{}-{}-{}-{}-launch{}".format(*param) for param in params]
    metafunc.parametrize("rm_launch", params, ids=names, indirect=True)


def _settings(config: pytest.Config, *, model: str, rows: str) -> SuiteSettings:
    from rmscore.errors import SettingError
    from rmscore.suite import SuiteSettings

    given: dict[str, Any] = {}
    for option in OPTIONS:
        text = config.getoption(f"--rm-{option}")
        if text is None:
            continue
        name = option.replace("-", "_")
        default = getattr(SuiteSettings("", ""), name)
        try:
            given[name] = (
                tuple(part.strip() for part in text.split(",") if part.strip())
                if isinstance(default, tuple)
                else type(default)(text)
            )
        except ValueError as error:
            raise SettingError(f"--rm-{option} {text!r}: give a number") from error
        if given[name] == ():
            raise SettingError(f"--rm-{option} is empty: give at least one")
    given.setdefault("model", model)
    given.setdefault("rows", rows)
    if config.getoption("benchmark_disable", default=False):
        given["launches"] = 1
    return SuiteSettings(**given)


@dataclass(frozen=True, slots=True)
class Launch:
    """One finished launch: its samples to replay, what is saved with it, and how it agrees with the reference."""

    cell: Cell
    seconds: list[float]
    extra_info: dict[str, Any]
    agreement: Agreement

    def replay(self) -> tuple[Callable[[], None], Callable[[], None], int]:
        """Return the target, its setup and the number of rounds that give the worker's samples to ``pedantic``."""
        samples = iter(self.seconds)

        def rewind() -> None:
            CLOCK.now = 0.0

        def advance() -> None:
            CLOCK.now = next(samples)

        return advance, rewind, len(self.seconds)


@pytest.fixture(scope="session")
def rm_suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """Return the run that all launches of this session belong to."""
    from rmscore.data import sample_path
    from rmscore.suite import open_suite

    config = request.config
    scratch = tmp_path_factory.mktemp("rmscore")
    try:
        settings = _settings(config, model="", rows=str(sample_path()))
        if not settings.model:
            settings = dataclasses.replace(settings, model=str(_tiny_model(scratch / "model")))
            if config.getoption("--rm-limit") is None:
                settings = dataclasses.replace(settings, limit=SAMPLE_LIMIT)
        suite = open_suite(settings, scratch)
    except EngineMissing as error:
        pytest.skip(str(error))
    except RmscoreError as error:
        pytest.exit(str(error), returncode=2)
    suite.say = config.stash[STATE].say
    config.stash[STATE].suite = suite
    return suite


def _tiny_model(folder: Path) -> Path:
    from rmscore.make_model import make_model

    make_model("deberta-v3-xsmall", folder, tiny=True)
    return folder


@pytest.fixture
def rm_launch(request: pytest.FixtureRequest) -> Launch:
    """Run one launch of one cell in a fresh process and return it; a worker that fails fails this test alone."""
    from rmscore.launch import WorkerFailure, cuda_works
    from rmscore.results import Cell

    if hasattr(request.config, "workerinput"):  # this process is a worker of xdist
        pytest.fail("measurements run one at a time: leave out -n / --numprocesses (or add -p no:xdist)", pytrace=False)
    *parts, number = request.param
    cell = Cell(*parts)
    if cell.device == "cuda" and not cuda_works():
        pytest.skip("no CUDA device that PyTorch can use")
    suite: Suite = request.getfixturevalue("rm_suite")
    try:
        outcome, agreed = suite.run(cell, number)
    except WorkerFailure as error:
        pytest.fail(str(error), pytrace=False)
    return Launch(cell, outcome.seconds_per_batch, suite.extra_info(cell, number, outcome, agreed), agreed)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Leave the host's name out: files are shared, and the name says nothing about speed."""
    machine_info.pop("node", None)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Save what belongs to the whole run: environment, settings, cold figures, failures."""
    suite = config.stash[STATE].suite
    if suite is not None:
        output_json["rmscore"] = suite.header()
