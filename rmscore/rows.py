r"""Files, streams and Python objects → Row, one at a time, whatever their number.

What a row is, by its fields:

* ``prompt``, ``response``: an exchange; each is text or a list of ``{"role", "content"}`` messages;
* ``text`` and, for a second segment, ``text_pair``: raw text, as is a bare string among Python objects;
* ``messages``: a conversation;
* ``chosen``, ``rejected``: a preference pair, read as two rows, chosen first. With a ``prompt`` the sides are responses
  to it; without one they are whole conversations, as messages or as an hh-rlhf dialogue.

An hh-rlhf dialogue is cut into turns wherever a blank line is followed by ``Human:`` or ``Assistant:``. The response
is what follows the *last* ``\n\nAssistant:``, outer white space stripped (it may be empty); the prompt is everything
before that marker, leading newlines stripped. Two turns of one speaker stay two turns. Messages that are one user and
one assistant turn make an exchange, longer ones a conversation: only a chat template says how to join them.

``id`` is the row's own (text or integer, not checked for duplicates) or its position in the source, from 0; the halves
of a pair are ``<id>/chosen`` and ``<id>/rejected``. Errors name the line of a text file, from 1, or the row of anything
else, from 0.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rmscore.errors import RowError, SettingError, nearest
from rmscore.sources import Record, read_file
from rmscore.types import Chat, Exchange, Message, Row, RowId, Text

ALL_FIELDS: Final = "*"

_TURN: Final = re.compile(r"\n\n(Human|Assistant):")
_ROLES: Final = {"Human": "user", "Assistant": "assistant"}


def read_rows(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any] | str],
    *,
    carry: Sequence[str] = (),
    limit: int | None = None,
) -> Iterator[Row]:
    """Read rows lazily: a file (``.jsonl``, ``.csv``, these also ``.gz``, ``.parquet``), ``-`` or Python objects.

    ``-`` is JSON lines on standard input; a file of another name is read as JSON lines. ``carry`` names the fields to
    copy to the output, ``*`` all but ``id``. ``limit`` reads that many rows of the source; a pair counts as one.

    Raises SettingError for a negative limit, EngineMissing where parquet cannot be read, and RowError for whatever is
    no row: at once when the file is missing, else when the row is reached.
    """
    if limit is not None and limit < 0:
        raise SettingError(f"limit {limit}: give 0 or more")
    if isinstance(source, bytes | Mapping):
        raise RowError(f"rows: a path or a list of rows is needed, not one {type(source).__name__}")
    records = read_file(Path(source)) if isinstance(source, str | os.PathLike) else _objects(source)
    return itertools.chain.from_iterable(
        _rows(record, index, where, carry) for index, (where, record) in enumerate(itertools.islice(records, limit))
    )


def _objects(objects: Iterable[Mapping[str, Any] | str]) -> Iterator[Record]:
    for index, value in enumerate(objects):
        yield f"row {index}", {"text": value} if isinstance(value, str) else value


def _rows(record: Any, index: int, where: str, carry: Sequence[str]) -> tuple[Row, ...]:  # noqa: ANN401 - a user's
    if not isinstance(record, Mapping):
        raise RowError(f"{where}: a row is an object with fields, not {_show(record)}")
    read = _KINDS.get(_FIELDS.intersection(record))
    if read is None:
        raise RowError(f"{where}: {_unknown(record)}")
    row_id = record.get("id", index)
    if not isinstance(row_id, RowId) or isinstance(row_id, bool):
        raise RowError(
            f"{where}: id {_show(row_id)}: an id is text or an integer; without one the row gets its position"
        )
    if isinstance(row_id, str):
        _text(row_id, "id", where)
    carried = _carried(record, carry, where) if carry else {}
    contents = read(record, where)
    if len(contents) == 1:
        return (Row(row_id, contents[0], where, None, None, carried),)
    return tuple(
        Row(f"{row_id}/{side}", content, where, side, row_id, carried)
        for side, content in zip(("chosen", "rejected"), contents, strict=True)
    )


def _carried(record: Mapping[str, Any], carry: Sequence[str], where: str) -> dict[str, Any]:
    if ALL_FIELDS in carry:
        return {name: value for name, value in record.items() if name != "id"}
    for name in carry:
        if name not in record:
            raise RowError(f"{where}: there is no field {name!r} to carry {nearest(name, map(str, record))}")
    return {name: record[name] for name in carry}


Contents = tuple[Text | Exchange | Chat, ...]


def _read_text(record: Mapping[str, Any], where: str) -> Contents:
    pair = _text(record["text_pair"], "text_pair", where) if "text_pair" in record else None
    return (Text(_text(record["text"], "text", where), pair),)


def _read_exchange(record: Mapping[str, Any], where: str) -> Contents:
    return (_join(_turns(record["prompt"], "prompt", "user", where), record["response"], "response", where),)


def _read_messages(record: Mapping[str, Any], where: str) -> Contents:
    return (Chat(_messages(record["messages"], "messages", where)),)


def _read_pair(record: Mapping[str, Any], where: str) -> Contents:
    chosen, rejected = record["chosen"], record["rejected"]
    if "prompt" not in record:
        return _whole(chosen, "chosen", where), _whole(rejected, "rejected", where)
    prompt = _turns(record["prompt"], "prompt", "user", where)
    return _join(prompt, chosen, "chosen", where), _join(prompt, rejected, "rejected", where)


def _whole(value: Any, field: str, where: str) -> Exchange | Chat:  # noqa: ANN401 - a user's
    if isinstance(value, str):
        return _dialogue(_text(value, field, where), f"{where}: {field}")
    return _join((), value, field, where)


def _join(prompt: tuple[Message, ...], value: Any, field: str, where: str) -> Exchange | Chat:  # noqa: ANN401 - a user's
    """Put a response after its prompt, unless it is messages that begin with the prompt's own."""
    response = _turns(value, field, "assistant", where)
    turns = (
        response if prompt and len(response) > len(prompt) and response[: len(prompt)] == prompt else prompt + response
    )
    if turns[-1].role != "assistant":
        raise RowError(f"{where}: {field} ends with a turn of {turns[-1].role!r:.60}; an assistant turn must be last")
    if len(turns) == 2 and turns[0].role == "user":  # noqa: PLR2004 - a question and its answer
        return Exchange(turns[0].content, turns[1].content, turns)
    return Chat(turns)


