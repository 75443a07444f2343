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
    """A prompt and its response; ``turns`` is the same conversation for models with a chat template.

    ``joint`` is the text between the two where they are read as one, such as a dialogue's last speaker marker.
    """

    prompt: str
    response: str
    turns: tuple[Message, ...] = ()
    joint: str = ""


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

    ``last`` is the token a decoder's head reads (-1: the last one). ``cut`` counts the tokens lost to the length limit,
    ``controls`` the control tokens that raw text spelled out.
    """

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64]
    last: int = -1
    cut: int = 0
    controls: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows that a backend scores in one call: ragged, so that no padding can reach a score.

    A padded engine gets its padding from :meth:`arrays`, always on the right; ``extra`` more columns of it must not
    change a score, which the suite checks.
    """

    rows: Sequence[Encoded]
    pad_id: int = 0
    extra: int = 0

    @classmethod
    def from_padded(
        cls,
        input_ids: NDArray[np.int64],
        attention_mask: NDArray[np.int64],
        *,
        token_type_ids: NDArray[np.int64] | None = None,
        pad_id: int = 0,
    ) -> Batch:
        """Take the rows out of padded arrays [rows, columns], as trainers hold them, whichever side the padding is on."""
        types = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        kept = [np.flatnonzero(mask) for mask in np.asarray(attention_mask)]
        rows = [
            Encoded(np.asarray(ids, np.int64)[columns], np.asarray(kinds, np.int64)[columns])
            for ids, kinds, columns in zip(input_ids, types, kept, strict=True)
        ]
        return cls(rows, pad_id)

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
        padding) and ``last`` [rows], the column that a decoder's head reads.
        """
        shape = (len(self.rows), self.longest + self.extra)
        out = {name: np.zeros(shape, np.int64) for name in ("attention_mask", "token_type_ids", "position_ids")}
        out["input_ids"] = np.full(shape, self.pad_id, np.int64)
        out["last"] = np.array([row.last % len(row.ids) for row in self.rows], np.int64)
        for index, row in enumerate(self.rows):
            tokens = len(row.ids)
            out["input_ids"][index, :tokens] = row.ids
            out["token_type_ids"][index, :tokens] = row.type_ids
            out["position_ids"][index, :tokens] = np.arange(tokens)
            out["attention_mask"][index, :tokens] = 1
        return out


class Backend(Protocol):
    """What an engine does for us; see ``rmscore.backends`` for how to add one."""

    padded: bool
    """Whether a batch costs rows × longest row (True) or the sum of its tokens (False).

    A backend may also have ``shares_prefixes``: True where rows of a batch that begin alike compute that once.
    """

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
