"""The exception tree: one class a kind of mistake, every message one line that says what to do.

RmscoreError                 exit code 2 on the command line
├── CheckpointError          a checkpoint folder that is missing, incomplete, unsafe or no reward model
├── RowError                 an input row that cannot be read or encoded; names source and row
├── BackendError             an engine failed while it loaded or scored
│   ├── UnknownBackend       no backend of that name; carries the nearest match
│   └── EngineMissing        the engine is not installed; carries the pip line
├── SettingError             a setting that cannot be used: precision, device, batching
├── OutputError              an output that cannot be written or resumed
└── ResultError              a benchmark JSON that cannot be read or compared
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class RmscoreError(Exception):
    """Anything this package refuses to do; ``str(error)`` is one line for the user."""


class CheckpointError(RmscoreError):
    """A checkpoint folder that is missing, incomplete, unsafe or no reward model."""


class RowError(RmscoreError):
    """An input row that cannot be read or encoded; the message names source and row."""


class BackendError(RmscoreError):
    """An engine failed while it loaded or scored."""


class UnknownBackend(BackendError):
    """No backend of that name is registered."""


class EngineMissing(BackendError):
    """The engine behind a backend is not installed; the message holds the pip line."""


class SettingError(RmscoreError):
    """A setting that cannot be used: precision, device, batching, a file option."""


class OutputError(RmscoreError):
    """An output file that cannot be written or resumed."""


class ResultError(RmscoreError):
    """A benchmark JSON that cannot be read or compared."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``(did you mean 'x'? choose from: a, b, c)`` for a mistyped word."""
    names = sorted(known)
    match = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean {match[0]!r}? " if match else ""
    return f"({hint}choose from: {', '.join(names)})"
