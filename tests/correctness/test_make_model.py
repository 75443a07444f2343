"""``make_model``: what transformers reads back is what the family publishes, and the same seed is the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import rmscore.shapes
from rmscore import make_model as making
from rmscore.data import sample_path, sample_texts
from rmscore.errors import CheckpointError, SettingError
from rmscore.make_model import empty_model, make_model
from rmscore.shapes import SHAPES, find_shape
from rmscore.train_tokenizer import train_tokenizer

DECODERS = ("llama", "qwen2", "qwen3", "gemma2")
ENCODERS = tuple(shape for shape in SHAPES if shape not in DECODERS)
KINDS = sorted({find_shape(shape).tokenizer for shape in SHAPES})
CHAT = [{"role": "user", "content": "Is it far?"}, {"role": "assistant", "content": "Ten minutes on foot."}]
# The published models' parameters plus a head of one output.
PARAMETERS = {
    "deberta-v3-large": 435_062_785,
    "deberta-v3-base": 184_422_913,
    "deberta-v3-xsmall": 70_830_337,
    "electra-large": 335_142_913,
    "electra-small": 13_549_057,
    "bert-base": 109_483_009,
    "roberta-base": 124_646_401,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("models")
    for shape in SHAPES:
        make_model(shape, top / shape, tiny=True)
    return {shape: top / shape for shape in SHAPES}


def load(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder).eval()


def scores(model, tokenizer, texts):
    with torch.no_grad():
        rows = [tokenizer(text, return_tensors="pt", truncation=True, max_length=256) for text in texts]
        return np.array([model(**row).logits.item() for row in rows])


def in_fresh_process(code):
    """Return what ``code`` prints in a process of its own."""
    package = str(Path(rmscore.shapes.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_loads_every_weight(folders, shape):
    """No weight is missing, unexpected or of another shape, and there is one output."""
    model, info = AutoModelForSequenceClassification.from_pretrained(folders[shape], output_loading_info=True)
    assert not any(info.values()), info
    assert model.config.num_labels == 1
    assert model.dtype == torch.float32


@pytest.mark.parametrize("shape", SHAPES)
def test_files(folders, shape):
    """A folder holds configuration, safetensors and tokenizer files, and no pickle; others may read it."""
    files = {path.name for path in folders[shape].iterdir()}
    expected = {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    }
    assert files == expected | ({"spm.model"} if shape.startswith("deberta") else set())
    assert folders[shape].stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("shape", SHAPES)
def test_same_seed_same_bytes(folders, shape, tmp_path):
    """The same seed gives the same bytes in every file; another seed gives other weights and the same tokenizer."""
    make_model(shape, tmp_path / "same", tiny=True, seed=0)
    make_model(shape, tmp_path / "other", tiny=True, seed=1)
    for path in folders[shape].iterdir():
        assert path.read_bytes() == (tmp_path / "same" / path.name).read_bytes(), path.name
        differs = path.read_bytes() != (tmp_path / "other" / path.name).read_bytes()
        assert differs == (path.name == "model.safetensors")


def test_weights_of_a_shape_differ(folders):
    """No two matrices of one model are equal: each has a random stream of its own."""
    weights = load_file(folders["bert-base"] / "model.safetensors")
    firsts = [float(weight.flatten()[0]) for weight in weights.values()]
    assert len(set(firsts)) == len(firsts)


def test_tokenizers_do_not_depend_on_the_process():
    """Every tokenizer trained in another process is the same: no hash seed and no thread order decides an id."""
    code = (
        "import hashlib; from rmscore.train_tokenizer import train_tokenizer\n"
        f"for kind in {KINDS}: print(hashlib.sha256(train_tokenizer(kind).pipeline.to_str().encode()).hexdigest())"
    )
    here = [hashlib.sha256(train_tokenizer(kind).pipeline.to_str().encode()).hexdigest() for kind in KINDS]
    assert in_fresh_process(code).split() == here


def test_shapes_need_no_engine():
    """The list of shapes is read without torch or transformers."""
    code = "import sys, rmscore.shapes; print({'torch', 'transformers'} & set(sys.modules))"
    assert in_fresh_process(code) == "set()"


@pytest.mark.parametrize("shape", SHAPES)
def test_tokenizer_json_alone_says_what_transformers_says(folders, shape):
    """AutoTokenizer and tokenizer.json alone give equal ids, for texts, pairs and spelled-out control tokens."""
    alone = Tokenizer.from_file(str(folders[shape] / "tokenizer.json"))
    auto = AutoTokenizer.from_pretrained(folders[shape])
    controls = " ".join(auto.all_special_tokens)
    for text in (*sample_texts(), "", " ", "naïve  ﬁancée\t— 東京 🐦", f"a {controls} b"):
        assert alone.encode(text).ids == auto(text)["input_ids"]
    pair, both = alone.encode("Is it far?", "Ten minutes."), auto("Is it far?", "Ten minutes.")
    assert pair.ids == both["input_ids"]
    assert both.get("token_type_ids", pair.type_ids) == pair.type_ids


@pytest.mark.parametrize("shape", ENCODERS)
def test_encoders_wrap_a_word_in_specials(folders, shape):
    """A text becomes [CLS] … [SEP] with known words between, a pair gets a separator in the middle as well."""
    tokenizer = AutoTokenizer.from_pretrained(folders[shape])
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids = tokenizer("water")["input_ids"]
    assert (ids[0], ids[-1]) == (cls, sep)
    assert tokenizer.decode(ids[1:-1]).strip() == "water"
    pair = tokenizer("water", "water")["input_ids"]
    assert pair == ids + ([sep] if shape == "roberta-base" else []) + ids[1:]


@pytest.mark.parametrize(
    ("shape", "ids"),
    [
        ("deberta-v3-large", {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": -1}),
        ("bert-base", {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}),
        ("roberta-base", {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": -1}),
        ("gemma2", {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3}),
        ("qwen3", {"<|endoftext|>": -3, "<|im_start|>": -2, "<|im_end|>": -1}),
    ],
)
def test_special_ids_follow_the_public_order(folders, shape, ids):
    """Special tokens have the ids or the order they have in the published vocabularies; -1 is the last."""
    tokenizer = AutoTokenizer.from_pretrained(folders[shape])
    for token, index in ids.items():
        assert tokenizer.convert_tokens_to_ids(token) == index % len(tokenizer)


@pytest.mark.parametrize("shape", SHAPES)
def test_configuration_agrees_with_the_tokenizer(folders, shape):
    """Pad id, embedding rows and length limit are the tokenizer's."""
    config, tokenizer = load(folders[shape]).config, AutoTokenizer.from_pretrained(folders[shape])
    assert config.pad_token_id == tokenizer.pad_token_id is not None
    assert config.vocab_size == len(tokenizer)
    assert tokenizer.model_max_length == (2048 if shape in DECODERS else 512)
    assert tokenizer.padding_side == "right"


