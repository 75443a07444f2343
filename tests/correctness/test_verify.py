"""The proof itself: it fails on an engine that pads, pools, orders or computes wrongly."""

import numpy as np
import pytest

from rmscore import verify
from rmscore.backends import Settings, load_backend
from rmscore.checkpoint import open_checkpoint
from rmscore.encode import encode, load_encoder
from rmscore.errors import BackendError

pytest.importorskip("torch")


class Wrapped:
    """The eager engine with one fault."""

    padded = True
    record = {"effective_precision": "fp32"}

    def __init__(self, engine, fault):
        self.engine = engine
        self.fault = fault

    def score(self, batch):
        return self.fault(batch, self.engine.score(batch))

    def close(self):
        self.engine.close()


def off_by(delta):
    return lambda batch, scores: scores + np.float32(delta)


FAULTS = {
    "value": off_by(1e-4),
    "scale": lambda batch, scores: scores * np.float32(2),
    "order in the batch": lambda batch, scores: scores[::-1],
    "position in the batch": lambda batch, scores: scores + np.arange(len(scores), dtype=np.float32)[:, None] * 1e-3,
    "batch size": lambda batch, scores: scores + np.float32(1e-3 * (len(scores) > 1)),
    "padding": lambda batch, scores: scores + np.float32(1e-3 * (batch.extra > 0)),
}


@pytest.fixture
def verified(tiny, rows, monkeypatch):
    model = open_checkpoint(tiny("electra-small"))
    encoded = encode(load_encoder(model), rows)
    reference = verify.reference_scores(model, encoded, 1, lambda _: None)

    def run(fault):
        engine = Wrapped(load_backend("eager", model, Settings(threads=1)), fault)
        monkeypatch.setattr(verify, "load_backend", lambda *_: engine)
        return verify.check(model, rows, encoded, reference, "faulty", Settings(threads=1))

    return run


def test_a_right_engine_passes(verified):
    """The eager engine as it is passes every check."""
    assert verified(lambda batch, scores: scores).passes


@pytest.mark.parametrize("fault", FAULTS)
def test_every_kind_of_fault_fails(verified, fault):
    """One fault of each kind, far smaller than scores spread, fails the check."""
    assert not verified(FAULTS[fault]).passes


def test_nan_is_an_error_that_names_its_row(verified):
    """An engine that gives NaN for one row is refused with that row's name."""

    def spoil(batch, scores):
        return np.where(np.arange(len(scores))[:, None] == 1, np.float32("nan"), scores)

    with pytest.raises(BackendError, match=r"row \d: the engine gave \[nan\], which is no score \(1 of 6 rows\)"):
        verified(spoil)
