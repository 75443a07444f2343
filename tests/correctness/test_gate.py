"""The gate of ``compare``: what it fails on, and that what vanished is never fine."""

from types import SimpleNamespace

import pytest

from rmscore.errors import SettingError
from rmscore.gate import failed_gate, parse_margin, parse_verdicts


def comparison(verdict="same", gone=(), failures=(), candidate="b.json"):
    pair = SimpleNamespace(base="eager one", candidate="eager one", verdict=verdict)
    other = candidate and SimpleNamespace(path=candidate)
    return SimpleNamespace(pairs=[pair], gone=list(gone), failures=list(failures), candidate=other)


@pytest.mark.parametrize("verdict", ["faster", "slower", "same", "unclear"])
def test_a_gate_fails_on_its_own_words_only(verdict):
    """``--fail-on slower`` fails on slower, and only there."""
    assert bool(failed_gate(comparison(verdict), ("slower",))) == (verdict == "slower")


def test_without_words_there_is_no_gate():
    """Nothing fails where nothing was asked to fail."""
    assert failed_gate(comparison("slower", gone=["x"]), ()) == []


def test_a_vanished_cell_and_a_failed_launch_fail_every_gate():
    """A candidate that no longer measures something does not pass for being no slower."""
    dead = SimpleNamespace(cell="eager one", launch=3, last_words="was killed by SIGKILL")
    lines = failed_gate(comparison(gone=["compile one"], failures=[("candidate", dead), ("base", dead)]), ("slower",))
    assert lines == ["compile one is gone from b.json", "eager one, launch 3, failed: was killed by SIGKILL"]


@pytest.mark.parametrize(("text", "fraction"), [("5%", 0.05), ("0.05", 0.05), ("2.5%", 0.025)])
def test_a_margin_is_a_share(text, fraction):
    """Per cent and fractions are the same."""
    assert parse_margin(text) == pytest.approx(fraction)


def test_wrong_words_say_what_is_right():
    """A margin that is no number and a verdict that is none are told."""
    with pytest.raises(SettingError, match=r"write it as 5% or 0\.05"):
        parse_margin("five")
    with pytest.raises(SettingError, match="did you mean 'slower'"):
        parse_verdicts(("slowest",))
