"""``read_rows``: what a row becomes, how its place is named, and that every fault is one line that says what to do."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rmscore.sources
from rmscore.data import sample_path
from rmscore.errors import EngineMissing, RowError, SettingError
from rmscore.rows import read_rows
from rmscore.types import Chat, Exchange, Message, Text

REAL = Path(__file__).parents[3] / "shared" / "data" / "hh-rlhf-harmless-test.jsonl.gz"
ASK, ANSWER = Message("user", "Is it far?"), Message("assistant", "Ten minutes.")
MORE, LAST = Message("user", "On foot?"), Message("assistant", "By bus.")
DIALOGUE = "\n\nHuman: Is it far?\n\nAssistant: Ten minutes.\n\nHuman: On foot?\n\nAssistant: By bus."


def messages(*turns):
    return [{"role": turn.role, "content": turn.content} for turn in turns]


def only(record, **options):
    (row,) = read_rows([record], **options)
    return row


def fault(source, kind=RowError, **options):
    with pytest.raises(kind) as caught:
        list(read_rows(source, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def write(tmp_path):
    def written(content, name="data.jsonl"):
        content = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return written


@pytest.mark.parametrize(
    ("record", "content"),
    [
        ("Hello.", Text("Hello.")),
        ("", Text("")),
        ({"text": "Hello."}, Text("Hello.")),
        ({"text": "Hello.", "text_pair": ""}, Text("Hello.", "")),
        ({"prompt": ASK.content, "response": ANSWER.content}, Exchange(ASK.content, ANSWER.content, (ASK, ANSWER))),
        (
            {"prompt": messages(ASK), "response": messages(ANSWER)},
            Exchange(ASK.content, ANSWER.content, (ASK, ANSWER)),
        ),
        (
            {"prompt": messages(ASK), "response": ANSWER.content},
            Exchange(ASK.content, ANSWER.content, (ASK, ANSWER)),
        ),
        ({"prompt": messages(ASK, ANSWER, MORE), "response": LAST.content}, Chat((ASK, ANSWER, MORE, LAST))),
        ({"messages": messages(ASK, ANSWER)}, Chat((ASK, ANSWER))),
        ({"messages": tuple(messages(ASK)), "unused": None}, Chat((ASK,))),
    ],
)
def test_fields_decide_what_a_row_is(record, content):
    """A row's fields decide its kind; nothing in its text does."""
    assert only(record).content == content


@pytest.mark.parametrize(
    ("record", "chosen", "rejected"),
    [
        (
            {"prompt": "Is it far?", "chosen": "Ten minutes.", "rejected": ""},
            Exchange("Is it far?", "Ten minutes.", (ASK, ANSWER)),
            Exchange("Is it far?", "", (ASK, Message("assistant", ""))),
        ),
        (
            {"prompt": messages(ASK), "chosen": messages(ANSWER), "rejected": messages(LAST)},
            Exchange("Is it far?", "Ten minutes.", (ASK, ANSWER)),
            Exchange("Is it far?", "By bus.", (ASK, LAST)),
        ),
        (
            {"prompt": "Is it far?", "chosen": messages(ASK, ANSWER), "rejected": messages(ASK, LAST)},
            Exchange("Is it far?", "Ten minutes.", (ASK, ANSWER)),
            Exchange("Is it far?", "By bus.", (ASK, LAST)),
        ),
        (
            {"chosen": messages(ASK, ANSWER, MORE, LAST), "rejected": messages(ASK, ANSWER)},
            Chat((ASK, ANSWER, MORE, LAST)),
            Exchange("Is it far?", "Ten minutes.", (ASK, ANSWER)),
        ),
    ],
)
def test_a_preference_pair_is_two_rows(record, chosen, rejected):
    """Chosen comes first; both halves share the pair's id; a prompt that the sides repeat is there once."""
    rows = list(read_rows([record]))
    assert [(row.id, row.side, row.pair) for row in rows] == [
        ("0/chosen", "chosen", 0),
        ("0/rejected", "rejected", 0),
    ]
    assert [row.content for row in rows] == [chosen, rejected]


