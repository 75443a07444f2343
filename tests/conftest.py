"""Tiny models, made once a session, and a cache of the session's own."""

import functools

import pytest

from rmscore.rows import read_rows


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RMSCORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return a function from a shape's name to the folder of its tiny model; nobody may change the folder."""
    make_model = pytest.importorskip("rmscore.make_model", exc_type=Exception).make_model

    @functools.cache
    def build(shape):
        folder = tmp_path_factory.mktemp("models") / shape
        make_model(shape, folder, tiny=True)
        return folder

    return build


@pytest.fixture
def rows():
    """Rows of many lengths: empty, short, with marks and emoji, and longer than an encoder takes."""
    texts = ["", "Yes.", "Ça va très bien — merci! 🙂", "word " * 40, "It rained. " * 9, "far too long " * 300]
    return list(read_rows([{"prompt": f"What do you say to {n}?", "response": text} for n, text in enumerate(texts)]))
