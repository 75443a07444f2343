"""The data that flows through the package: Row → Encoded → Batch → Scores, all frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

RowId = str | int


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; ``role`` is ``system``, ``user``, ``assistant`` or what the template knows."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Text:
    """Raw text, encoded as the checkpoint's tokenizer encodes it; ``pair`` is the second segment, if any."""

    text: str
    pair: str | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt and its response; ``turns`` is the same conversation for models with a chat template."""

    prompt: str
    response: str
    turns: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation given as messages."""

    turns: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One row to score.

    ``id`` is the user's own or the position of the row in its source (from 0). ``where`` names the row in error
    messages (``data.jsonl, line 7``). ``side`` is ``chosen`` or ``rejected`` where the row is one half of a preference
    pair, ``pair`` is then the id both halves share. ``carry`` are the fields to copy to the output.
    """

    id: RowId
    content: Text | Exchange | Chat
    where: str
    side: str | None = None
    pair: RowId | None = None
    carry: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """One encoded row: ``ids`` and ``type_ids`` are int64 arrays of shape [tokens].

    ``cut`` counts the tokens lost to the length limit; ``controls`` the control tokens that raw text spelled out.
    """

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64]
    cut: int = 0
    controls: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows that a backend scores in one call.

    ``pad_left`` and ``pad_right`` add that many padding columns beyond the longest row: scores must not notice.
    """

    rows: Sequence[Encoded]
    pad_id: int = 0
    pad_left: int = 0
    pad_right: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """Real tokens, padding not counted."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max((len(row.ids) for row in self.rows), default=0)

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return the padded int64 arrays [rows, columns] by the names transformers gives them.

        ``input_ids``, ``attention_mask``, ``token_type_ids``, ``position_ids`` (0 … n-1 over the real tokens, 0 on
        padding) and ``last`` [rows], the column of each row's last real token.
        """
        shape = (len(self.rows), self.pad_left + self.longest + self.pad_right)
        out = {name: np.zeros(shape, np.int64) for name in ("attention_mask", "token_type_ids", "position_ids")}
        out["input_ids"] = np.full(shape, self.pad_id, np.int64)
        lengths = np.array([len(row.ids) for row in self.rows], np.int64)
        out["last"] = self.pad_left + lengths - 1
        for index, row in enumerate(self.rows):
            columns = slice(self.pad_left, self.pad_left + len(row.ids))
            out["input_ids"][index, columns] = row.ids
            out["token_type_ids"][index, columns] = row.type_ids
            out["position_ids"][index, columns] = np.arange(len(row.ids))
            out["attention_mask"][index, columns] = 1
        return out


class Backend(Protocol):
    """What an engine does for us; see ``rmscore.backends`` for how to add one."""

    padded: bool
    """Whether a batch costs rows × longest row (True) or the sum of its tokens (False)."""

    def score(self, batch: Batch) -> NDArray[np.float32]:
        """Return float32 scores [rows] or [rows, objectives], finished and on the host."""
        ...

    def close(self) -> None:
        """Free the engine; the backend is not used afterwards."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The result of scoring: ``values`` float32 [rows] or [rows, objectives], in input order.

    ``record`` names what decides a score: checkpoint, tokenizer and template hashes, head, pooling, activation, effective
    precision, truncation counts, engine versions, padded-token share.
    """

    ids: Sequence[RowId]
    values: NDArray[np.float32]
    record: Mapping[str, Any]

    def __len__(self) -> int:
        """Return the number of scored rows."""
        return len(self.ids)
