"""Ids from remembered words are the tokenizer's own ids, for every text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmscore.data import sample_texts
from rmscore.word_cache import text_encoder

pytest.importorskip("torch")

SHAPES = ("deberta-v3-xsmall", "electra-small", "roberta-base", "llama", "qwen2", "gemma2")
WORDS = ("the", "Human:", "don't", "naïve", "[SEP]", "[MASK]", "</s>", "<mask>", "<|eot_id|>", "<|im_end|>", "<bos>")
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(st.sampled_from("ab .,\t\n\r\u00a0\u2581\u3000\u0301e\u00e9\u200b\u4e2dΣς🙂[]CLSEP<s>"), max_size=40),
    st.lists(st.sampled_from([*WORDS, " ", "\n\n", "\n ", "\t", "'s", "12 345", "e\u0301", " ?!"])).map(" ".join),
    st.lists(st.sampled_from([*WORDS, " a", " ", "\n", "\u0301", "'LL", "  x", " 中", " é"])).map("".join),
)


@pytest.fixture(scope="module", params=SHAPES)
def encoder(request, tiny):
    spec = json.loads((tiny(request.param) / "tokenizer.json").read_text(encoding="utf-8"))
    return text_encoder(spec)


@given(texts=st.lists(TEXTS, max_size=5))
def test_ids_are_the_tokenizers_own(encoder, texts):
    """Whatever the text, ids by word and ids by the library are equal, in order."""
    want = [encoder.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert [ids.tolist() for ids in encoder.encode(texts)] == want


def test_real_text_too(encoder):
    """On the sample dialogues as well, and again when all words are known."""
    texts = sample_texts()
    want = [encoder.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    for _ in range(2):
        assert [ids.tolist() for ids in encoder.encode(texts)] == want


@pytest.mark.parametrize("shape", SHAPES)
def test_words_are_used_where_that_is_exact(tiny, shape):
    """Every kind of tokenizer that we build remembers words."""
    encoder = text_encoder(json.loads((tiny(shape) / "tokenizer.json").read_text(encoding="utf-8")))
    encoder.encode(["one two three"])
    assert len(encoder.memory) == 3


def test_memory_has_a_bound(encoder, monkeypatch):
    """What is remembered starts anew when it grows too large, and ids stay the same."""
    monkeypatch.setattr("rmscore.word_cache.LARGEST", 5_000)
    held = []
    for number in range(200):
        text = f"abc {number} " + "x" * number
        (ids,) = encoder.encode([text])
        assert ids.tolist() == encoder.tokenizer.encode(text, add_special_tokens=False).ids
        held.append(len(encoder.memory))
    assert max(held[1:]) <= 5_000 / 220 + 3
    assert held[-1] > 0


def test_an_unknown_pipeline_goes_the_librarys_way(tiny):
    """A normaliser that nobody looked at is not cut into words."""
    spec = json.loads((tiny("electra-small") / "tokenizer.json").read_text(encoding="utf-8"))
    spec["normalizer"] = {"type": "Lowercase"}
    assert text_encoder(spec).words is None


def test_an_unknown_split_goes_the_librarys_way(tiny):
    """Nor is a split pattern that nobody looked at, or a model that draws its merges at random."""
    spec = json.loads((tiny("llama") / "tokenizer.json").read_text(encoding="utf-8"))
    spec["model"]["dropout"] = 0.5
    assert text_encoder(spec).words is None
    spec["model"]["dropout"] = None
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] += "|x"
    assert text_encoder(spec).words is None
