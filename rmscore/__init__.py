"""Scores of reward models, fast and provably the ones PyTorch gives.

>>> import rmscore
>>> with rmscore.load("my-reward-model") as scorer:                                    # doctest: +SKIP
...     scores = scorer.score([{"prompt": "What is 2 + 2?", "response": "4"}])
...     scores.values                                                                   # float32, input order
"""

from rmscore.errors import RmscoreError
from rmscore.rows import read_rows
from rmscore.score import Scorer, load
from rmscore.types import Backend, Batch, Encoded, Row, Scores

__all__ = ["Backend", "Batch", "Encoded", "RmscoreError", "Row", "Scorer", "Scores", "load", "read_rows"]
