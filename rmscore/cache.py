"""The cache folder: things derived once from a checkpoint's content, made whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rmscore.errors import OutputError


def cache_root() -> Path:
    """Return ``$RMSCORE_CACHE``, else ``$XDG_CACHE_HOME/rmscore``, else ``~/.cache/rmscore``."""
    named = os.environ.get("RMSCORE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmscore"


def cached(kind: str, key: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
    """Return the folder of ``kind`` for ``key`` (JSON-serialisable); ``make`` fills it where it is not there yet.

    Two processes that make the same entry at once both succeed and one copy stays. Raises OutputError when the cache
    cannot be written.
    """
    text = json.dumps(key, sort_keys=True)
    folder = cache_root() / kind / hashlib.sha256(text.encode()).hexdigest()[:32]
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    except OSError as error:
        raise OutputError(
            f"{folder.parent}: the cache cannot be written ({error.strerror}); set RMSCORE_CACHE"
        ) from error
    try:
        make(draft)
        (draft / "key.json").write_text(text, encoding="utf-8")
        draft.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise OutputError(f"{folder}: the cache cannot be written ({error.strerror}); set RMSCORE_CACHE") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder
