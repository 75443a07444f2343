"""Tokenizers of the public families, trained on the sample text in seconds and the same on every run.

Each is written as its family publishes it: ``tokenizer.json`` with every special token and the post-processor spelled
out, ``tokenizer_config.json`` with the chat template of a decoder, and for DeBERTa the ``spm.model`` that
``tokenizer.json`` was converted from.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from rmscore.data import sample_texts

# More pieces than the sample text carries, so that the text alone decides the size of a vocabulary.
_MOST_PIECES: Final = 6000

_BERT_SPECIALS: Final = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}

_ROBERTA_SPECIALS: Final = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}

# How the families cut text before byte-level BPE: words, digits (by threes or one by one), marks, white space.
_LLAMA_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPLIT: Final = _LLAMA_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

_LLAMA_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_QWEN3_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_QWEN2_TEMPLATE: Final = _QWEN3_TEMPLATE.replace(
    "{% for message in messages %}",
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}",
)
_GEMMA_TEMPLATE: Final = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained tokenizer: the pipeline, its special tokens by role (``pad_token`` …) and files to write beside it."""

    pipeline: Tokenizer
    specials: Mapping[str, str]
    type_ids: bool = False
    template: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def id_of(self, role: str) -> int | None:
        """Return the id of the special token with that role, None where the family has none."""
        return self.pipeline.token_to_id(self.specials[role]) if role in self.specials else None

    def save(self, folder: Path, longest: int) -> None:
        """Write the tokenizer's files; ``longest`` is the number of tokens the model takes, specials included."""
        self.pipeline.save(str(folder / "tokenizer.json"))
        config: dict[str, Any] = {
            **self.specials,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", *(["token_type_ids"] if self.type_ids else []), "attention_mask"],
            "model_max_length": longest,
            "padding_side": "right",
            # transformers 4 and 5 both know this name; it takes tokenizer.json as it stands.
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        if self.template is not None:
            config["chat_template"] = self.template
        for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", self.specials)):
            (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for name, serialized in self.files.items():
            (folder / name).write_bytes(serialized)


def train_tokenizer(kind: str, texts: Sequence[str] | None = None) -> Trained:
    """Train the tokenizer of a ``Shape.tokenizer`` kind on ``texts``, by default the sample that ships."""
    return _KINDS[kind](sample_texts() if texts is None else texts)


def train_sentencepiece(texts: Sequence[str]) -> bytes:
    """Return the serialized unigram model, with DeBERTa-v3's ids: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="unigram",
        normalization_rule_name="nmt_nfkc",
        vocab_size=_MOST_PIECES,
        hard_vocab_limit=False,
        character_coverage=1.0,
        max_sentence_length=1 << 20,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
        num_threads=1,  # threads add floats in an order of their own, which would decide the last bits of a score
        minloglevel=2,
    )
    return model.getvalue()


def _deberta(texts: Sequence[str]) -> Trained:
    """Build the pipeline that transformers' DebertaV2Converter builds; [MASK] comes last, outside the unigram model."""
    serialized = train_sentencepiece(texts)
    proto = sentencepiece_model_pb2.ModelProto.FromString(serialized)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    pipeline = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    collapse = normalizers.Replace(Regex(" {2,}"), " ")
    charsmap = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    pipeline.normalizer = normalizers.Sequence([normalizers.Strip(), charsmap, collapse])
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace("▁", prepend_scheme="always")])
    pipeline.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    _add_specials(pipeline, ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])
    pipeline.post_processor = _bert_template(pipeline)
    specials = {"bos_token": "[CLS]", "eos_token": "[SEP]", **_BERT_SPECIALS}
    return Trained(pipeline, specials, type_ids=True, files={"spm.model": serialized})