def _dialogue(text: str, where: str) -> Exchange:
    text = "\n\n" + text.lstrip()
    before, *parts = _TURN.split(text)
    if before or not parts:
        expected = "a dialogue begins with 'Human:' or 'Assistant:', each turn after a blank line"
        raise RowError(f"{where} is no hh-rlhf dialogue: {expected}, not with {text[2:62]!r}")
    if parts[-2] != "Assistant":
        raise RowError(f"{where} ends with a Human turn; an hh-rlhf dialogue must end with an Assistant turn")
    turns = tuple(
        Message(_ROLES[speaker], content.strip()) for speaker, content in zip(parts[::2], parts[1::2], strict=True)
    )
    prompt = text[2 : max(2, text.rindex("\n\nAssistant:"))]
    return Exchange(prompt, turns[-1].content, turns, joint="\n\nAssistant: " if prompt else "Assistant: ")


def _turns(value: Any, field: str, role: str, where: str) -> tuple[Message, ...]:  # noqa: ANN401 - a user's
    if isinstance(value, str):
        return (Message(role, _text(value, field, where)),)
    return _messages(value, field, where)


def _messages(value: Any, field: str, where: str) -> tuple[Message, ...]:  # noqa: ANN401 - a user's
    wanted = "a list of messages" if field == "messages" else "text or a list of messages"
    if not isinstance(value, list | tuple) or not value:
        raise RowError(f"{where}: field {field!r} is {_show(value)}; {wanted} is needed")
    turns = []
    for number, message in enumerate(value):
        what = f"{field}[{number}]"
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise RowError(f"{where}: {what} is {_show(message)}; a message has a 'role' and a 'content'")
        turns.append(
            Message(_text(message["role"], what + ".role", where), _text(message["content"], what + ".content", where))
        )
    return tuple(turns)


def _text(value: Any, field: str, where: str) -> str:  # noqa: ANN401 - a user's
    if not isinstance(value, str):
        raise RowError(f"{where}: field {field!r} is {_show(value)}; text is needed")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(value[error.start]):04x} at character {error.start + 1}"
            raise RowError(f"{where}: field {field!r} holds half a character ({half}); write it as UTF-8") from error
    return value


def _show(value: Any) -> str:  # noqa: ANN401 - a user's
    names = {None: "null", True: "true", False: "false"}
    return names[value] if value is None or isinstance(value, bool) else ascii(value)[:60]


_KINDS: Final[dict[frozenset[str], Callable[[Mapping[str, Any], str], Contents]]] = {
    frozenset({"prompt", "response"}): _read_exchange,
    frozenset({"text"}): _read_text,
    frozenset({"text", "text_pair"}): _read_text,
    frozenset({"messages"}): _read_messages,
    frozenset({"chosen", "rejected"}): _read_pair,
    frozenset({"prompt", "chosen", "rejected"}): _read_pair,
}
_FIELDS: Final = frozenset().union(*_KINDS)


def _unknown(record: Mapping[str, Any]) -> str:
    kinds = "; ".join(", ".join(sorted(kind)) for kind in _KINDS)
    found = sorted(_FIELDS.intersection(record))
    if not found:
        names = [str(name)[:40] for name in list(record)[:20]]
        hint = nearest(names[0], _FIELDS) if names else f"(choose from: {', '.join(sorted(_FIELDS))})"
        return f"has no field to score among {names}; {hint}"
    larger = [kind for kind in _KINDS if kind.issuperset(found)]
    if larger:
        missing = sorted(min(larger, key=len).difference(found))
        return f"has {', '.join(found)} but no {', '.join(missing)}; add it"
    return f"fields {', '.join(found)} together are ambiguous; keep the fields of one kind: {kinds}"
