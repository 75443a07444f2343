"""The engines behind one Protocol, each in one file, found by name.

To add one: write a function ``load(model, settings) -> Backend`` (see :class:`rmscore.types.Backend`) and publish a
:class:`BackendSpec` under the entry point group ``rmscore.backends``:

    [project.entry-points."rmscore.backends"]
    mine = "my_package:spec"            # spec = BackendSpec("mine", load=load)

A backend may carry ``record``, a mapping of what it read back from its engine (effective precision, attention, …).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rmscore.errors import BackendError, EngineMissing, SettingError, UnknownBackend, nearest

if TYPE_CHECKING:
    from rmscore.checkpoint import RewardModel
    from rmscore.types import Backend

DEVICES = ("cpu", "cuda")
TORCH_PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16", "fp16")}


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine is to run. ``threads`` 0 means the cores of the affinity mask."""

    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 0


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What is known of a backend before its engine is imported.

    ``load`` is the function or its ``module:name``; ``modules`` must be importable; ``pip`` installs them.
    """

    name: str
    load: str | Callable[[RewardModel, Settings], Backend]
    modules: tuple[str, ...] = ()
    pip: str = ""
    precisions: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"cpu": ("fp32",)})

    def missing(self) -> tuple[str, ...]:
        """Return the modules that are not installed."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)


BUILT_IN = {
    spec.name: spec
    for spec in (
        BackendSpec(
            "reference", "rmscore.backends.reference:load",
            ("torch", "transformers"), "pip install 'rmscore[torch]'", {"cpu": ("fp32",)},
        ),
        BackendSpec(
            "eager", "rmscore.backends.eager:load",
            ("torch", "transformers"), "pip install 'rmscore[torch]'", TORCH_PRECISIONS,
        ),
        BackendSpec(
            "compile", "rmscore.backends.compile:load",
            ("torch", "transformers"), "pip install 'rmscore[torch]'", TORCH_PRECISIONS,
        ),
        BackendSpec(
            "onnxruntime", "rmscore.backends.onnxruntime:load",
            ("torch", "transformers", "onnx", "onnxscript", "onnxruntime"), "pip install 'rmscore[onnxruntime]'",
            {"cpu": ("fp32", "int8"), "cuda": ("fp32", "tf32")},
        ),
        BackendSpec(
            "openvino", "rmscore.backends.openvino:load",
            ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "openvino"), "pip install 'rmscore[openvino]'",
            {"cpu": ("fp32", "bf16")},
        ),
        BackendSpec(
            "packed", "rmscore.backends.packed:load",
            ("torch", "transformers"), "pip install 'rmscore[torch]'", {**TORCH_PRECISIONS, "cpu": ("fp32", "bf16", "int8")},
        ),
    )
}  # fmt: skip


def specs() -> dict[str, BackendSpec]:
    """Return every known backend by name: the built-in ones and those of installed packages."""
    found = dict(BUILT_IN)
    for entry in importlib.metadata.entry_points(group="rmscore.backends"):
        try:
            spec = entry.load()
        except (ImportError, AttributeError) as error:
            raise BackendError(f"backend {entry.name!r} ({entry.value}) cannot be loaded: {error}") from error
        if not isinstance(spec, BackendSpec):
            raise BackendError(f"backend {entry.name!r} ({entry.value}) is no rmscore.backends.BackendSpec")
        found[entry.name] = spec
    return found


def find(name: str, settings: Settings | None = None) -> BackendSpec:
    """Return the spec of a backend that is installed and can run these settings, else raise what is wrong."""
    known = specs()
    if name not in known:
        raise UnknownBackend(f"unknown backend {name!r} {nearest(name, known)}")
    spec = known[name]
    if settings is not None:
        if settings.device not in DEVICES:
            raise SettingError(f"unknown device {settings.device!r} {nearest(settings.device, DEVICES)}")
        if settings.device not in spec.precisions:
            raise SettingError(
                f"backend {name!r} does not run on {settings.device} (it runs on: {', '.join(spec.precisions)})"
            )
        possible = spec.precisions[settings.device]
        if settings.precision not in possible:
            raise SettingError(
                f"backend {name!r} has no precision {settings.precision!r} on {settings.device} "
                f"(choose from: {', '.join(possible)})"
            )
    if spec.missing():
        raise EngineMissing(f"backend {name!r} needs {', '.join(spec.missing())}: {spec.pip}")
    return spec


def load_backend(name: str, model: RewardModel, settings: Settings) -> Backend:
    """Load a checkpoint into an engine. Errors are those of :func:`find` and the engine's own, as BackendError."""
    load = find(name, settings).load
    if isinstance(load, str):
        module, _, function = load.partition(":")
        load = getattr(importlib.import_module(module), function)
    backend: Backend = load(model, settings)
    return backend
