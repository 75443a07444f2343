"""Row → Encoded: template, special tokens, truncation; one rule for every row and every engine.

What becomes of a row:

* a chat template in the checkpoint renders prompt/response, dialogues and messages, and alone makes special tokens;
* without one, an encoder reads (prompt, response) as a pair, a decoder both as one text (of a dialogue, with the
  speaker's marker between them);
* ``text`` is encoded as the tokenizer encodes it. Control tokens spelled out there act as control tokens and are
  counted (``Encoded.controls``); everywhere else content is plain text whatever it spells;
* a text that spells the BOS token which the tokenizer adds too gets one BOS;
* a pair keeps both segments when one is empty, as transformers does for a batch (alone, it drops an empty second one);
* an empty text is scored like any other: its special tokens alone, at every position of a file. Where the tokenizer
  adds none there is nothing to score, and the row is refused by name;
* a row over the limit is cut on ``truncation``'s side (pairs: longest segment first, as the tokenizers library does),
  special tokens kept, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rmscore.errors import CheckpointError, RowError, SettingError
from rmscore.template import Render, load_template
from rmscore.tokenizer import Tokenizer, load_tokenizer
from rmscore.types import Chat, Encoded, Exchange, Message, Row, Text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmscore.checkpoint import RewardModel

MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Noncharacters; one is put into a control token that content spells out, so that it stays text through the template."""

SIDES = ("left", "right")


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """Everything that turns rows of one checkpoint into ids; stateless after loading, so threads may share it."""

    tokenizer: Tokenizer
    render: Render | None
    causal: bool
    pool_past: int | None
    """A decoder's configured padding id: transformers' heads read the last token that has another id."""
    vocabulary: int
    max_tokens: int
    truncation: str
    controls: re.Pattern[str] | None
    control_ids: frozenset[int]


def load_encoder(
    model: RewardModel,
    *,
    max_tokens: int | None = None,
    truncation: str | None = None,
    allow_missing_specials: bool = False,
) -> Encoder:
    """Load tokenizer and template; ``max_tokens`` may lower the model's limit, ``truncation`` is ``left`` or ``right``.

    The defaults are the checkpoint's: its positions and its tokenizer's ``truncation_side`` (else ``right``).
    """
    side = truncation or model.tokenizer_config.get("truncation_side") or "right"
    if side not in SIDES:
        raise SettingError(f"truncation {side!r}: choose left or right")
    if max_tokens is not None and not 0 < max_tokens <= model.max_tokens:
        raise SettingError(f"max length {max_tokens}: this model takes 1 to {model.max_tokens} tokens")
    tokenizer = load_tokenizer(model, allow_missing_specials=allow_missing_specials)
    limit = max_tokens or model.max_tokens
    if limit <= tokenizer.pair.length:
        raise SettingError(f"max length {limit}: special tokens alone take {tokenizer.pair.length}; give a larger one")
    spelled = sorted(tokenizer.controls, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, spelled))) if spelled else None
    return Encoder(
        tokenizer,
        load_template(model),
        model.causal,
        model.config.get("pad_token_id") if model.causal else None,
        model.vocabulary,
        limit,
        side,
        pattern,
        tokenizer.control_ids(),
    )


def encode(encoder: Encoder, rows: Sequence[Row]) -> list[Encoded]:
    """Encode rows in order. RowError names a row that cannot be encoded; CheckpointError an id the model lacks."""
    plans = [_segments(encoder, row) for row in rows]
    # a prompt that several rows share is encoded once
    texts = list(dict.fromkeys(text for segments in plans for text in segments.texts))
    ids_of = dict(zip(texts, encoder.tokenizer.parse.encode(texts), strict=True))
    out = []
    for row, segments in zip(rows, plans, strict=True):
        ids = [_ids(encoder, text, ids_of[text], segments) for text in segments.texts]
        encoded = _assemble(encoder, ids, segments)
        _check(encoder, row, encoded)
        out.append(encoded)
    return out


@dataclass(frozen=True, slots=True)
class _Segments:
    """The texts of one row; ``framed``: the tokenizer's special tokens go around them; ``mark``: what breaks spellings."""

    texts: tuple[str, ...]
    framed: bool = True
    raw: bool = False
    mark: str = ""


def _segments(encoder: Encoder, row: Row) -> _Segments:
    content = row.content
    if isinstance(content, Text):
        return _Segments((content.text,) if content.pair is None else (content.text, content.pair), raw=True)
    if encoder.render is not None:
        return _rendered(encoder, row, content.turns)
    if isinstance(content, Chat):
        content = _single_exchange(row, content)
    if encoder.causal:
        return _Segments((content.prompt + content.joint + content.response,))
    return _Segments((content.prompt, content.response))


def _rendered(encoder: Encoder, row: Row, turns: Sequence[Message]) -> _Segments:
    assert encoder.render is not None
    pattern, mark = encoder.controls, ""
    if pattern is not None and any(pattern.search(turn.content) for turn in turns):
        mark = next(mark for mark in MARKS if all(mark not in turn.content for turn in turns))
        turns = [Message(t.role, pattern.sub(lambda m: m[0][0] + mark + m[0][1:], t.content)) for t in turns]
    try:
        return _Segments((encoder.render(turns),), framed=False, mark=mark)
    except RowError as error:
        raise RowError(f"{row.where}: {error}") from error


