"""Rows → scored lines, group by group: resumes, stops cleanly, and sums up what the user should know."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Self

from rmscore.output import OutputWriter, StreamWriter, score_line
from rmscore.preference import PreferenceTally

if TYPE_CHECKING:
    from rmscore.score import Scorer
    from rmscore.types import Row


@dataclass(frozen=True, slots=True)
class Finished:
    """How a scoring run ended: rows found already written, rows scored now, and whether it was stopped before the end."""

    resumed: int
    scored: int
    stopped: bool


class StopRequest:
    """Ctrl-C once: stop after the group in hand. Twice: stop at once; what is written stays resumable either way."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self._say = say

    def __enter__(self) -> Self:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("stopping after the rows in hand; press Ctrl-C again to stop at once")


def score_file(
    scorer: Scorer,
    rows: Iterator[Row],
    writer: OutputWriter | StreamWriter,
    *,
    tally: PreferenceTally | None,
    tick: Callable[[int], None],
    say: Callable[[str], None],
) -> Finished:
    """Score all rows into the writer, which is committed at the end unless the run was stopped.

    ``tally`` counts preference pairs on the way, ``tick`` hears of the number of rows just done, ``say`` of what the
    user should read at once.
    """
    resumed = scored = 0
    with writer, StopRequest(say) as stop:
        for row, score in writer.replay(rows):
            if tally and isinstance(score, float):
                tally.add([row], [score])
            resumed += 1
        tick(resumed)
        for group in scorer.stream(rows):
            scores = group.values.tolist()
            writer.write_group(score_line(row, score) for row, score in zip(group.rows, scores, strict=True))
            if tally:
                tally.add(group.rows, scores, group.encoded)
            scored += len(scores)
            tick(len(scores))
            if stop.asked:
                return Finished(resumed, scored, stopped=True)
        writer.commit()
    return Finished(resumed, scored, stopped=False)
