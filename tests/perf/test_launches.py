"""Backend × device × precision × batching × launch: how fast, and still PyTorch's scores."""

import pytest

from rmscore.plugin import worker_clock

pytest.importorskip("pytest_benchmark")


@pytest.mark.benchmark(timer=worker_clock)
def test_launch(benchmark, rm_launch):
    """A launch of a cell scores all rows in a fresh process and agrees with the reference within the table."""
    target, rewind, rounds = rm_launch.replay()
    benchmark.extra_info["rmscore"] = rm_launch.extra_info
    benchmark.pedantic(target, setup=rewind, rounds=rounds)
    cell, agreed = rm_launch.cell, rm_launch.agreement
    assert agreed.passes(cell.device, cell.precision), f"{cell} differs from the reference: {agreed}"
