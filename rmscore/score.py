"""encode → plan → backend → Scores: the one path that every row takes, from Python, the command line and the suite."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rmscore.backends import BUILT_IN, Settings, find, load_backend
from rmscore.backends.architectures import PACKED
from rmscore.checkpoint import RewardModel, content_hash, open_checkpoint
from rmscore.encode import Encoder, encode, load_encoder
from rmscore.environment import affinity_cores, environment
from rmscore.errors import BackendError, RowError, SettingError, nearest
from rmscore.plan import Batching, group_size, padded_tokens, parse_batching, plan_for
from rmscore.rows import read_rows
from rmscore.tuned import Choice, find_plan
from rmscore.types import Backend, Batch, Encoded, Row, Scores

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

ACTIVATIONS: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "none": lambda scores: scores,
    "sigmoid": lambda scores: (1 / (1 + np.exp(-scores.astype(np.float64)))).astype(np.float32),
}
"""What may be applied to the raw logits on request."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Some consecutive rows with their ids and scores: ``values`` float32 [rows] or [rows, objectives]."""

    rows: Sequence[Row]
    encoded: Sequence[Encoded]
    values: NDArray[np.float32]


@dataclass(slots=True)
class Counts:
    """What happened to the rows so far."""

    rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0
    control_token_rows: int = 0

    def add(self, encoded: Sequence[Encoded], padding: int) -> None:
        """Count one group."""
        self.rows += len(encoded)
        self.tokens += sum(len(row.ids) for row in encoded)
        self.padded_tokens += padding
        self.truncated_rows += sum(row.cut > 0 for row in encoded)
        self.truncated_tokens += sum(row.cut for row in encoded)
        self.control_token_rows += sum(row.controls > 0 for row in encoded)


@dataclass(slots=True)
class Scorer:
    """A loaded reward model. Use :func:`rmscore.load` to make one, and ``with`` or :meth:`close` to free it."""

    model: RewardModel
    encoder: Encoder
    backend: Backend
    settings: Settings
    name: str
    batching: Batching
    activation: str = "none"
    chosen_because: str = ""
    counts: Counts = field(default_factory=Counts)

    def score(self, rows: Iterable[Row | Mapping[str, Any] | str]) -> Scores:
        """Score rows and return float32 values in their order; the forms of a row are those of ``rmscore.rows``.

        Raises RowError for a row that cannot be read or encoded, BackendError when the engine fails or gives NaN.
        """
        groups = list(self.stream(as_rows(rows)))
        ids = [row.id for group in groups for row in group.rows]
        shape = (0,) if self.model.objectives == 1 else (0, self.model.objectives)
        values = np.concatenate([group.values for group in groups]) if groups else np.zeros(shape, np.float32)
        return Scores(ids, values, self.record())

    def stream(self, rows: Iterable[Row]) -> Iterator[Group]:
        """Score rows group by group, in order, holding one group in memory."""
        rows = iter(rows)
        while taken := list(itertools.islice(rows, group_size(self.batching))):
            encoded = encode(self.encoder, taken)
            lengths = [len(row.ids) for row in encoded]
            batches = plan_for(self.backend, encoded, self.batching)
            values = self._values(taken, encoded, batches)
            self.counts.add(encoded, padded_tokens(lengths, batches) if self.backend.padded else 0)
            yield Group(taken, encoded, values)

    def _values(self, rows: Sequence[Row], encoded: Sequence[Encoded], batches: list[list[int]]) -> NDArray[np.float32]:
        out = np.full((len(rows), self.model.objectives), np.nan, np.float32)
        for indices in batches:
            scores = self.backend.score(Batch([encoded[index] for index in indices], self.model.pad_id))
            out[indices] = np.asarray(scores, np.float32).reshape(len(indices), -1)
        check_finite(rows, out)
        out = ACTIVATIONS[self.activation](out)
        return out[:, 0] if self.model.objectives == 1 else out

    def decides(self) -> dict[str, Any]:
        """Return what decides a score, JSON-ready: two runs that agree in this give the same scores."""
        return {
            "model_hash": content_hash(self.model),
            "architecture": self.model.architecture,
            "head": list(self.model.head),
            "pooling": "last token" if self.model.causal else "first token",
            "chat_template": self.encoder.render is not None,
            "max_tokens": self.encoder.max_tokens,
            "truncation": self.encoder.truncation,
            "activation": self.activation,
            "backend": self.name,
            "device": self.settings.device,
            "precision": self.settings.precision,
        }

    def record(self) -> dict[str, Any]:
        """Return :meth:`decides` and what was read back and counted: effective precision, truncation, padding, versions."""
        return {
            **self.decides(),
            **getattr(self.backend, "record", {}),
            "batching": str(self.batching),
            **asdict(self.counts),
            "versions": environment()["versions"],
        }

    def close(self) -> None:
        """Free the engine."""
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load(
    model: str | os.PathLike[str],
    *,
    backend: str = "auto",
    device: str = "cpu",
    precision: str | None = None,
    batching: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
    truncation: str | None = None,
    activation: str = "none",
    allow_missing_specials: bool = False,
) -> Scorer:
    """Load a reward model: a checkpoint folder or a hub id.

    ``backend`` ``auto`` takes the plan that ``rmscore tune`` made for this checkpoint, device, number of threads and
    machine, with its precision and batching where these are not given. Without one it takes, on a CPU, ``packed`` where
    that has the architecture, else ``onnxruntime`` where that is installed and has the precision, else ``eager``; on a
    GPU ``eager``. The choice and its reason are in ``chosen_because``.

    ``precision`` defaults to ``fp32`` without a plan. ``batching`` then defaults to ``tokens:1024`` for ``packed`` on a
    CPU, to ``one`` for other backends there, where padding costs more than it brings, and to ``bucketed:8`` on a GPU.
    ``threads`` defaults to the cores this process may use. ``max_length`` lowers the model's own limit in tokens.
    Scores are raw logits unless ``activation`` is ``sigmoid``.

    Raises CheckpointError, SettingError, UnknownBackend, EngineMissing or BackendError, each saying what to do.
    """
    if activation not in ACTIVATIONS:
        raise SettingError(f"unknown activation {activation!r} {nearest(activation, ACTIVATIONS)}")
    if threads is not None and threads < 1:
        raise SettingError(f"threads {threads}: give at least 1")
    policy = parse_batching(batching) if batching is not None else None
    checkpoint = open_checkpoint(model)
    threads = threads or affinity_cores()
    choices = (
        _choices(checkpoint, device, precision, threads)
        if backend == "auto"
        else [Choice(backend, precision or "fp32", _usual_batching(backend, device), "asked for")]
    )
    find(choices[0].backend, Settings(device, choices[0].precision, threads))
    encoder = load_encoder(
        checkpoint, max_tokens=max_length, truncation=truncation, allow_missing_specials=allow_missing_specials
    )
    choice, engine = _load_first(choices, checkpoint, device, threads)
    settings = Settings(device, choice.precision, threads)
    policy = policy or parse_batching(choice.batching)
    return Scorer(checkpoint, encoder, engine, settings, choice.backend, policy, activation, choice.because)


