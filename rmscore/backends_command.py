"""The table of ``rmscore backends``: what each engine can do on this machine, or the line that installs it."""

from __future__ import annotations

from rich.table import Table

from rmscore.backends import BackendSpec, specs
from rmscore.environment import environment
from rmscore.launch import cuda_works


def backends_table() -> Table:
    """Return one row a backend: installed version or what is missing, and devices with their precisions."""
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("backend", "installed", "runs here"):
        table.add_column(title, overflow="fold")
    gpu = cuda_works()
    versions = environment()["versions"]
    for spec in specs().values():
        if spec.missing():
            table.add_row(spec.name, "no", spec.pip or f"needs {', '.join(spec.missing())}")
        else:
            table.add_row(spec.name, _version(spec, versions), _abilities(spec, gpu=gpu))
    return table


def _version(spec: BackendSpec, versions: dict[str, str | None]) -> str:
    engine = next((name for name in reversed(spec.modules) if versions.get(name)), None)
    if "torch" in spec.modules and spec.modules[-1] == "transformers":
        engine = "torch"
    return f"{engine} {versions[engine]}" if engine else "yes"


def _abilities(spec: BackendSpec, *, gpu: bool) -> str:
    parts = [
        f"{device}: {', '.join(precisions)}" for device, precisions in spec.precisions.items() if device == "cpu" or gpu
    ]
    absent = "cuda" in spec.precisions and not gpu
    return "; ".join(parts) + ("; cuda: no GPU here" if absent else "")
