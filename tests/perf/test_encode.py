"""Reading, encoding and planning: what ``score`` does outside the backend."""

import pytest

from rmscore.checkpoint import open_checkpoint
from rmscore.data import sample_path
from rmscore.encode import encode, load_encoder
from rmscore.plan import parse_batching, plan
from rmscore.rows import read_rows

pytest.importorskip("pytest_benchmark")
pytest.importorskip("torch")


@pytest.mark.parametrize("shape", ["deberta-v3-large", "electra-large", "llama"])
def test_read_encode_plan(benchmark, tiny, request, shape):
    """Every row of the file is read, encoded and planned; rows per second are the rows over the time of a round."""
    source = request.config.getoption("--rm-rows") or sample_path()
    encoder = load_encoder(open_checkpoint(tiny(shape)))

    def read_encode_plan():
        encoded = encode(encoder, list(read_rows(source)))
        return encoded, plan([len(row.ids) for row in encoded], parse_batching("bucketed:8"), padded=True)

    encoded, batches = benchmark.pedantic(read_encode_plan, rounds=5, warmup_rounds=1)
    benchmark.extra_info["rows"] = len(encoded)
    assert sum(map(len, batches)) == len(encoded) > 0
