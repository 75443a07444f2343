"""Run ``tests/perf`` through pytest with a progress bar, and put the JSON in place only when it is whole."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rmscore.errors import EngineMissing, OutputError
from rmscore.plugin import STATE
from rmscore.results import Cell
from rmscore.suite import SuiteSettings, open_suite

if TYPE_CHECKING:
    import pytest

FAILED_LAUNCHES = 1


class Progress(Protocol):
    """What is told of a run while it runs."""

    def begin(self, launches: int) -> None:
        """Hear how many launches there are."""

    def end_launch(self, cell: str, launch: int, seconds: float, result: str) -> None:
        """Hear of one finished launch and what came of it."""

    def note(self, text: str) -> None:
        """Hear what takes time beside the launches."""


class Watcher:
    """A pytest plugin that reports launches as they end and keeps pytest's own output away."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.failures = 0
        self._started = 0.0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Let the run speak through the progress."""
        session.config.stash[STATE].say = self.progress.note

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell how many launches were collected."""
        self.progress.begin(sum("rm_launch" in getattr(item, "fixturenames", ()) for item in session.items))

    def pytest_runtest_logstart(self) -> None:
        """Start the clock of one launch, its process start included."""
        self._started = time.monotonic()

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Tell what came of a launch, once."""
        skipped = call.excinfo is not None and call.excinfo.typename == "Skipped"
        if call.when == "setup" and call.excinfo is None:
            return
        if call.when == "teardown":
            return
        cell, number = _launch_of(item)
        if skipped:
            result = f"skipped: {call.excinfo.value}" if call.excinfo else "skipped"
        elif call.excinfo is not None:
            self.failures += 1
            result = "FAILED: " + " ".join(str(call.excinfo.value).split())[:300]
        else:
            result = _figure(item)
        self.progress.end_launch(cell, number, time.monotonic() - self._started, result)


def run(settings: SuiteSettings, out: Path, progress: Progress, *, overwrite: bool = False) -> int:
    """Measure and write ``out``; return 0, or 1 when a launch failed. What is wrong with the settings is raised first."""
    if out.exists() and not overwrite:
        raise OutputError(f"{out}: exists; name another file with -o, or pass --overwrite")
    if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("pytest_benchmark") is None:
        raise EngineMissing("the benchmark suite needs pytest and pytest-benchmark: pip install 'rmscore[suite]'")
    import pytest

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draft = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.")
    except OSError as error:
        raise OutputError(f"{out}: cannot be written ({error.strerror}); name another file with -o") from error
    with draft as folder:
        open_suite(settings, Path(folder))
        saved = Path(folder) / out.name
        watcher = Watcher(progress)
        arguments = [
            *_suite_target(),
            *(
                "-q",
                "--no-header",
                "--no-summary",
                "-s",
                "-c",
                os.devnull,
                "--rootdir",
                folder,
                "--import-mode=importlib",
            ),
            *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"),
            *(
                "--benchmark-quiet",
                "--benchmark-only",
                "--benchmark-json",
                str(saved),
                "--basetemp",
                f"{folder}/scratch",
            ),
            *_options(settings),
        ]
        with _quiet_stdout():
            code = pytest.main(arguments, plugins=[watcher])
        if not saved.exists():
            raise OutputError(f"nothing was measured (pytest ended with {int(code)}), so {out} was not written")
        saved.replace(out)
    return FAILED_LAUNCHES if watcher.failures or code else 0


def _suite_target() -> list[str]:
    if importlib.util.find_spec("rmscore_suite") is not None:
        return ["--pyargs", "rmscore_suite.perf.test_launches"]
    beside = Path(__file__).parent.parent / "tests" / "perf" / "test_launches.py"
    if beside.is_file():
        return [str(beside)]
    raise EngineMissing("the suite (package rmscore_suite) is not installed: pip install 'rmscore[suite]'")


def _options(settings: SuiteSettings) -> list[str]:
    words: Mapping[str, Any] = {name: getattr(settings, name) for name in SuiteSettings.__dataclass_fields__}
    return [
        f"--rm-{name.replace('_', '-')}={','.join(value) if isinstance(value, tuple) else value}"
        for name, value in words.items()
    ]


def _launch_of(item: pytest.Item) -> tuple[str, int]:
    param = getattr(item, "callspec").params["rm_launch"]  # noqa: B009 - items of other plugins have none
    return str(Cell(*param[:4])), int(param[4])


def _figure(item: pytest.Item) -> str:
    fixture = getattr(item, "funcargs", {}).get("rm_launch")
    return f"{fixture.extra_info['rows_per_second']:.3g} rows/s" if fixture else ""


class _quiet_stdout:  # noqa: N801 - used as a function
    """Send what pytest writes to standard output to nowhere: the progress and the table are this program's."""

    def __enter__(self) -> None:
        self._old = sys.stdout
        self._sink = Path(os.devnull).open("w", encoding="utf-8")
        sys.stdout = self._sink

    def __exit__(self, *error: object) -> None:
        sys.stdout = self._old
        self._sink.close()