def test_sentencepiece_gives_the_ids_of_tokenizer_json(folders):
    """Raw SentencePiece and tokenizer.json agree on every sample text, and few pieces are unknown."""
    folder = folders["deberta-v3-base"]
    raw = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    converted = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in sample_texts():
        ids = converted.encode(text).ids
        assert ids == [1, *raw.encode(text), 2]
        assert 3 not in ids


@pytest.mark.parametrize("shape", DECODERS)
def test_templates_render_one_beginning(folders, shape):
    """A rendered conversation holds one BOS where the family has one and none elsewhere, and ends its last turn."""
    tokenizer = AutoTokenizer.from_pretrained(folders[shape])
    ids = tokenizer.apply_chat_template(CHAT)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == (1 if shape in {"llama", "gemma2"} else 0)
    assert (tokenizer("water")["input_ids"][0] == tokenizer.bos_token_id) == (shape in {"llama", "gemma2"})
    rendered = tokenizer.apply_chat_template(CHAT, tokenize=False)
    end = {"llama": "<|eot_id|>", "gemma2": "<end_of_turn>\n"}.get(shape, "<|im_end|>\n")
    assert rendered.endswith("Ten minutes on foot." + end)
    assert (
        Tokenizer.from_file(str(folders[shape] / "tokenizer.json")).decode(ids, skip_special_tokens=False) == rendered
    )


@pytest.mark.parametrize(("shape", "parameters"), PARAMETERS.items())
def test_full_size_encoders_have_the_public_size(shape, parameters):
    """A full-size encoder has the published number of parameters, to the last one."""
    assert sum(weight.numel() for weight in empty_model(shape).parameters()) == parameters


@pytest.mark.parametrize("shape", DECODERS)
def test_full_size_decoders_have_about_100_million(shape):
    """A full-size decoder has 90 to 115 million parameters, groups its queries, and holds every trained token."""
    model = empty_model(shape, train_tokenizer(find_shape(shape).tokenizer))
    assert 90e6 < sum(weight.numel() for weight in model.parameters()) < 115e6
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    assert model.config.vocab_size == 8192


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_spread(folders, shape):
    """Scores of the sample have a standard deviation of 0.1 to 1, far above what precision alone can move."""
    values = scores(load(folders[shape]), AutoTokenizer.from_pretrained(folders[shape]), sample_texts()[:60])
    assert 0.1 < values.std() < 1


