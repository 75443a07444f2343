"""What every backend promises, held against every shape: the scores of PyTorch, whatever the order, batch and padding."""

import contextlib
import importlib.util

import numpy as np
import pytest

from rmscore.backends import BUILT_IN, Settings, load_backend
from rmscore.checkpoint import open_checkpoint
from rmscore.encode import encode, load_encoder
from rmscore.shapes import SHAPES
from rmscore.tolerance import MAX_DELTA
from rmscore.types import Batch

pytest.importorskip("torch")

LIMIT = MAX_DELTA["cpu", "fp32"]
ENGINES = [
    pytest.param((name, shape), id=f"{name}-{shape}")
    for name, spec in BUILT_IN.items()
    if all(importlib.util.find_spec(module) for module in spec.modules)
    for shape in SHAPES
]


class Loaded:
    """One engine over one tiny model, with the ids it scores and the judge's scores of them."""

    def __init__(self, name, folder, rows):
        self.model = open_checkpoint(folder)
        self.encoded = encode(load_encoder(self.model), rows)
        judge = load_backend("reference", self.model, Settings(threads=1))
        self.reference = judge.score(Batch(self.encoded))
        judge.close()
        self.engine = load_backend(name, self.model, Settings(threads=1))

    def score(self, indices, extra=0):
        return self.engine.score(Batch([self.encoded[i] for i in indices], self.model.pad_id, extra))


@pytest.fixture(scope="module", params=ENGINES)
def loaded(request, tiny, rows):
    name, shape = request.param
    held = Loaded(name, tiny(shape), rows)
    with _no_quiet_eager() if name == "compile" else contextlib.nullcontext():
        yield held
    held.engine.close()


def _no_quiet_eager():
    """Make it an error that PyTorch runs eagerly what has been compiled too often; left alone it only logs a line."""
    import torch

    return torch._dynamo.config.patch(fail_on_recompile_limit_hit=True)


def test_one_finite_float_per_row(loaded):
    """A batch gives one float32 a row, on the host and finite."""
    scores = loaded.score(range(6))
    assert isinstance(scores, np.ndarray)
    assert scores.dtype == np.float32
    assert scores.reshape(6, -1).shape == (6, 1)
    assert np.isfinite(scores).all()


def test_agrees_with_the_reference(loaded):
    """Every row is within the one tolerance of PyTorch's score for it, the cut row and the empty one included."""
    assert np.abs(loaded.score(range(6)) - loaded.reference).max() <= LIMIT


def test_a_permutation_permutes_scores(loaded):
    """The order of rows in a batch changes the order of scores and nothing else."""
    order = [3, 0, 5, 2, 4, 1]
    assert np.abs(loaded.score(order) - loaded.score(range(6))[order]).max() <= LIMIT


def test_a_batch_equals_its_rows_alone(loaded):
    """A short row beside a long one has the score it has alone."""
    alone = np.concatenate([loaded.score([i]) for i in range(6)])
    assert np.abs(loaded.score(range(6)) - alone).max() <= LIMIT


def test_more_padding_changes_nothing(loaded):
    """Columns of padding that no row needs do not change a score."""
    assert np.abs(loaded.score([1, 3], extra=5) - loaded.score([1, 3])).max() <= LIMIT


def test_padding_on_either_side_changes_nothing(loaded):
    """Arrays that a trainer padded on the left, on the right or on both sides hold the same rows."""
    rows = [loaded.encoded[i] for i in (1, 2)]
    want = loaded.score([1, 2])
    for left, right in ((0, 4), (4, 0), (2, 3)):
        width = max(len(row.ids) for row in rows) + left + right
        ids, mask, types = (np.full((2, width), fill) for fill in (loaded.model.pad_id, 0, 0))
        for row, tokens in enumerate(rows):
            columns = slice(width - right - len(tokens.ids), width - right) if left else slice(0, len(tokens.ids))
            ids[row, columns], mask[row, columns], types[row, columns] = tokens.ids, 1, tokens.type_ids
        batch = Batch.from_padded(ids, mask, token_type_ids=types, pad_id=loaded.model.pad_id)
        assert np.abs(loaded.engine.score(batch) - want).max() <= LIMIT


def test_says_what_it_read_back(loaded):
    """The precision in the record is the engine's own, not the one asked for by name."""
    assert loaded.engine.record["effective_precision"] == "fp32"
