"""Planning: every row in one batch, budgets kept, arrival order where it is promised."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmscore.errors import SettingError
from rmscore.plan import group_size, padded_tokens, parse_batching, plan, plan_shared

LENGTHS = st.lists(st.integers(1, 600), max_size=60)
POLICIES = st.one_of(
    st.just("one"), st.builds("{}:{}".format, st.sampled_from(["naive", "bucketed", "tokens"]), st.integers(1, 900))
)


@given(LENGTHS, POLICIES, st.booleans())
def test_every_row_is_in_exactly_one_batch(lengths, policy, padded):
    """No row is lost or scored twice, and no batch is empty."""
    batches = plan(lengths, parse_batching(policy), padded=padded)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(batches)


@given(LENGTHS, st.integers(1, 50))
def test_naive_keeps_arrival_order(lengths, size):
    """``naive:N`` takes rows as they come, N at a time, the last batch with what is left."""
    batches = plan(lengths, parse_batching(f"naive:{size}"), padded=True)
    assert [i for batch in batches for i in batch] == list(range(len(lengths)))
    assert all(len(batch) == size for batch in batches[:-1])


@given(LENGTHS, st.integers(1, 50))
def test_bucketed_goes_from_longest_to_shortest(lengths, size):
    """``bucketed:N`` never puts a longer row after a shorter one; equal lengths keep arrival order."""
    order = [i for batch in plan(lengths, parse_batching(f"bucketed:{size}"), padded=True) for i in batch]
    assert order == sorted(order, key=lambda i: (-lengths[i], i))


@given(LENGTHS, st.integers(1, 2000), st.booleans())
def test_a_token_budget_is_kept(lengths, budget, padded):
    """A ``tokens:B`` batch of several rows costs at most B, as the backend counts; a longer row stands alone."""
    for batch in plan(lengths, parse_batching(f"tokens:{budget}"), padded=padded):
        of_batch = [lengths[i] for i in batch]
        cost = len(batch) * max(of_batch) if padded else sum(of_batch)
        assert cost <= budget or len(batch) == 1


@given(LENGTHS, POLICIES)
def test_padding_is_what_a_padded_backend_adds(lengths, policy):
    """The padded-token count is rows times longest row less the real tokens, over all batches."""
    batches = plan(lengths, parse_batching(policy), padded=True)
    area = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    assert padded_tokens(lengths, batches) == area - sum(lengths)


def test_bucketing_pads_less_than_arrival_order():
    """Sorting short and long rows apart saves what naive batching pays."""
    lengths = [10, 500] * 8
    costs = {
        name: padded_tokens(lengths, plan(lengths, parse_batching(name), padded=True))
        for name in ("naive:8", "bucketed:8")
    }
    assert costs == {"naive:8": 8 * 490, "bucketed:8": 0}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("bucket:8", "did you mean 'bucketed:N'"),
        ("naive", "needs a size of at least 1, such as 'naive:8'"),
        ("tokens:0", "needs a size of at least 1, such as 'tokens:4096'"),
        ("naive:-3", "needs a size"),
        ("bucketed:²", "needs a size"),
        ("one:4", "'one' takes no size"),
    ],
)
def test_a_wrong_policy_is_told_what_is_right(text, hint):
    """A batching that cannot be used is answered with the form that can."""
    with pytest.raises(SettingError, match="batching") as caught:
        parse_batching(text)
    assert hint in str(caught.value)


@pytest.mark.parametrize("text", ["one", "naive:8", "bucketed:16", "tokens:4096"])
def test_a_policy_prints_as_it_is_written(text):
    """Reading and printing a policy are inverse, and a group holds at least one batch of it."""
    batching = parse_batching(text)
    assert str(batching) == text
    assert group_size(batching) >= (batching.size if batching.policy in ("naive", "bucketed") else 1)


ALIKE = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=30)


@given(ALIKE, st.integers(1, 40))
def test_shared_beginnings_count_once(rows, budget):
    """Every row is in one batch; the distinct beginnings of a batch are within the budget, or it is a row alone."""
    batches = plan_shared([np.array(row, np.int64) for row in rows], budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    for batch in batches:
        beginnings = {tuple(rows[i][:end]) for i in batch for end in range(1, len(rows[i]) + 1)}
        assert len(beginnings) <= budget or len({tuple(rows[i]) for i in batch}) == 1


def test_completions_of_one_prompt_come_together():
    """Best-of-4 over three prompts, shuffled, with a budget for one prompt and its completions: one batch a prompt."""
    random = np.random.default_rng(0)
    prompts = random.integers(0, 1000, (3, 50))
    rows = [np.concatenate([prompts[i % 3], random.integers(0, 1000, 10)]) for i in range(12)]
    batches = plan_shared(rows, 50 + 4 * 10)
    assert [{i % 3 for i in batch} for batch in batches] == [{i % 3} for i in (batch[0] for batch in batches)]
    assert len(batches) == 3