def test_a_dialogue_is_split_at_its_last_answer():
    """The response is the last answer alone; every earlier turn is in the prompt (trl#1858 took the first)."""
    chosen, _ = read_rows([{"chosen": DIALOGUE, "rejected": DIALOGUE, "id": "d"}])
    prompt = "Human: Is it far?\n\nAssistant: Ten minutes.\n\nHuman: On foot?"
    assert chosen.content == Exchange(prompt, "By bus.", (ASK, ANSWER, MORE, LAST), "\n\nAssistant: ")
    assert (chosen.id, chosen.pair) == ("d/chosen", "d")


@pytest.mark.parametrize(
    ("dialogue", "prompt", "response", "roles"),
    [
        ("\n\nHuman: a\n\nAssistant: ", "Human: a", "", "ua"),
        ("\n\nHuman: a\n\nAssistant:", "Human: a", "", "ua"),
        ("Human: a\n\nAssistant: b\n", "Human: a", "b", "ua"),
        (
            "\n\nHuman: a\n\nHuman: b\n\nAssistant: c\n\nAssistant: d",
            "Human: a\n\nHuman: b\n\nAssistant: c",
            "d",
            "uuaa",
        ),
        ("\n\nAssistant: alone", "", "alone", "a"),
        (
            "\n\nHuman: who is Assistant: or\nHuman: here\n\nAssistant: I",
            "Human: who is Assistant: or\nHuman: here",
            "I",
            "ua",
        ),
    ],
)
def test_dialogues_of_every_shape(dialogue, prompt, response, roles):
    """Empty answers stay, turns of one speaker stay apart, and a name inside a line is no marker."""
    row = next(read_rows([{"chosen": dialogue, "rejected": dialogue}]))
    assert (row.content.prompt, row.content.response) == (prompt, response)
    assert "".join(turn.role[0] for turn in row.content.turns) == roles


@pytest.mark.parametrize(
    ("dialogue", "says"),
    [
        ("Hello.", "begins with 'Human:'"),
        ("", "begins with 'Human:'"),
        ("A preface.\n\nHuman: a\n\nAssistant: b", "not with 'A preface."),
        ("\n\nHuman: a\n\nAssistant: b\n\nHuman: c", "must end with an Assistant turn"),
    ],
)
@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_what_is_no_dialogue_is_refused(dialogue, says, side):
    """A preference text that is no dialogue is an error that names row and side, never scored as something else."""
    message = fault([{"chosen": DIALOGUE, "rejected": DIALOGUE} | {side: dialogue}])
    assert message.startswith(f"row 0: {side} ")
    assert says in message


@given(
    st.lists(st.tuples(st.sampled_from(["Human", "Assistant"]), st.text(max_size=20)), max_size=5), st.text(max_size=20)
)
def test_turns_come_back_as_they_were_written(turns, last):
    """Writing turns in hh-rlhf's form and reading them back gives speakers and stripped texts."""
    turns = [(who, text) for who, text in [*turns, ("Assistant", last)] if "\n\n" not in text]
    if not turns or turns[-1][0] != "Assistant":
        turns.append(("Assistant", "end"))
    dialogue = "".join(f"\n\n{who}: {text}" for who, text in turns)
    row = next(read_rows([{"chosen": dialogue, "rejected": dialogue}]))
    roles = {"Human": "user", "Assistant": "assistant"}
    assert [(t.role, t.content) for t in row.content.turns] == [(roles[who], text.strip()) for who, text in turns]
    assert row.content.response == turns[-1][1].strip()


