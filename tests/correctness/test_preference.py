"""Preference accuracy: what is a win, what is none, and that memory stays with the neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmscore.errors import SettingError
from rmscore.preference import Preference, PreferenceTally, same_to_model
from rmscore.rows import read_rows
from rmscore.types import Encoded, Row, Text

NAN = float("nan")


def halves(*pairs, prompt="Is it far?"):
    sides = [{"prompt": prompt, "chosen": chosen, "rejected": rejected} for chosen, rejected in pairs]
    return list(read_rows(sides))


def tally(rows, scores, encoded=(), *, group=None):
    out = PreferenceTally()
    size = group or len(rows)
    for start in range(0, len(rows), size):
        out.add(rows[start : start + size], scores[start : start + size], encoded[start : start + size])
    return out.finish()


def encoded(*ids):
    return Encoded(np.array(ids, np.int64), np.zeros(len(ids), np.int64))


def test_wins_losses_ties_and_nan_are_apart():
    """A higher chosen score wins, an equal one ties, and NaN is neither: it never counts as a loss."""
    rows = halves(*[("a", "b")] * 6)
    counts = tally(rows, [2, 1, 1, 2, 3, 3, NAN, 0, 0, NAN, NAN, NAN])
    assert counts == Preference(wins=1, losses=1, ties=1, not_scored=3)
    assert counts.pairs == 6


@pytest.mark.parametrize(("ties", "accuracy"), [("half", 0.7), ("excluded", 5 / 6)])
def test_ties_count_half_or_not_at_all(ties, accuracy):
    """5 wins, 1 loss and 4 ties are 0.7 with ties at one half and 5/6 without them."""
    assert Preference(wins=5, losses=1, ties=4).accuracy(ties) == pytest.approx(accuracy)
    assert Preference(wins=5, losses=1, ties=4).accuracy() == pytest.approx(0.7)


def test_no_pairs_no_accuracy():
    """Where nothing was compared there is no accuracy, and an unknown rule for ties is named."""
    assert Preference(not_scored=3, identical=2).accuracy() is None
    assert Preference(ties=2).accuracy("excluded") is None
    with pytest.raises(SettingError, match="did you mean 'excluded'"):
        Preference().accuracy("exclude")


def test_pairs_that_are_the_same_to_the_model_are_excluded():
    """Sides that were cut to the same ids are no tie: they are apart and leave the accuracy alone."""
    rows = halves(("a b", "a c"), ("d", "e"))
    counts = tally(rows, [1, 1, 2, 1], [encoded(1, 5, 2), encoded(1, 5, 2), encoded(1, 6, 2), encoded(1, 7, 2)])
    assert counts == Preference(wins=1, identical=1)
    assert counts.accuracy() == 1.0


def test_odd_data_is_counted():
    """Empty responses, unequal prompts and identical sides are counted beside the result."""
    rows = halves(("a", " "), ("same", "same"))
    dialogue = "\n\nHuman: {}\n\nAssistant: {}"
    rows += read_rows([{"id": "x", "chosen": dialogue.format("p", "a"), "rejected": dialogue.format("q", "b")}])
    chat = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}] * 2
    rows += read_rows([{"id": "y", "chosen": chat, "rejected": [*chat[:-1], {"role": "assistant", "content": ""}]}])
    counts = tally(rows, [1, 0, 0, 0, 0, 1, 1, 0])
    assert counts == Preference(wins=2, losses=1, identical=1, identical_sides=1, unequal_prompts=1, empty_responses=2)


def test_other_rows_are_passed_over():
    """A row that is no half of a pair counts for nothing."""
    assert tally([Row(0, Text("a"), "w")], [NAN]) == Preference()


@given(st.integers(1, 7), st.randoms(use_true_random=False))
def test_groups_do_not_matter(size, random):
    """Any grouping, and any order within a group of whole pairs, counts the same."""
    rows = halves(*[("a", "b")] * 10)
    scores = [random.choice([0.0, 1.0, NAN]) for _ in rows]
    whole = tally(rows, scores)
    assert whole.pairs == 10
    assert tally(rows, scores, group=size) == whole
    order = list(range(len(rows)))
    random.shuffle(order)
    assert tally([rows[i] for i in order], [scores[i] for i in order]) == whole


def test_ids_may_repeat():
    """Two pairs of one id are two pairs."""
    rows = [row for _ in range(3) for row in halves(("a", "b"))]
    assert tally(rows, [1, 0] * 3) == Preference(wins=3)


def test_halves_without_partner():
    """A half whose partner does not come in time is counted as such, and is not kept for ever."""
    rows = halves(*[("a", "b")] * 50)[::2]
    out = PreferenceTally()
    for row in rows:
        out.add([row], [1.0])
        assert len(out._before) + len(out._waiting) <= 2
    assert out.finish() == Preference(unpaired=50)
    assert tally([rows[0], rows[0]], [1, 1]) == Preference(unpaired=2)


def test_several_objectives_have_no_winner():
    """Scores of several objectives are refused: which of them is meant is the user's to say."""
    with pytest.raises(SettingError, match="one objective"):
        PreferenceTally().add(halves(("a", "b")), np.zeros((2, 3)))


def test_same_to_model_compares_ids_and_segments():
    """Equal ids in other segments are another input; an unknown encoding is no claim."""
    first = encoded(1, 2)
    assert same_to_model(first, encoded(1, 2))
    assert not same_to_model(first, encoded(1, 2, 0))
    assert not same_to_model(first, Encoded(first.ids, np.array([0, 1])))
    assert not same_to_model(first, None)
