"""Row → ids: transformers' ids, no control token that content spells, limits kept and counted."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmscore.checkpoint import open_checkpoint
from rmscore.encode import encode, load_encoder
from rmscore.errors import CheckpointError, RowError, SettingError
from rmscore.rows import read_rows
from rmscore.shapes import SHAPES

pytest.importorskip("torch")
from transformers import AutoTokenizer

ENCODERS = ("deberta-v3-xsmall", "electra-small", "bert-base", "roberta-base")
DECODERS = ("llama", "qwen2", "qwen3", "gemma2")


def ids_of(folder, rows, **how):
    return [row.ids.tolist() for row in encode(load_encoder(open_checkpoint(folder), **how), list(read_rows(rows)))]


@pytest.mark.parametrize("shape", ENCODERS)
@settings(max_examples=40)
@given(st.text(max_size=80), st.text(max_size=80), st.integers(8, 40))
def test_pairs_and_cuts_are_transformers(tiny, shape, prompt, response, limit):
    """Without a template, a prompt and its response are the pair that transformers makes of them, cut where it cuts."""
    tokenizer = AutoTokenizer.from_pretrained(tiny(shape))
    spelled = [token for token in tokenizer.all_special_tokens if token in prompt + response]
    if not spelled:
        batch = tokenizer([prompt], [response], truncation="longest_first", max_length=limit)
        want = {name: values[0] for name, values in batch.items()}
        (got,) = encode(
            load_encoder(open_checkpoint(tiny(shape)), max_tokens=limit),
            list(read_rows([{"prompt": prompt, "response": response}])),
        )
        assert got.ids.tolist() == want["input_ids"]
        if "token_type_ids" in want:
            assert got.type_ids.tolist() == want["token_type_ids"]


@pytest.mark.parametrize("shape", DECODERS)
def test_a_template_gives_transformers_ids(tiny, shape):
    """A conversation has the ids of ``apply_chat_template``, and exactly one BOS where the family has one."""
    tokenizer = AutoTokenizer.from_pretrained(tiny(shape))
    messages = [{"role": "user", "content": "  What is 2 + 2?\n"}, {"role": "assistant", "content": "It is 4. "}]
    (got,) = ids_of(tiny(shape), [{"messages": messages}])
    assert got == tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    if tokenizer.bos_token_id is not None:
        assert got.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("shape", DECODERS)
def test_rendered_text_gets_no_second_bos(tiny, shape):
    """Rendering a conversation oneself and scoring it as text gives the ids of the conversation."""
    tokenizer = AutoTokenizer.from_pretrained(tiny(shape))
    messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert ids_of(tiny(shape), [{"text": text}]) == ids_of(tiny(shape), [{"messages": messages}])


@pytest.mark.parametrize("shape", SHAPES)
def test_content_never_makes_a_control_token(tiny, shape):
    """A response that spells every control token of its tokenizer has as many control ids as one that spells none."""
    encoder = load_encoder(open_checkpoint(tiny(shape)))
    spelled = " ".join(encoder.tokenizer.controls)
    rows = list(
        read_rows([{"prompt": "Hi " + text, "response": f"the cat {text} sat{text}"} for text in (spelled, "")])
    )
    counts = [sum(int(i) in encoder.control_ids for i in row.ids) for row in encode(encoder, rows)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("shape", DECODERS)
def test_spelled_control_tokens_leave_the_rest_alone(tiny, shape):
    """The ids before a spelled control token are those of the conversation without it."""
    (clean,) = ids_of(tiny(shape), [{"prompt": "One two three", "response": "four"}])
    control = next(iter(load_encoder(open_checkpoint(tiny(shape))).tokenizer.controls))
    (spelled,) = ids_of(tiny(shape), [{"prompt": "One two three", "response": f"four {control}"}])
    same = next(i for i, (a, b) in enumerate(zip(clean, spelled, strict=False)) if a != b)
    assert same >= clean.index(clean[-1]) // 2
    assert len(spelled) > len(clean)


def test_raw_text_is_parsed_and_counted(tiny):
    """Raw text is encoded as transformers encodes it; the control tokens it spells act as such and are counted."""
    folder = tiny("deberta-v3-xsmall")
    (row,) = encode(load_encoder(open_checkpoint(folder)), list(read_rows(["the cat [SEP] sat"])))
    assert row.ids.tolist() == AutoTokenizer.from_pretrained(folder)("the cat [SEP] sat")["input_ids"]
    assert row.controls == 1


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("shape", ["electra-small", "llama"])
def test_a_cut_keeps_limit_and_specials_and_is_counted(tiny, shape, side):
    """A long row has exactly the limit's tokens, its first special token, and the number of tokens it lost."""
    encoder = load_encoder(open_checkpoint(tiny(shape)), max_tokens=32, truncation=side)
    full, cut = (
        encode(each, list(read_rows([{"prompt": "a b c", "response": "one two three " * 60}])))[0]
        for each in (load_encoder(open_checkpoint(tiny(shape))), encoder)
    )
    assert len(cut.ids) == 32
    assert cut.cut == len(full.ids) - 32
    assert cut.ids[0] == full.ids[0]
    assert (cut.ids[-1] == full.ids[-1]) == (side == "left" or shape == "electra-small")