def test_ids_and_places(write):
    """An id is the row's own or its position; blank lines count for places, not for positions."""
    path = write('{"text": "a"}\n\n  \r\n{"text": "b", "id": "x"}\n{"text": "c", "id": 7}\n{"text": "d"}')
    rows = [(row.id, row.where) for row in read_rows(path)]
    assert rows == [(0, f"{path}, line 1"), ("x", f"{path}, line 4"), (7, f"{path}, line 5"), (3, f"{path}, line 6")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a", "a.json", "a.jsonl.gz", "a.gz"])
def test_json_lines_under_every_name(write, name):
    """Any other name is JSON lines; .gz is unpacked; a byte order mark and CRLF are no part of a row."""
    path = write(b"\xef\xbb\xbf" + '{"text": "naïve"}\r\n{"text": "b\u2028c"}\r\n'.encode(), name)
    assert [row.content.text for row in read_rows(str(path))] == ["naïve", "b\u2028c"]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv(write, name):
    """A CSV cell is text as it stands, line breaks and 200,000 characters included; a row's place is its first line."""
    huge = "x" * 200_000
    text = io.StringIO()
    csv.writer(text).writerows([["id", "prompt", "response"], ["1", 'say "hi",\nplease', ""], ["2", huge, "null"]])
    path = write(text.getvalue(), name)
    rows = list(read_rows(path))
    assert [(row.id, row.content.prompt, row.content.response) for row in rows] == [
        ("1", 'say "hi",\nplease', ""),
        ("2", huge, "null"),
    ]
    assert [row.where for row in rows] == [f"{path}, line 2", f"{path}, line 4"]


def test_parquet(tmp_path):
    """Parquet rows are read like any others, lists of messages included."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    rows = [{"messages": messages(ASK, ANSWER), "n": index} for index in range(600)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=500)
    read = list(read_rows(path, carry=["n"]))
    assert [row.content for row in read] == [Chat((ASK, ANSWER))] * 600
    assert [(row.id, row.where, row.carry) for row in read[599:]] == [(599, f"{path}, row 599", {"n": 599})]


def test_standard_input(monkeypatch):
    """``-`` reads JSON lines from standard input and names it."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n{"text"}\n')))
    rows = read_rows("-")
    assert next(rows).where == "standard input, line 1"
    with pytest.raises(RowError, match="standard input, line 2"):
        next(rows)


def test_carried_fields():
    """Named fields are carried with their values; ``*`` carries all but the id, which the output has anyway."""
    record = {"id": 1, "text": "a", "label": None, "source": [1]}
    assert only(record).carry == {}
    assert only(record, carry=["source", "label"]).carry == {"source": [1], "label": None}
    assert only(record, carry=["*"]).carry == {"text": "a", "label": None, "source": [1]}
    assert "did you mean 'source'?" in fault([record], carry=["sourse"])


def test_limit_counts_rows_of_the_source():
    """A limit never cuts a pair in half, reads nothing beyond itself, and may not be negative."""
    pair = {"chosen": DIALOGUE, "rejected": DIALOGUE}
    assert len(list(read_rows(itertools.repeat(pair), limit=3))) == 6
    assert list(read_rows(itertools.repeat(pair), limit=0)) == []
    fault([pair], SettingError, limit=-1)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"text": "a"', "column 13"),
        (b'{"text": "a"} {}', "column 15"),
        (b'["a"]', "not ['a']"),
        (b'"a"', "not 'a'"),
        (b"null", "not null"),
        (b"{}", "no field to score"),
        (b'{"txet": "a"}', "did you mean 'text'?"),
        (b'{"prompt": "a"}', "has prompt but no response"),
        (b'{"text_pair": "a"}', "has text_pair but no text"),
        (b'{"text": "a", "messages": []}', "messages, text together are ambiguous"),
        (b'{"text": 1.5}', "field 'text' is 1.5; text is needed"),
        (b'{"text": null}', "field 'text' is null"),
        (b'{"text": "a", "text_pair": null}', "field 'text_pair' is null"),
        (b'{"prompt": "a", "response": true}', "field 'response' is true"),
        (b'{"prompt": [], "response": "a"}', "field 'prompt' is []"),
        (b'{"messages": "hello"}', "a list of messages is needed"),
        (b'{"messages": [{"role": "user"}]}', "messages[0] is"),
        (b'{"messages": [{"role": "user", "content": null}]}', "messages[0].content"),
        (b'{"messages": [{"role": 1, "content": ""}]}', "messages[0].role"),
        (b'{"prompt": "a", "response": [{"role": "user", "content": "b"}]}', "an assistant turn must be last"),
        (b'{"chosen": 1, "rejected": "a"}', "field 'chosen' is 1"),
        (b'{"text": "a", "id": 1.0}', "id 1.0"),
        (b'{"text": "a", "id": null}', "id null"),
        (b'{"text": "a", "id": true}', "id true"),
        (b'{"text": "a", "id": "\\ud800"}', "\\ud800"),
        (b'{"text": "a\\ud800b"}', "holds half a character (\\ud800 at character 2)"),
        (b'{"text": "\xff"}', "byte 0xff at position 11"),
        (b'{"text": ' + b"[" * 100_000, "nested too deep"),
        (b'{"text": ' + b"1" * 5000 + b"}", "number that is too long"),
    ],
)
def test_faults_name_the_line(write, line, says):
    """Whatever is wrong with a line, the error is one line with the file, the line's number and the value."""
    path = write(b'{"text": "fine"}\n' + line + b"\n")
    message = fault(path)
    assert message.startswith(f"{path}, line 2: ")
    assert says in message
    assert len(message) < 500


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "id",
                        "text",
                        "text_pair",
                        "prompt",
                        "response",
                        "messages",
                        "chosen",
                        "rejected",
                        "role",
                        "content",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_no_object_gives_a_traceback(record):
    """Any JSON value is either a row or a RowError."""
    rows = []
    try:
        rows = list(read_rows([record]))
    except RowError as error:
        message = str(error)
    assert len(rows) in {1, 2} or message.startswith("row 0: ")


