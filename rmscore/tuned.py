"""The plan file of ``rmscore tune``: what was fastest for one checkpoint on one machine, and whether that still holds.

Plans are small JSON files in the folder ``tuned`` of the cache. One is used only where checkpoint content, device,
threads, processor and versions are those that it was measured with; whatever keeps a plan from use is said, never raised.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmscore.cache import cache_root
from rmscore.checkpoint import content_hash
from rmscore.environment import differences, environment
from rmscore.errors import OutputError, SettingError
from rmscore.plan import parse_batching

if TYPE_CHECKING:
    from rmscore.checkpoint import RewardModel

SCHEMA = "rmscore-tuned/1"
FACTS = ("cpu_model", "cores_affinity", "cpu_quota", "machine", "os")
GPU_FACTS = ("gpus", "gpu_driver")
SHOWN = 2
"""Differences that a reason names; more of them make a long line and no better reason."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to score, and in words why it is taken."""

    backend: str
    precision: str
    batching: str
    because: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What tuning found: one choice a precision, the fastest first.

    ``folder`` and ``weight_bytes`` tell cheaply whether a plan may be a checkpoint's; ``model_hash`` decides. ``facts``
    are those of :func:`facts`; ``measured`` is the whole table, for the record.
    """

    model_hash: str
    folder: str
    weight_bytes: int
    device: str
    threads: int
    facts: Mapping[str, Any]
    date: str
    choices: tuple[Choice, ...]
    measured: Sequence[Mapping[str, Any]] = ()

    def choice(self, precision: str | None) -> Choice | None:
        """Return the fastest choice in a precision, or of all."""
        return next((each for each in self.choices if precision in (None, each.precision)), None)


def facts(device: str) -> dict[str, Any]:
    """Return what decides on this machine which candidate is fastest: processor, cores, versions, for CUDA the GPU."""
    here = environment()
    kept = {name: here[name] for name in (*FACTS, *(GPU_FACTS if device == "cuda" else ()))}
    return kept | {"versions": here["versions"] | {"rmscore": importlib.metadata.version("rmscore")}}


def identity(model: RewardModel) -> tuple[str, int]:
    """Return a checkpoint's folder and the bytes of its weights."""
    return str(model.folder.resolve()), sum(path.stat().st_size for path in model.weights)


def write(plan: Plan) -> Path:
    """Write a plan over the one for the same checkpoint, device, threads and machine; OutputError where it cannot be."""
    folder = cache_root() / "tuned"
    machine = hashlib.sha256(json.dumps(plan.facts, sort_keys=True).encode()).hexdigest()[:8]
    path = folder / f"{plan.model_hash[:16]}-{plan.device}-{plan.threads}-{machine}.json"
    text = json.dumps({"schema": SCHEMA} | asdict(plan), indent=2, ensure_ascii=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, prefix=".draft-", delete=False) as draft:
            draft.write(text)
        Path(draft.name).replace(path)
    except OSError as error:
        raise OutputError(f"{folder}: the plan cannot be written ({error.strerror}); set RMSCORE_CACHE") from error
    return path


def find_plan(model: RewardModel, device: str, threads: int) -> tuple[Plan | None, str]:
    """Return the newest plan that holds here, or None and why the newest of this checkpoint's plans does not.

    The reason is empty where there is no plan at all. The weights are read (for their hash) only where a plan may fit.
    """
    folder, size = identity(model)
    near, broken = [], []
    for path, plan in _plans():
        if plan is None:
            broken.append(path)
        elif plan.folder == folder or plan.weight_bytes == size:
            near.append(plan)
    if not near and not broken:
        return None, ""
    digest, here = content_hash(model), facts(device)
    reasons = [f"the plan {path} cannot be read" for path in broken if path.name.startswith(digest[:16])]
    for plan in sorted(near, key=lambda each: each.date, reverse=True):
        if plan.model_hash != digest and plan.folder != folder:
            continue  # another checkpoint that happens to be as large
        why = _unfit(plan, digest, device, threads, here)
        if not why:
            return plan, ""
        reasons.append(f"the plan of {plan.date} is not used: {why}")
    return None, f"{reasons[0]}; tune again" if reasons else ""


def _unfit(plan: Plan, digest: str, device: str, threads: int, here: Mapping[str, Any]) -> str:
    if plan.model_hash != digest:
        return "the checkpoint has changed since"
    if plan.device != device:
        return f"it is for {plan.device}"
    if plan.threads != threads:
        return f"it is for {plan.threads} threads, not {threads}"
    changed = differences(plan.facts, here)
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return ", ".join(changed[:SHOWN]) + more


def _plans() -> Iterator[tuple[Path, Plan | None]]:
    """Yield every plan in the cache; None for a file that holds no plan."""
    for path in sorted((cache_root() / "tuned").glob("*.json")):
        try:
            yield path, _plan(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, RecursionError, SettingError):
            yield path, None


def _plan(saved: Any) -> Plan:  # noqa: ANN401 - whatever JSON holds
    if not isinstance(saved, dict) or saved.pop("schema") != SCHEMA:
        raise ValueError("another schema")
    plan = Plan(**saved | {"choices": tuple(Choice(**each) for each in saved["choices"])})
    words = [plan.model_hash, plan.folder, plan.device, plan.date]
    for each in plan.choices:
        words += asdict(each).values()
        parse_batching(each.batching)
    if not all(isinstance(word, str) for word in words) or not plan.choices or not isinstance(plan.facts, dict):
        raise TypeError("a field of the wrong type")
    return plan
