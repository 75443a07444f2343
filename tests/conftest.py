"""Tiny models, made once a session, a cache of the session's own, and what needs an engine left out where there is none."""

import functools
import importlib.util

import pytest

from rmscore.rows import read_rows

NEEDS = {
    "correctness/test_compare.py": ("scipy",),
    "correctness/test_environment.py": ("scipy",),
    "correctness/test_report.py": ("scipy", "rich"),
    "correctness/test_make_model.py": ("torch", "transformers", "safetensors", "sentencepiece"),
}
"""Test modules that cannot even be imported without these; the others skip by themselves."""

collect_ignore = [
    path for path, modules in NEEDS.items() if not all(importlib.util.find_spec(module) for module in modules)
]


def pytest_report_header():
    return f"left out for want of an engine: {', '.join(collect_ignore)}" if collect_ignore else None


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RMSCORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        # a measurement that a test starts is no part of the parallel run that the test may be in
        patch.delenv("PYTEST_XDIST_WORKER", raising=False)
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return a function from a shape's name to the folder of its tiny model; nobody may change the folder."""
    pytest.importorskip("torch")
    pytest.importorskip("sentencepiece")
    from rmscore.make_model import make_model

    @functools.cache
    def build(shape):
        folder = tmp_path_factory.mktemp("models") / shape
        make_model(shape, folder, tiny=True)
        return folder

    return build


@pytest.fixture(scope="session")
def rows():
    """Rows of many lengths: empty, short, with marks and emoji, and longer than an encoder takes."""
    texts = ["", "Yes.", "Ça va très bien — merci! 🙂", "word " * 40, "It rained. " * 9, "far too long " * 300]
    return list(read_rows([{"prompt": f"What do you say to {n}?", "response": text} for n, text in enumerate(texts)]))
