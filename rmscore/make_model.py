"""Checkpoints of public shapes with seeded random weights, for tests and for measurements of speed.

The shape decides the speed of a model, its weights do not; random ones cost no download and are the same everywhere.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rmscore.errors import CheckpointError, EngineMissing, SettingError
from rmscore.shapes import find_shape, settings

try:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from rmscore.train_tokenizer import Trained, train_tokenizer
except ImportError as error:
    raise EngineMissing(f"making a model needs {error.name!r}: pip install 'rmscore[models]'") from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

Shapes = Mapping[str, tuple[int, ...]]

# Standard deviation of biases, and of normalisation weights around their neutral value: with zeros and ones a backend
# that forgets one of them would still give the right score.
_SMALL: Final = 0.05
# Matrices are drawn with this over the root of their inputs. Full sizes: the public initializer_range of 0.02 at 1,024
# inputs; more makes the attention of 24 layers sharp, and scores more sensitive to rounding than those of trained
# models. Two layers of hidden 64 need more for every layer to matter.
_GAIN_TINY: Final = 1.0
_GAIN_FULL: Final = 0.64
# The last layer's own factor in place of it. To an encoder of random weights the first
# token is much alike in all texts, to a decoder the last is not; with these the sample's scores have a standard
# deviation of 0.1 to 0.6: wide enough that lower precisions keep most of the order, narrow enough that float32 rounding
# in 24 layers (2e-6 of the float64 score) stays well under the tolerance of 1e-5.
_HEAD_GAIN: Final = {"classifier.weight": 2.0, "classifier.out_proj.weight": 2.0, "score.weight": 0.5}


def make_model(shape: str, folder: Path, *, tiny: bool = False, seed: int = 0) -> None:
    """Write a reward model of a public shape with random weights to ``folder``, which must be new or empty.

    ``tiny`` builds 2 layers of hidden 64 in a second or two. The same seed gives the same bytes. The folder appears
    complete or not at all. Raises SettingError for an unknown shape or a negative seed, CheckpointError for a folder
    that is in use or cannot be written.
    """
    kind = find_shape(shape)
    if seed < 0:
        raise SettingError(f"seed {seed} is negative: give 0 or more")
    with _new_folder(folder) as unfinished:
        tokenizer = train_tokenizer(kind.tokenizer)
        model = empty_model(shape, tokenizer, tiny=tiny)
        model.config.save_pretrained(unfinished)
        tokenizer.save(unfinished, longest=_longest(model.config))
        neutral = 0.0 if kind.model_type == "gemma2" else 1.0  # Gemma multiplies by 1 + weight
        shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
        gain = _GAIN_TINY if tiny else _GAIN_FULL
        _write_weights(unfinished / "model.safetensors", shapes, seed, neutral, gain)


def empty_model(shape: str, tokenizer: Trained | None = None, *, tiny: bool = False) -> Any:  # noqa: ANN401 - untyped
    """Return transformers' model of a shape on the meta device: every shape and name, no memory.

    A tokenizer gives the configuration its special ids and, to a tiny model, its number of embedding rows.
    """
    tokens = None if tokenizer is None else int(tokenizer.pipeline.get_vocab_size(with_added_tokens=True))
    values = settings(shape, tiny=tiny, tokens=tokens)
    if tokenizer is not None:
        values |= {f"{role}_token_id": tokenizer.id_of(f"{role}_token") for role in ("pad", "bos", "eos")}
    config = AutoConfig.for_model(find_shape(shape).model_type, **values)
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = "float32"
    return model


def _longest(config: Any) -> int:  # noqa: ANN401 - transformers is untyped
    """Return how many tokens the model takes; RoBERTa's positions begin after the pad id."""
    taken = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    return int(config.max_position_embeddings) - taken


def _random_weight(name: str, shape: tuple[int, ...], seed: int, neutral: float, gain: float) -> NDArray[np.float32]:
    """Return the weight of that name; each has a stream of its own, so that none depends on the others."""
    stream = np.random.default_rng([seed, zlib.crc32(name.encode())])
    values = stream.standard_normal(shape, np.float32)
    if len(shape) == 1:
        values *= np.float32(_SMALL)
        values += np.float32(neutral if name.endswith(".weight") else 0.0)  # normalisation or bias
    else:
        values *= np.float32(_HEAD_GAIN.get(name, gain) / math.sqrt(shape[-1]))
    return values


def _write_weights(path: Path, shapes: Shapes, seed: int, neutral: float, gain: float) -> None:
    """Write a safetensors file one tensor at a time: the largest tensor decides the memory, not the model."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in sorted(shapes.items()):
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, shape in sorted(shapes.items()):
            file.write(_random_weight(name, shape, seed, neutral, gain).astype("<f4", copy=False).data)


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside the wanted one that takes its name at the end, or is removed on any error."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise CheckpointError(f"{folder}: exists and is not an empty folder: remove it or choose another name")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            yield unfinished
            unfinished.chmod(0o755)  # mkdtemp's are private
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error.strerror or error}") from error
