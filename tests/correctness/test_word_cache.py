"""Ids from remembered words are the tokenizer's own ids, for every text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmscore.data import sample_texts
from rmscore.word_cache import text_encoder

pytest.importorskip("torch")

SHAPES = ("deberta-v3-xsmall", "electra-small", "roberta-base", "llama")
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(st.sampled_from("ab .,\t\n\r\u00a0\u2581\u3000\u0301e\u00e9\u200b\u4e2dΣς🙂[]CLSEP<s>"), max_size=40),
    st.lists(st.sampled_from(["the", "Human:", "don't", "naïve", "[SEP]", "[MASK]", "</s>", " ", "\n\n"])).map(
        " ".join
    ),
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


def test_words_are_used_where_that_is_exact(tiny):
    """Unigram and WordPiece remember words; byte-level BPE reads spaces with the word after them, and does not."""
    used = {
        shape: text_encoder(json.loads((tiny(shape) / "tokenizer.json").read_text(encoding="utf-8"))).words is not None
        for shape in SHAPES
    }
    assert used == {"deberta-v3-xsmall": True, "electra-small": True, "roberta-base": False, "llama": False}


def test_an_unknown_pipeline_goes_the_librarys_way(tiny):
    """A normaliser that nobody looked at is not cut into words."""
    spec = json.loads((tiny("electra-small") / "tokenizer.json").read_text(encoding="utf-8"))
    spec["normalizer"] = {"type": "Lowercase"}
    assert text_encoder(spec).words is None