def _single_exchange(row: Row, chat: Chat) -> Exchange:
    if [turn.role for turn in chat.turns] != ["user", "assistant"]:
        raise RowError(
            f"{row.where}: this checkpoint has no chat template, so messages must be one user turn and one assistant turn; "
            "give rows as prompt and response, in the form the model was trained on"
        )
    return Exchange(chat.turns[0].content, chat.turns[1].content, chat.turns)


def _ids(encoder: Encoder, text: str, parsed: NDArray[np.int64], segments: _Segments) -> NDArray[np.int64]:
    """Return the ids of one text: as parsed, but with content that spells control tokens encoded as plain text."""
    if segments.mark:
        return np.array(_with_plain_content(encoder, text, segments.mark), np.int64)
    spells = encoder.controls is not None and segments.framed and not segments.raw and encoder.controls.search(text)
    if spells and not encoder.control_ids.isdisjoint(parsed.tolist()):
        return np.array(encoder.tokenizer.plain.encode(text, add_special_tokens=False).ids, np.int64)
    return parsed


def _with_plain_content(encoder: Encoder, text: str, mark: str) -> list[int]:
    """Encode rendered text: control tokens that the template wrote stay so, marked spellings become plain text.

    The tokenizers library itself cuts a text at control tokens before anything else, so encoding the pieces between
    them one by one gives the ids of the whole.
    """
    assert encoder.controls is not None
    ids: list[int] = []
    start = 0
    for match in [*encoder.controls.finditer(text), None]:
        piece = text[start : match.start()] if match else text[start:]
        if piece:
            view = encoder.tokenizer.plain if mark in piece else encoder.tokenizer.parse.tokenizer
            ids += view.encode(piece.replace(mark, ""), add_special_tokens=False).ids
        if match:
            ids.append(encoder.tokenizer.controls[match[0]])
            start = match.end()
    return ids


def _assemble(encoder: Encoder, contents: list[NDArray[np.int64]], segments: _Segments) -> Encoded:
    controls = _count(encoder.control_ids, contents) if segments.raw else 0
    if not segments.framed:
        (ids,) = contents
        kept = _cut(ids, encoder.max_tokens, encoder.truncation, keep_first=_starts_with_bos(encoder, ids))
        return Encoded(kept, np.zeros(len(kept), np.int64), _last(encoder, kept), cut=len(ids) - len(kept))
    frame = encoder.tokenizer.single if len(contents) == 1 else encoder.tokenizer.pair
    if _starts_with_bos(encoder, contents[0]) and frame.parts[0].tolist()[:1] == [encoder.tokenizer.bos]:
        contents[0] = contents[0][1:]
    room = encoder.max_tokens - frame.length
    total = sum(map(len, contents))
    if total > room:
        limits = (room,) if len(contents) == 1 else _longest_first(len(contents[0]), len(contents[1]), room)
        contents = [_cut(ids, n, encoder.truncation) for ids, n in zip(contents, limits, strict=True)]
    ids, types = frame.around(*contents)
    return Encoded(ids, types, _last(encoder, ids), cut=max(0, total - room), controls=controls)


def _last(encoder: Encoder, ids: NDArray[np.int64]) -> int:
    """Return the position a decoder's head reads (transformers, ``GenericForSequenceClassification.forward``)."""
    if encoder.pool_past is None:
        return -1
    real = np.flatnonzero(ids != encoder.pool_past)
    return int(real[-1]) if len(real) else 0


def _count(wanted: frozenset[int], contents: list[NDArray[np.int64]]) -> int:
    return sum(int(np.isin(ids, list(wanted)).sum()) for ids in contents if not wanted.isdisjoint(ids.tolist()))


def _starts_with_bos(encoder: Encoder, ids: NDArray[np.int64]) -> bool:
    return encoder.tokenizer.bos is not None and len(ids) > 0 and int(ids[0]) == encoder.tokenizer.bos


def _cut(ids: NDArray[np.int64], limit: int, side: str, *, keep_first: bool = False) -> NDArray[np.int64]:
    if len(ids) <= limit:
        return ids
    if side == "right":
        return ids[:limit]
    return np.concatenate([ids[:1], ids[len(ids) - limit + 1 :]]) if keep_first else ids[len(ids) - limit :]


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many ids each segment keeps (tokenizers, ``TruncationStrategy::LongestFirst``)."""
    short = min(first, second)
    longer = short if short > room else max(short, room - short)
    if short + longer > room:
        short = room // 2
        longer = short + room % 2
    return (longer, short) if first > second else (short, longer)


def _check(encoder: Encoder, row: Row, encoded: Encoded) -> None:
    if not len(encoded.ids):
        raise RowError(
            f"{row.where}: the text is empty and the tokenizer adds no special token; drop the row or give it text"
        )
    if encoder.vocabulary and encoded.ids.max() >= encoder.vocabulary:
        raise CheckpointError(
            f"{row.where}: the tokenizer gives id {encoded.ids.max()}, the model's embedding table (vocab_size) has "
            f"{encoder.vocabulary} rows; resize the embeddings or use the tokenizer the model was trained with"
        )
