"""The table of tolerances: what passes and, above all, what does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmscore.tolerance import agreement

FLOATS = st.floats(-10, 10, width=32)


def test_nan_never_passes():
    """A NaN in the scores fails in every precision, though no comparison with it is true."""
    agreed = agreement([0.0, float("nan"), 1.0], [0.0, 0.5, 1.0], [(0, 1)])
    assert not any(agreed.passes("cpu", precision) for precision in ("fp32", "bf16", "int8"))


@pytest.mark.parametrize(("delta", "passes"), [(0.9e-5, True), (1.1e-5, False)])
def test_fp32_on_a_cpu_is_held_to_1e5(delta, passes):
    """fp32 on a CPU passes up to 1e-5 and no further."""
    assert agreement([delta, 1.0], [0.0, 1.0]).passes("cpu", "fp32") is passes


def test_tf32_is_not_judged_as_fp32():
    """4e-3 on a GPU passes in TF32, not in fp32, and never on a CPU."""
    agreed = agreement([0.004, 1.0], [0.0, 1.0])
    assert [agreed.passes(*kind) for kind in (("cuda", "tf32"), ("cuda", "fp32"), ("cpu", "fp32"))] == [
        True,
        False,
        False,
    ]


def test_same_order_on_another_scale_is_told():
    """Scores that are right in order and wrong in scale fail, and the slope says so."""
    agreed = agreement([0.0, 2.0, 4.0], [0.0, 1.0, 2.0])
    assert (agreed.kendall_tau, agreed.scale) == (1.0, 2.0)
    assert not agreed.passes("cpu", "fp32")
    assert not agreed.passes("cpu", "bf16")


def test_flips_and_ties_are_counted_apart():
    """A pair whose order turns is a flip; a pair that is equal on one side is a tie and no flip."""
    agreed = agreement([1.0, 0.0, 0.0, 1.0, 0.5, 0.5], [0.0, 1.0, 0.0, 1.0, 0.4, 0.5], [(0, 1), (2, 3), (4, 5)])
    assert (agreed.flips, agreed.ties) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_lower_precision_needs_the_ranking():
    """bf16 scores close in value but in another order fail."""
    reference = np.linspace(0, 1, 20)
    assert agreement(reference + 0.001, reference).passes("cpu", "bf16")
    assert not agreement(reference[::-1], reference).passes("cpu", "bf16")


@given(st.lists(FLOATS, min_size=2, max_size=20))
def test_tau_is_scipys(values):
    """Kendall's tau is scipy's tau-b wherever that is defined."""
    stats = pytest.importorskip("scipy.stats")
    other = values[::-1]
    want = stats.kendalltau(values, other).statistic if len(set(values)) > 1 else None
    if want is not None and np.isfinite(want):
        assert agreement(values, other).kendall_tau == pytest.approx(want)


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_equal_scores_agree(values):
    """Scores agree with themselves in every measure."""
    agreed = agreement(values, values)
    assert (agreed.max_abs_delta, agreed.kendall_tau) == (0.0, 1.0)
    assert agreed.passes("cpu", "fp32")
