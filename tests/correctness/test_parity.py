"""Tokenizer parity: where ``tokenizer.json`` and an independent tokenizer differ, the report says where and why."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmscore.errors import CheckpointError, RowError
from rmscore.parity import KINDS, parity, same_to_tokenizer
from rmscore.wordpiece import WordPiece

tokenizers = pytest.importorskip("tokenizers")
sentencepiece = pytest.importorskip("sentencepiece")
training = pytest.importorskip("rmscore.train_tokenizer")

DECOMPOSED = {
    "ordinal and grave": ("\u00aa\u0300", "\u00e0", "a"),
    "a with breve and acute": (unicodedata.normalize("NFD", "\u1eaf"), "\u1eaf", "\u0103"),
    "A with circumflex and grave": ("A\u0302\u0300", "\u1ea6", "\u00c2"),
    "three jamo": (unicodedata.normalize("NFD", "\uac01"), "\uac01", "\u1100\u1161\u11a8"),
    "halfwidth kana": ("\uff76\uff9e", "\u30ac", "\u30ab\u3099"),
}
"""Text; what raw SentencePiece makes of it; what the tokenizers library makes of it."""

SAME_ON_BOTH = ["e\u0301", "\u2126", "\U0001f1e9\U0001f1ea", "\U0001f468\u200d\U0001f469\u200d\U0001f467"]
SPACES = [
    "",
    " ",
    "   ",
    " cat",
    "cat ",
    "the  cat",
    "the\tcat",
    "the\n\ncat",
    "\n\nHuman: the cat\n\nAssistant: sat",
] + [f"the{mark}cat" for mark in "\u00a0\u200b\u200e\u200f\u061c\u00ad\ufeff\u0000\u3000\ufe30\u2028\u0085"]
SENTENCES = [
    "the cat sat on the mat",
    "a dog ran to the cat and the dog sat",
    "Human: where is the cat? Assistant: the cat is on the mat.",
    " ".join([*(text for texts in DECOMPOSED.values() for text in texts), *SAME_ON_BOTH]),
] * 10


def save(folder, trained):
    folder.mkdir(exist_ok=True)
    trained.save(folder, longest=512)
    return folder


@pytest.fixture(scope="module")
def deberta(tmp_path_factory):
    """Train a DeBERTa-v3 tokenizer: ``tokenizer.json`` and the ``spm.model`` it was converted from."""
    return save(tmp_path_factory.mktemp("parity") / "deberta", training.train_tokenizer("deberta", SENTENCES))


@pytest.fixture(scope="module")
def electra(tmp_path_factory):
    """Train an uncased WordPiece tokenizer."""
    texts = [*SENTENCES, "naïve A–B 日本 x1 don't"] * 3
    return save(tmp_path_factory.mktemp("parity") / "electra", training.train_tokenizer("wordpiece", texts))


@pytest.fixture
def edited(tmp_path):
    """Copy a folder whose ``tokenizer.json`` went through a function."""

    def edit(folder, change):
        for file in folder.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        spec = json.loads((folder / "tokenizer.json").read_text())
        change(spec)
        (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
        return tmp_path

    return edit


def only(folder, text):
    (found,) = parity(folder, [text]).disagreements
    return found


def tokens(folder, ids):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.id_to_token(index) for index in ids]


def test_both_sides_agree_on_ordinary_text(deberta, electra):
    """On the sentences themselves nothing differs; ids are compared where both sides number alike."""
    for folder, name in ((deberta, "spm.model in sentencepiece"), (electra, "BERT's published")):
        report = parity(folder, SENTENCES[:3])
        assert report.reference.startswith(name)
        assert (report.compared, report.texts, report.disagreements, report.passes) == ("ids", 3, (), True)
        assert report.tokens > 20


@pytest.mark.parametrize(
    ("text", "ours_ends", "position"),
    [("the▁cat ▁ sat▁", ["▁sat", "▁"], 13), ("▁▁", ["▁"], 1)],
)
def test_the_marker_in_a_text(deberta, text, ours_ends, position):
    """U+2581 at the end of a text is one bare piece more than raw SentencePiece gives (sentencepiece#863)."""
    found = only(deberta, text)
    assert (found.kind, found.position, found.text) == ("marker", position, 0)
    assert list(found.ids[:-1]) == list(found.reference_ids)
    assert "".join(tokens(deberta, found.ids)).endswith("".join(ours_ends))


@pytest.mark.parametrize(("text", "raw", "fast"), DECOMPOSED.values(), ids=DECOMPOSED)
def test_decomposed_text_is_a_normaliser_difference(deberta, text, raw, fast):
    """Combining marks that the library composes otherwise are named, with their place (tokenizers#2116)."""
    found = only(deberta, f"the cat {text} sat")
    assert found.kind == "normaliser"
    assert found.position == 8
    assert (found.reference_normalised, found.normalised) == (f"the cat {raw} sat", f"the cat {fast} sat")
    assert found.detail.startswith(" ".join(f"U+{ord(character):04X}" for character in text))


def test_nfc_is_advised_only_where_it_helps(deberta):
    """Vietnamese and Korean are cured by NFC; what only compatibility composes is not."""
    assert "NFC first" in only(deberta, DECOMPOSED["A with circumflex and grave"][0]).detail
    assert "does not cure" in only(deberta, DECOMPOSED["halfwidth kana"][0]).detail


@pytest.mark.parametrize("text", SAME_ON_BOTH)
def test_composed_text_agrees(deberta, text):
    """Simple accents, compatibility letters, flags and joined emoji are the same on both sides."""
    assert parity(deberta, [text, f"the {text} cat"]).disagreements == ()


def test_equal_unknown_ids_hide_nothing(tmp_path):
    """Where a small vocabulary makes both sides unknown, the normalised strings still tell them apart."""
    folder = save(tmp_path / "tiny", training.train_tokenizer("deberta", ["the cat sat on the mat"] * 10))
    found = only(folder, "A\u0302\u0300")
    assert found.ids == found.reference_ids
    assert (found.kind, found.position) == ("normaliser", 0)


@pytest.mark.parametrize("text", SPACES)
def test_white_space_and_invisible_marks_agree(deberta, text):
    """Spaces, line ends and invisible marks are lost or kept alike on both sides."""
    assert parity(deberta, [text]).disagreements == ()


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("\n\nHuman: the cat", "Human: the cat", True),
        ("the\n\ncat", "the cat", True),
        ("the\u00a0cat", "the cat", True),
        ("the\u200ecat", "the cat", True),
        ("the▁cat", "the cat", True),
        ("the cat", "the dog", False),
        ("the cat", "thecat", False),
    ],
)
def test_lossiness_probe(deberta, first, second, same):
    """Two texts with the same ids get the same score whatever the model; the probe says so."""
    tokenizer = tokenizers.Tokenizer.from_file(str(deberta / "tokenizer.json"))
    assert same_to_tokenizer(tokenizer, first, second) is same