def test_an_absurd_line_is_refused(write, monkeypatch):
    """A line over the cap is refused before it is parsed."""
    monkeypatch.setattr(rmscore.sources, "MAX_LINE_BYTES", 100)
    path = write('{"text": "a"}\n{"text": "' + "b" * 200 + '"}\n')
    assert fault(path).startswith(f"{path}, line 2: is longer than")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("\n", "every column needs a name"),
        ("text,text\na,b\n", "every column needs a name"),
        ("text,\na,b\n", "every column needs a name"),
        ("text,id\na\n", "line 2: has 1 cells, the header names 2"),
        ("text,id\nb,1\n\na,1,2\n", "line 4: has 3 cells"),
        ('text\n"never closed\n', "line 2: is not valid CSV"),
    ],
)
def test_csv_faults(write, content, says):
    """A CSV file that does not say which cell is which is refused at the line."""
    assert says in fault(write(content, "a.csv"))


def test_files_that_cannot_be_read(tmp_path, write, monkeypatch):
    """A missing file, a folder, cut or false gzip data and broken parquet are one line each, with the nearest name."""
    write("", "data.jsonl")
    assert "did you mean 'data.jsonl'?" in fault(tmp_path / "dta.jsonl")
    assert "no such file" in fault(tmp_path / "no" / "such.jsonl")
    assert "no such file" in fault("what a user pastes instead of a path " * 100)
    with pytest.raises(RowError, match="no such file"):
        read_rows(tmp_path / "x")
    assert "is a folder" in fault(tmp_path)
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n' % index for index in range(9999)))
    for content in (whole[:-20], whole[: len(whole) // 2], b'{"text": "a"}', whole[:500] + b"\0" * 99 + whole[600:]):
        path = tmp_path / "broken.jsonl.gz"
        path.write_bytes(content)
        assert "gzip" in fault(path)
    pytest.importorskip("pyarrow")
    assert "cannot be read after 0 rows" in fault(write("no parquet", "a.parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'rmscore[parquet]'" in fault(tmp_path / "a.parquet", EngineMissing)


@pytest.mark.parametrize("source", [{"text": "a"}, b"a.jsonl"])
def test_one_row_is_no_list_of_rows(source):
    """A single mapping would be read as the list of its keys: it is refused."""
    assert "a path or a list of rows is needed" in fault(source)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, name):
    """Reading 20,000 rows holds a small share of them at any time."""
    path = tmp_path / name
    rows = ({"prompt": f"{index} " + "p" * 500, "response": "r" * 500} for index in range(20_000))
    if name == "a.parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            if name == "a.csv":
                writer.writerow(["prompt", "response"])
                writer.writerows(row.values() for row in rows)
            else:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    next(read_rows(path))  # imports
    tracemalloc.start()
    assert sum(1 for _ in read_rows(path)) == 20_000
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 3_000_000


def test_the_sample_is_read_whole():
    """The sample that ships is 60 pairs that all end in an answer."""
    rows = list(read_rows(sample_path()))
    assert len(rows) == 120
    assert all(row.content.turns[-1].role == "assistant" for row in rows)


def test_the_real_test_split():
    """hh-rlhf's harmless test split: 4 empty chosen answers, 5 pairs of unequal prompts, 1650 multi-turn chosen."""
    if not REAL.exists():
        pytest.skip("the hh-rlhf test split is not here")
    rows = [row.content for row in read_rows(REAL)]
    chosen, rejected = rows[::2], rows[1::2]
    assert len(chosen) == len(rejected) == 2312
    assert sum(not content.response for content in chosen) == 4
    assert sum(a.prompt != b.prompt for a, b in zip(chosen, rejected, strict=True)) == 5
    assert sum(len(content.turns) > 2 for content in chosen) == 1650
