"""Sample rows that ship with the package."""

from __future__ import annotations

import json
from pathlib import Path


def sample_path() -> Path:
    """Return the path of the 60 preference dialogues in hh-rlhf's format that ship with the package."""
    return Path(__file__).with_name("sample.jsonl")


def sample_texts() -> list[str]:
    """Return every dialogue of the sample, chosen and rejected in turn, as raw text."""
    with sample_path().open(encoding="utf-8") as lines:
        return [row[side] for row in map(json.loads, lines) for side in ("chosen", "rejected")]
