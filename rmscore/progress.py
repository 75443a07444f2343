"""What a person sees while work runs: a bar on a terminal, plain lines elsewhere, always on standard error."""

from __future__ import annotations

import contextlib
import gzip
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from rmscore.errors import EngineMissing

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
except ImportError as error:
    raise EngineMissing("the command line needs typer and rich: pip install 'rmscore[cli]'") from error

BLOCK_BYTES = 1 << 20


@contextlib.contextmanager
def counting(title: str, total: int | None, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs; call the yielded function with the number just done. Nothing off a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    rate = TextColumn(f"{{task.fields[rate]:.3g}} {unit}/s")
    with Progress(*columns, rate, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, rate=0.0)
        started = time.monotonic()
        count = 0

        def advance(done: int) -> None:
            nonlocal count
            count += done
            bar.update(task, advance=done, rate=count / max(time.monotonic() - started, 1e-9))

        yield advance


class BenchProgress:
    """A line for every finished launch, and on a terminal a bar below them with the time that remains."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("launches"),
            TimeRemainingColumn(elapsed_when_finished=True), console=self.console, disable=not self.console.is_terminal,
        )  # fmt: skip
        self.total = 0
        self.done = 0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def begin(self, launches: int) -> None:
        """Show an empty bar."""
        self.total = launches
        self.task = self.bar.add_task("measuring", total=launches)

    def note(self, text: str) -> None:
        """Print what takes time beside the launches."""
        self.bar.console.print(text, markup=False)

    def end_launch(self, cell: str, launch: int, seconds: float, result: str) -> None:
        """Print the launch and move the bar."""
        self.done += 1
        width = len(str(self.total))
        line = f"[{self.done:{width}}/{self.total}] launch {launch + 1}  {cell:40}  {seconds:6.1f} s  {result}"
        self.bar.console.print(line, markup=False)
        self.bar.advance(self.task)


def count_lines(source: str) -> int | None:
    """Return the lines of a text file of rows, or None where they cannot be counted cheaply."""
    path = Path(source)
    if source == "-" or not path.is_file() or path.suffix == ".parquet":
        return None
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK_BYTES), b""))
    except (OSError, EOFError):
        return None  # reading the rows will say what is wrong
