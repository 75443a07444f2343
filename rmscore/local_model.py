"""The model that is measured when the user names none: a public shape with random weights, built once into the cache."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from rmscore.cache import cached

if TYPE_CHECKING:
    from pathlib import Path

LOCAL_SHAPE = "deberta-v3-xsmall"
"""Small enough that five launches of three backends take minutes on two cores."""


def local_model() -> Path:
    """Return the folder of the local model, building it on first use. EngineMissing names what that needs."""
    from rmscore.make_model import make_model

    key = {"shape": LOCAL_SHAPE, "seed": 0, "rmscore": version("rmscore")}
    return cached("model", key, lambda draft: make_model(LOCAL_SHAPE, draft / LOCAL_SHAPE)) / LOCAL_SHAPE