def _wordpiece(texts: Sequence[str]) -> Trained:
    """Build BERT uncased; ids [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4: the public order."""
    learner = Tokenizer(models.WordPiece())
    learner.normalizer = normalizers.BertNormalizer(lowercase=True)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # The trainer numbers continuation letters in the order of a randomly seeded hash table and breaks ties by number:
    # naming all of them beforehand makes the vocabulary the same on every run.
    letters = sorted({letter for text in texts for letter in "".join(learner.normalizer.normalize_str(text).split())})
    trainer = trainers.WordPieceTrainer(
        vocab_size=_MOST_PIECES,
        min_frequency=2,
        special_tokens=[*specials, *letters, *(f"##{letter}" for letter in letters)],
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    # A fresh pipeline: training has made every letter a special token of its own.
    pipeline = Tokenizer(models.WordPiece(learner.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106
    pipeline.normalizer = learner.normalizer
    pipeline.pre_tokenizer = learner.pre_tokenizer
    pipeline.decoder = decoders.WordPiece()
    _add_specials(pipeline, specials)
    pipeline.post_processor = _bert_template(pipeline)
    return Trained(pipeline, _BERT_SPECIALS, type_ids=True)


def _roberta(texts: Sequence[str]) -> Trained:
    """Build RoBERTa's byte-level BPE; ids <s> 0, <pad> 1, </s> 2, <unk> 3, <mask> last."""
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline = _byte_level(texts, cut, first=["<s>", "<pad>", "</s>", "<unk>"])
    # As published: the mask takes the space before it.
    pipeline.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    pipeline.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return Trained(pipeline, _ROBERTA_SPECIALS)


def _llama(texts: Sequence[str]) -> Trained:
    """Build Llama 3's: control tokens after the vocabulary, <|begin_of_text|> before every text."""
    specials = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "pad_token": "<|finetune_right_pad_id|>",
    }
    pipeline = _byte_level(texts, _split(_LLAMA_SPLIT))
    controls = ["<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>"]
    _add_specials(pipeline, [*controls, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])
    pipeline.post_processor = _start_with(pipeline, "<|begin_of_text|>")
    return Trained(pipeline, specials, template=_LLAMA_TEMPLATE)


def _qwen(texts: Sequence[str], template: str) -> Trained:
    """Build Qwen's: control tokens after the vocabulary, no token before a text, <|endoftext|> for padding."""
    pipeline = _byte_level(texts, _split(_QWEN_SPLIT))
    pipeline.normalizer = normalizers.NFC()
    _add_specials(pipeline, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return Trained(pipeline, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, template=template)


def _qwen2(texts: Sequence[str]) -> Trained:
    return _qwen(texts, _QWEN2_TEMPLATE)


def _qwen3(texts: Sequence[str]) -> Trained:
    return _qwen(texts, _QWEN3_TEMPLATE)


def _gemma2(texts: Sequence[str]) -> Trained:
    """Build Gemma's ids (<pad> 0, <eos> 1, <bos> 2, <unk> 3) over byte-level BPE, <bos> before every text."""
    specials = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    pipeline = _byte_level(texts, _split(_LLAMA_SPLIT), first=first)
    pipeline.post_processor = _start_with(pipeline, "<bos>")
    return Trained(pipeline, specials, template=_GEMMA_TEMPLATE)


_KINDS: Final[Mapping[str, Callable[[Sequence[str]], Trained]]] = {
    "deberta": _deberta,
    "wordpiece": _wordpiece,
    "roberta": _roberta,
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
}


def _split(pattern: str) -> pre_tokenizers.Sequence:
    cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_level(texts: Sequence[str], cut: pre_tokenizers.PreTokenizer, first: Sequence[str] = ()) -> Tokenizer:
    """Train byte-level BPE; ``first`` are the special tokens that take the lowest ids."""
    pipeline = Tokenizer(models.BPE())
    pipeline.pre_tokenizer = cut
    pipeline.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_MOST_PIECES,
        min_frequency=2,
        special_tokens=_special(first),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pipeline.train_from_iterator(texts, trainer)
    return pipeline


def _special(tokens: Sequence[str]) -> list[AddedToken]:
    return [AddedToken(token, normalized=False, special=True) for token in tokens]


def _add_specials(pipeline: Tokenizer, tokens: Sequence[str]) -> None:
    pipeline.add_special_tokens(_special(tokens))


def _bert_template(pipeline: Tokenizer) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, pipeline.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )


def _start_with(pipeline: Tokenizer, token: str) -> processors.Sequence:
    begin = processors.TemplateProcessing(
        single=f"{token}:0 $A:0",
        pair=f"{token}:0 $A:0 {token}:1 $B:1",
        special_tokens=[(token, pipeline.token_to_id(token))],
    )
    return processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