@pytest.mark.parametrize("shape", ENCODERS)
def test_the_limit_is_the_models_where_the_tokenizer_names_none(tiny, tmp_path, shape):
    """An absurd ``model_max_length`` is no limit; positions less the padding offset are (512 of RoBERTa's 514)."""
    folder = shutil.copytree(tiny(shape), tmp_path / "m")
    named = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(named | {"model_max_length": int(1e30)}))
    assert open_checkpoint(folder).max_tokens == 512
    assert len(ids_of(folder, [{"text": "long " * 3000}])[0]) == 512


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("shape", ["deberta-v3-xsmall", "llama"])
def test_empty_text_is_encoded_alike_everywhere(tiny, shape, position):
    """An empty response has the same ids first, in the middle and last, and no row disappears."""
    rows = [{"prompt": "p", "response": "" if i == position else "word"} for i in range(3)]
    got = ids_of(tiny(shape), rows)
    assert len(got) == 3
    assert got[position] == ids_of(tiny(shape), [{"prompt": "p", "response": ""}])[0]


def test_a_row_without_any_token_is_refused_by_name(tiny):
    """Where the tokenizer adds nothing, an empty text has no score; the row is named."""
    with pytest.raises(RowError, match="row 1: the text is empty"):
        ids_of(tiny("qwen2"), ["word", ""])


def test_messages_without_a_template_are_refused(tiny):
    """A conversation of several turns has no defined text without a chat template, so none is made up."""
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    with pytest.raises(RowError, match="row 0: this checkpoint has no chat template"):
        ids_of(tiny("electra-small"), [{"messages": turns}])
    assert ids_of(tiny("electra-small"), [{"messages": turns[:2]}]) == ids_of(
        tiny("electra-small"), [{"prompt": "x", "response": "x"}]
    )


def test_an_encoder_without_its_specials_is_refused(tiny, tmp_path):
    """A tokenizer that adds no [CLS] and [SEP] is refused for an encoder, unless told so."""
    folder = shutil.copytree(tiny("deberta-v3-xsmall"), tmp_path / "m")
    spec = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(spec | {"post_processor": None}))
    with pytest.raises(CheckpointError, match=r"does not put \[CLS\] … \[SEP\] around"):
        ids_of(folder, ["word"])
    assert len(ids_of(folder, ["word"], allow_missing_specials=True)[0]) >= 1


def test_an_id_beyond_the_embeddings_is_refused(tiny, tmp_path):
    """A token that the model has no embedding for is an error naming id and table size, not an index error."""
    folder = shutil.copytree(tiny("electra-small"), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 40}))
    with pytest.raises(CheckpointError, match=r"embedding table .* has 40 rows"):
        ids_of(folder, ["some words here"])


def test_wrong_limits_are_settings_errors(tiny):
    """A limit over the model's, or with no room for content, says what is possible."""
    model = open_checkpoint(tiny("electra-small"))
    for limit, hint in ((513, "takes 1 to 512"), (0, "takes 1 to 512"), (3, "special tokens alone take 3")):
        with pytest.raises(SettingError, match=hint):
            load_encoder(model, max_tokens=limit)
    with pytest.raises(SettingError, match="choose left or right"):
        load_encoder(model, truncation="middle")


def test_threads_share_one_encoder(tiny):
    """Encoders of different limits over one checkpoint, used from eight threads at once, keep their limits and ids."""
    model = open_checkpoint(tiny("deberta-v3-xsmall"))
    encoders = [load_encoder(model, max_tokens=limit) for limit in (16, 64)]
    rows = list(read_rows([{"prompt": f"word {i} " * 10, "response": "some other words " * 20} for i in range(20)]))
    want = [[row.ids for row in encode(encoder, rows)] for encoder in encoders]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: [row.ids for row in encode(encoders[i % 2], rows)], range(40)))
    for i, ids in enumerate(got):
        assert all(np.array_equal(a, b) for a, b in zip(ids, want[i % 2], strict=True))