def as_rows(rows: Iterable[Row | Mapping[str, Any] | str]) -> Iterator[Row]:
    """Pass Row objects through and read everything else with :func:`rmscore.rows.read_rows`."""
    if isinstance(rows, str | bytes | Mapping):
        raise RowError(
            f"rows: a list of rows is needed, not one {type(rows).__name__}; to score a file use read_rows(path)"
        )
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return iter(())
    every: Iterator[Any] = itertools.chain([first], rows)
    return every if isinstance(first, Row) else read_rows(every)


def check_finite(rows: Sequence[Row], values: NDArray[np.float32]) -> None:
    """Raise BackendError naming the first row whose score is NaN or infinite."""
    if not len(values):
        return
    bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
    if len(bad):
        raise BackendError(
            f"{rows[bad[0]].where}: the engine gave {values[bad[0]].tolist()}, which is no score "
            f"({len(bad)} of {len(rows)} rows); check the weights for NaN, or try --precision fp32"
        )


def _usual_batching(backend: str, device: str) -> str:
    if device != "cpu":
        return "bucketed:8"
    return "tokens:1024" if backend == "packed" else "one"


def _choices(model: RewardModel, device: str, precision: str | None, threads: int) -> list[Choice]:
    """Return what ``auto`` tries: the tuned plan's choice, or those of the rule of thumb, the first that loads."""
    plan, why_not = find_plan(model, device, threads)
    tuned = plan.choice(precision) if plan else None
    if tuned and not _unusable(tuned, device):
        return [tuned]
    if plan:
        why_not = _unusable(tuned, device) if tuned else f"the plan of {plan.date} has nothing in {precision}"
    return _rule_of_thumb(model.architecture, device, precision or "fp32", why_not or "rmscore tune measures it")


def _unusable(choice: Choice, device: str) -> str:
    """Return why a plan's backend cannot be had, such as one of a package that is gone; else nothing."""
    try:
        find(choice.backend, Settings(device, choice.precision))
    except (BackendError, SettingError) as error:
        return f"the tuned plan is not used: {error}"
    return ""


def _rule_of_thumb(architecture: str, device: str, precision: str, remark: str) -> list[Choice]:
    names = ["packed", "onnxruntime", "eager"] if device == "cpu" else ["eager"]
    if architecture not in PACKED and "packed" in names:
        names.remove("packed")
        remark = f"packed has no {architecture}; {remark}"
    able = [n for n in names if precision in BUILT_IN[n].precisions.get(device, ()) and not BUILT_IN[n].missing()]
    why = f"the rule of thumb on {device} in {precision}; {remark}"
    return [Choice(name, precision, _usual_batching(name, device), why) for name in able or ["eager"]]


def _load_first(choices: Sequence[Choice], model: RewardModel, device: str, threads: int) -> tuple[Choice, Backend]:
    """Load the first of the choices that does not refuse the checkpoint; the reason then names those that did."""
    first, *rest = choices
    try:
        return first, load_backend(first.backend, model, Settings(device, first.precision, threads))
    except BackendError as error:
        if not rest:
            raise
        because = f"{rest[0].because}; {first.backend} refused: {error}"
    return _load_first([replace(rest[0], because=because), *rest[1:]], model, device, threads)