def test_the_probe_ignores_truncation(deberta):
    """Texts that differ after the tokenizer's own limit are not the same, and the limit stays as it was."""
    tokenizer = tokenizers.Tokenizer.from_file(str(deberta / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    assert not same_to_tokenizer(tokenizer, "the cat sat on the mat", "the cat sat on the dog")
    assert tokenizer.truncation["max_length"] == 2


def test_byte_fallback(tmp_path):
    """Raw SentencePiece falls back to bytes, the conversion does not: a policy, and unknowns are counted."""
    serialized = training.io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat", "a cat ran"] * 20),
        model_writer=serialized,
        model_type="unigram",
        vocab_size=400,
        hard_vocab_limit=False,
        byte_fallback=True,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=serialized.getvalue())
    vocabulary = [(model.id_to_piece(index), model.get_score(index)) for index in range(model.get_piece_size())]
    (tmp_path / "spm.model").write_bytes(serialized.getvalue())
    for fallback in (False, True):
        pipeline = tokenizers.Tokenizer(
            tokenizers.models.Unigram(vocabulary, unk_id=model.unk_id(), byte_fallback=fallback)
        )
        pipeline.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace("▁", prepend_scheme="always")
        pipeline.save(str(tmp_path / "tokenizer.json"))
        report = parity(tmp_path, ["cat \U0001f431"])
        if fallback:
            assert report.disagreements == ()
            assert not report.many_unknown
        else:
            (found,) = report.disagreements
            assert (found.kind, found.position, report.passes) == ("unknown policy", 4, True)
            assert [model.id_to_piece(index) for index in found.reference_ids[-4:]] == [
                "<0xF0>",
                "<0x9F>",
                "<0x90>",
                "<0xB1>",
            ]
            assert found.ids[-1] == model.unk_id()
            assert (report.unknown_tokens, report.many_unknown) == (1, True)


def test_control_tokens_in_a_text(deberta, electra):
    """A spelled control token is one only to tokenizer.json; a real unknown beside it does not count as spelled."""
    for folder in (deberta, electra):
        found = only(folder, "the cat [SEP] sat \u4000")
        assert (found.kind, found.position) == ("control token", 8)
        sep = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("[SEP]")
        assert sep in found.ids
        assert sep not in found.reference_ids
    assert only(deberta, "the [UNK] cat").kind == "control token"
    assert only(electra, "▁ the [SEP]").kind == "control token"


def test_several_causes_in_one_text(deberta):
    """A known cause does not hide another: with marker and control token gone, what is left decides."""
    assert only(deberta, "[CLS] the▁cat A\u0302\u0300").kind == "normaliser"
    assert only(deberta, "[CLS] the cat▁").kind == "marker"


def test_another_vocabulary_is_a_failure(deberta, edited):
    """Where the same text gives other pieces the folder's files do not belong together: a failure at its place."""

    def swap(spec):
        pieces = {piece: index for index, (piece, _) in enumerate(spec["model"]["vocab"])}
        spec["model"]["vocab"][pieces["▁cat"]][1] = -99.0

    folder = edited(deberta, swap)
    report = parity(folder, ["the dog", "the cat", "[SEP] cat", "a cat▁", "cat \u4000"])
    assert not report.passes
    assert report.counts["ids"] == 4
    assert (report.disagreements[0].text, report.disagreements[0].position) == (1, 3)


def test_other_numbers_for_the_same_pieces(deberta, edited):
    """Where the two sides number pieces differently, as XLM-R does, pieces are compared."""

    def shift(spec):
        spec["model"]["vocab"].insert(0, ["<s>", 0.0])
        spec["model"]["unk_id"] += 1
        spec["added_tokens"] = []
        spec["post_processor"] = None

    report = parity(edited(deberta, shift), [*SENTENCES[:3], "cat \u4000"])
    assert (report.compared, report.disagreements) == ("pieces", ())


@given(
    st.lists(
        st.one_of(
            st.sampled_from([*SENTENCES[:3], *SAME_ON_BOTH, *SPACES, "▁", "[SEP]", "[UNK]", "\U0001f431"]),
            st.sampled_from([text for text, _, _ in DECOMPOSED.values()]),
            st.text(max_size=8),
            st.text(st.characters(categories=["Mn", "Lo", "Zs", "Cf"]), max_size=6),
        ),
        max_size=6,
    )
)
def test_every_text_agrees_or_is_explained(deberta, electra, parts):
    """For any text both sides agree or the report explains it: no failure on matching files, no crash."""
    text = " ".join(parts)
    for folder in (deberta, electra):
        report = parity(folder, [text])
        assert report.passes
        for found in report.disagreements:
            assert found.kind in KINDS
            assert 0 <= found.position <= len(text)


def test_word_pieces_of_long_words(electra):
    """100 letters are 100 pieces, 101 are one unknown, on both sides."""
    vocabulary = {"[UNK]": 0, "a": 1, "##a": 2}
    assert WordPiece(vocabulary).ids("a" * 100) == [1] + [2] * 99
    assert WordPiece(vocabulary).ids("a" * 101) == [0]
    report = parity(electra, ["q" * 100, "q" * 101, "a" * 101])
    assert report.disagreements == ()
    assert report.unknown_tokens >= 2


@pytest.mark.parametrize(
    "text",
    [
        "naïve",
        "A–B",
        "\U0001f431 cat",
        "日本 cat",
        "c\u0007a\u200bt",
        "don't",
        "\ufffd\0cat",
        "ÀÉ",
        "İstanbul",
        "cat\u2028sat",
    ],
)
def test_word_pieces_agree(electra, text):
    """Accents, dashes, emoji, CJK and control characters are the same in the library and the reference."""
    assert parity(electra, [text]).disagreements == ()


def test_strip_accents_follows_lowercase():
    """Where it is unset, accents go exactly when letters are lowercased."""
    assert WordPiece({}, lowercase=True).words("Naïve") == ["naive"]
    assert WordPiece({}, lowercase=False).words("Naïve") == ["Naïve"]
    assert WordPiece({}, lowercase=True, strip_accents=False).words("Naïve") == ["naïve"]
    assert WordPiece({}, lowercase=False, strip_accents=True).words("Naïve") == ["Naive"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_cased_word_pieces_agree(electra, edited, lowercase):
    """The comparison follows the casing that tokenizer.json states."""
    folder = edited(electra, lambda spec: spec["normalizer"].update(lowercase=lowercase, strip_accents=None))
    assert parity(folder, ["Naïve A–B cat", "THE CAT"]).disagreements == ()


def test_a_final_sigma_is_a_normaliser_difference(electra):
    """Python lowercases a last sigma by context, the library letter by letter: explained, no failure."""
    found = only(electra, "the ΟΔΟΣ")
    assert (found.kind, found.position) == ("normaliser", 6)


def test_a_dash_glued_to_a_word_is_a_failure(electra, edited):
    """A pipeline that does not split punctuation gives ids the model never saw (tokenizers#115)."""
    folder = edited(electra, lambda spec: spec.update(pre_tokenizer={"type": "WhitespaceSplit"}))
    report = parity(folder, ["the cat", "the cat–sat"])
    assert not report.passes
    assert (report.disagreements[0].text, report.disagreements[0].kind) == (1, "ids")


def test_what_has_no_reference_is_said(tmp_path, deberta, electra, edited, monkeypatch):
    """Without an independent tokenizer nothing is claimed; a missing library is named with its pip line."""
    roberta = save(tmp_path / "roberta", training.train_tokenizer("roberta", SENTENCES))
    report = parity(roberta, SENTENCES)
    assert "no independent reference for BPE" in report.unchecked
    assert (report.passes, report.texts, report.many_unknown) == (True, 0, False)
    folder = edited(electra, lambda spec: spec.update(normalizer={"type": "Lowercase"}))
    assert "'Lowercase'" in parity(folder, ["a"]).unchecked
    (roberta / "tokenizer.model").write_text("no model")
    assert "no SentencePiece model" in parity(roberta, ["a"]).unchecked
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert "pip install 'rmscore[models]'" in parity(deberta, ["a"]).unchecked


def test_what_cannot_be_checked_is_one_line(tmp_path, deberta):
    """A missing or broken tokenizer and a text with half a character are one line each."""
    with pytest.raises(CheckpointError, match="cannot be read"):
        parity(tmp_path, ["a"])
    for content in ("{", "{}", "[]", '{"model": {"type": "Unigram"}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(CheckpointError, match="is no tokenizer") as caught:
            parity(tmp_path, ["a"])
        assert "\n" not in str(caught.value)
    with pytest.raises(RowError, match="text 1: holds half a character"):
        parity(deberta, ["a", "b\ud800"])


def test_texts_stream_and_reports_stay_small(deberta):
    """Counts are complete, details are kept for a hundred of a kind."""
    report = parity(deberta, ("▁" for _ in range(150)))
    assert (report.texts, report.counts, len(report.disagreements)) == (150, {"marker": 150}, 100)


def test_a_report_in_words(deberta):
    """The lines name the reference, the counts, the first case of each kind and too many unknown tokens."""
    report = parity(deberta, ["the cat", "the cat▁", "A\u0302\u0300"])
    head, marker, normaliser = report.lines()
    assert head.startswith("tokenizer: 3 texts against spm.model in sentencepiece ")
    assert head.endswith(": 1 differ by marker, 1 differ by normaliser")
    assert marker == "  marker: text 1, character 7: without it the two sides agree"
    assert normaliser == "  normaliser: text 2, character 0: U+0041 U+0302 U+0300: normalise texts to NFC first"
    same, unknown = parity(deberta, ["cat \u4000"]).lines()
    assert same.endswith(": the same ids")
    assert "33.3% of the tokens are unknown" in unknown