@pytest.mark.parametrize("shape", SHAPES)
def test_every_bias_and_norm_matters(folders, shape):
    """Neutralising any bias or normalisation weight moves a score by more than the fp32 tolerance.

    Key biases of encoders with absolute positions are left out: softmax cancels them exactly.
    """
    model, tokenizer = load(folders[shape]), AutoTokenizer.from_pretrained(folders[shape])
    texts = sample_texts()[:3]
    right = scores(model, tokenizer, texts)
    cancelled = ("attention.self.key.bias",) if not shape.startswith("deberta") else ()
    for name, weight in model.named_parameters():
        if weight.ndim != 1 or name.endswith(cancelled):
            continue
        kept = weight.data.clone()
        weight.data.fill_(1.0 if name.endswith(".weight") and shape != "gemma2" else 0.0)
        assert np.abs(scores(model, tokenizer, texts) - right).max() > 1e-4, name
        weight.data.copy_(kept)


@pytest.mark.parametrize("change", [{"attn_logit_softcapping": None}, {"sliding_window": 2048}])
def test_gemma_soft_cap_and_window_matter(folders, change):
    """A backend without the soft-cap or the sliding window gives other scores for the tiny model."""
    folder, texts = folders["gemma2"], sample_texts()[:3]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    wrong = AutoModelForSequenceClassification.from_pretrained(folder, **change).eval()
    assert np.abs(scores(wrong, tokenizer, texts) - scores(load(folder), tokenizer, texts)).max() > 1e-4


def test_sample_crosses_the_tiny_bucket_edge(folders):
    """Tiny DeBERTa shares buckets from distance 16 on, and all but a few sample texts are longer than that."""
    assert load(folders["deberta-v3-large"]).config.position_buckets == 32
    tokenizer = AutoTokenizer.from_pretrained(folders["deberta-v3-large"])
    lengths = [len(tokenizer.tokenize(text)) for text in sample_texts()]
    assert np.mean([length > 32 for length in lengths]) > 0.9


def test_sample_has_the_form_of_hh_rlhf():
    """60 pairs that share all but the last answer, 70 % of several turns, word counts near hh-rlhf's."""
    rows = [json.loads(line) for line in sample_path().read_text(encoding="utf-8").split("\n")[:-1]]
    marker = "\n\nAssistant: "
    for row in rows:
        assert list(row) == ["chosen", "rejected"]
        assert row["chosen"].startswith("\n\nHuman: ")
        chosen, rejected = (row[side].rpartition(marker) for side in ("chosen", "rejected"))
        assert chosen[0] == rejected[0]
        assert chosen[2] != rejected[2]
        assert chosen[2].strip()
        assert rejected[2].strip()
    assert len(rows) == 60
    assert 0.65 < np.mean([row["chosen"].count("\n\nHuman: ") > 1 for row in rows]) < 0.75
    words = [len(row["chosen"].split()) for row in rows]
    public = [19, 46, 91, 156, 315]
    assert np.percentile(words, [5, 25, 50, 75, 95]) == pytest.approx(public, rel=0.1)


def test_folder_in_use_is_refused(tmp_path):
    """A folder with anything in it, or a file of that name, is left as it is."""
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not an empty folder"):
        make_model("bert-base", tmp_path, tiny=True)
    with pytest.raises(CheckpointError, match="not an empty folder"):
        make_model("bert-base", tmp_path / "kept.txt", tiny=True)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_empty_folder_is_used(tmp_path):
    """An empty folder is filled, and missing parents are made."""
    (tmp_path / "empty").mkdir()
    make_model("electra-small", tmp_path / "empty", tiny=True)
    make_model("electra-small", tmp_path / "new" / "model", tiny=True)
    assert (tmp_path / "empty" / "config.json").is_file()
    assert (tmp_path / "new" / "model" / "config.json").is_file()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failure_leaves_nothing(tmp_path, monkeypatch, error):
    """A build that fails or is interrupted half-way leaves neither the folder nor a temporary one."""

    def fail(*_):
        raise error

    monkeypatch.setattr(making, "_write_weights", fail)
    with pytest.raises((CheckpointError, KeyboardInterrupt)) as caught:
        make_model("bert-base", tmp_path / "model", tiny=True)
    assert isinstance(caught.value, KeyboardInterrupt) or "model: cannot be written: No space left" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_unknown_shape(tmp_path):
    """A mistyped shape is answered with the nearest one."""
    with pytest.raises(SettingError, match=r"'deberta-v3-larg' .did you mean 'deberta-v3-large'"):
        make_model("deberta-v3-larg", tmp_path / "model")


def test_negative_seed(tmp_path):
    """A negative seed is refused."""
    with pytest.raises(SettingError, match="seed -1 is negative"):
        make_model("llama", tmp_path / "model", seed=-1)
