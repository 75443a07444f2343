"""What must match for two results to be comparable: processor, memory, system, Python, engines, GPU."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENGINES = ("numpy", "tokenizers", "torch", "transformers", "onnxruntime", "openvino")
# These change from minute to minute: recorded to explain a figure, never a reason to call two machines different.
MOMENTARY = ("clock_mhz", "load_1_minute")
# Settings beside backend, device, precision and batching that decide what a figure means.
SETTINGS = ("threads", "effective_precision", "truncated")
_ABSENT = "absent"


def environment(root: Path = Path("/")) -> dict[str, Any]:
    """Return the JSON-ready description of this machine and its engines.

    What cannot be read is None. Nothing is imported: versions come from the installed packages' metadata, the GPU's
    name from its driver's files. ``root`` is where ``proc`` and ``sys`` are looked up.
    """
    cpu = _cpuinfo(root)
    system_cpu = root / "sys/devices/system/cpu"
    return {
        "cpu_model": cpu.get("model name") or platform.processor() or platform.machine(),
        "cpu_family_model_stepping": "/".join(cpu.get(key, "?") for key in ("cpu family", "model", "stepping")),
        "cores_physical": _physical_cores(system_cpu),
        "cores_affinity": affinity_cores(),
        "cpu_quota": _read(root / "sys/fs/cgroup/cpu.max"),
        "governor": _read(system_cpu / "cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(system_cpu),
        "memory_gib": _memory_gib(root),
        "os": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: _version(name) for name in ENGINES},
        "gpus": _gpus(root),
        "gpu_driver": _gpu_driver(root),
        "clock_mhz": cpu.get("cpu MHz"),
        "load_1_minute": (_read(root / "proc/loadavg") or "").partition(" ")[0] or None,
    }


def affinity_cores() -> int:
    """Return the number of logical cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return one line ``key: value in a against value in b`` for every key that differs, sorted by key.

    Nested mappings give dotted keys; what changes from minute to minute (clock speed, load) is ignored.
    """
    left, right = _flat(a), _flat(b)
    lines = []
    for key in sorted(left.keys() | right.keys()):
        if key.rpartition(".")[2] in MOMENTARY:
            continue
        values = [repr(side[key]) if key in side else _ABSENT for side in (left, right)]
        if values[0] != values[1]:
            lines.append(f"{key}: {values[0]} against {values[1]}")
    return lines


def settings(launches: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that a cell's launches recorded: a value, or the list of values where launches differ."""
    extras = list(launches)
    used: dict[str, Any] = {}
    for key in SETTINGS:
        values = {repr(extra.get(key)): extra.get(key) for extra in extras}
        used[key] = next(iter(values.values())) if len(values) == 1 else [values[name] for name in sorted(values)]
    return used


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return the fields of the first processor."""
    first = (_read(root / "proc/cpuinfo") or "").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _physical_cores(system_cpu: Path) -> int | None:
    """Return the number of cores, counting the hardware threads of one core once."""
    siblings = {_read(path) for path in system_cpu.glob("cpu[0-9]*/topology/thread_siblings_list")} - {None}
    return len(siblings) or None


def _turbo(system_cpu: Path) -> str | None:
    """Return ``on`` or ``off``; Intel's driver says when it is off, all others when it is on."""
    intel = _read(system_cpu / "intel_pstate/no_turbo")
    if intel is not None:
        return "off" if intel == "1" else "on"
    boost = _read(system_cpu / "cpufreq/boost")
    return None if boost is None else "on" if boost == "1" else "off"


def _memory_gib(root: Path) -> int | None:
    """Return whole GiB: kernels of one machine differ in the last megabytes that they keep for themselves."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo") or "", re.MULTILINE)
    return round(int(found[1]) / 2**20) if found else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus(root: Path) -> list[str]:
    """Return the names of the NVIDIA GPUs whose driver is loaded."""
    texts = (_read(path) or "" for path in sorted(root.glob("proc/driver/nvidia/gpus/*/information")))
    return [found[1].strip() for text in texts if (found := re.search(r"^Model:(.+)$", text, re.MULTILINE))]


def _gpu_driver(root: Path) -> str | None:
    found = re.search(r"Kernel Module\D*([\d.]+)", _read(root / "proc/driver/nvidia/version") or "")
    return found[1] if found else None
