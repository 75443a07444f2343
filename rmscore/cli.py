"""The command line: each command reads its options, calls the library, prints, and sets the exit code."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
except ImportError as missing:
    sys.stderr.write(f"error: the command line needs {missing.name}: pip install 'rmscore[cli]'\n")
    sys.exit(2)

from rmscore.errors import RmscoreError, SettingError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

ModelOption = Annotated[str, typer.Option("--model", help="Checkpoint folder or hub id.", metavar="DIR")]
DeviceOption = Annotated[str, typer.Option(help="cpu or cuda.")]
PrecisionOption = Annotated[str, typer.Option(help="fp32, tf32, bf16 or fp16.")]
ThreadsOption = Annotated[int | None, typer.Option(help="Threads (default: the cores this process may use).")]
MaxLengthOption = Annotated[int | None, typer.Option(help="Cut rows to this many tokens (default: the model's limit).")]
TruncationOption = Annotated[str | None, typer.Option(help="Side to cut: left or right (default: the tokenizer's).")]
MissingSpecialsOption = Annotated[bool, typer.Option(help="Score with a tokenizer that adds no special tokens.")]


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2, Ctrl-C is 130."""
    try:
        app(standalone_mode=True)
    except RmscoreError as error:
        _say(f"error: {error}")
        _let_go_of_stdout()
        sys.exit(2)
    except KeyboardInterrupt:
        _say("stopped")
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has had enough
        _let_go_of_stdout()
        sys.exit(0)


def _let_go_of_stdout() -> None:
    """Flush what can be; what cannot (a full disk, a closed pipe) must not be tried again by the interpreter's exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@app.command("make-model")
def make_model_command(
    shape: Annotated[str, typer.Argument(help="Public shape, such as deberta-v3-large.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the checkpoint.")],
    tiny: Annotated[bool, typer.Option(help="2 layers, hidden 64.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
) -> None:
    """Build a reward model of a public shape with seeded random weights: config, safetensors, tokenizer."""
    from rmscore.shapes import find_shape

    find_shape(shape)
    from rmscore.make_model import make_model

    make_model(shape, folder, tiny=tiny, seed=seed)
    _say(f"{folder}: {shape}{' (tiny)' if tiny else ''}, random weights, seed {seed}")


@app.command()
def score(
    rows: Annotated[
        str, typer.Argument(metavar="ROWS", help="jsonl(.gz), csv(.gz), parquet, or - for jsonl on stdin.")
    ],
    model: ModelOption,
    backend: Annotated[str, typer.Option(help="See `rmscore backends`; auto picks one and says why.")] = "auto",
    device: DeviceOption = "cpu",
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, int8, … (default: tuned, else fp32).")] = None,
    batching: Annotated[str | None, typer.Option(help="one, naive:N, bucketed:N or tokens:B.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="jsonl to write (default: stdout).")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with a half-written output.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Start again over an existing output.")] = False,
    carry: Annotated[str, typer.Option(help="Fields to copy to the output: a,b or *.")] = "",
    limit: Annotated[int | None, typer.Option(help="Read only the first N rows of the source.")] = None,
    max_length: MaxLengthOption = None,
    truncation: TruncationOption = None,
    activation: Annotated[str, typer.Option(help="none (raw logits) or sigmoid.")] = "none",
    threads: ThreadsOption = None,
    allow_missing_specials: MissingSpecialsOption = False,
) -> None:
    """Score rows: one JSON object a row, in input order."""
    from rmscore.output import OutputWriter, StreamWriter, check_carry
    from rmscore.preference import PreferenceTally
    from rmscore.progress import count_lines, counting
    from rmscore.rows import read_rows
    from rmscore.score import load
    from rmscore.score_file import score_file

    if output is None and (resume or overwrite):
        raise SettingError("--resume and --overwrite need an output file: name it with -o OUT.jsonl")
    check_carry(_list(carry))
    source = read_rows(rows, carry=_list(carry), limit=limit)
    first = next(source, None)  # a source that cannot be read is told before a model is loaded
    total = limit if limit is not None else count_lines(rows)
    if total is not None and first is not None and first.side:
        total *= 2
    scorer = load(
        model, backend=backend, device=device, precision=precision, batching=batching, threads=threads,
        max_length=max_length, truncation=truncation, activation=activation, allow_missing_specials=allow_missing_specials,
    )  # fmt: skip
    with scorer:
        _say(
            f"{model}: backend {scorer.name} ({scorer.chosen_because}), {device} {scorer.settings.precision}, "
            f"batching {scorer.batching}"
        )
        writer = (
            StreamWriter(sys.stdout)
            if output is None
            else OutputWriter(output, scorer.decides(), resume=resume, overwrite=overwrite)
        )
        if isinstance(writer, OutputWriter) and not writer.settings_checked:
            _say(
                f"{output}: nothing beside it says how its rows were scored; make sure that it was with these settings"
            )
        tally = PreferenceTally() if scorer.model.objectives == 1 else None
        every = itertools.chain([first], source) if first is not None else iter(())
        with counting("scoring", total) as tick:
            try:
                finished = score_file(scorer, every, writer, tally=tally, tick=tick, say=_say)
            except KeyboardInterrupt:
                _say("stopped at once" + (f"; {output}.part can be gone on with by --resume" if output else ""))
                sys.exit(130)
    from rmscore.summary import summary

    for line in summary(scorer.counts, finished, tally.finish() if tally else None, output, resume=resume):
        _say(line)
    if finished.stopped:
        sys.exit(130)


@app.command()
def verify(
    model: ModelOption,
    rows: Annotated[str, typer.Option("--rows", help="Rows to score: jsonl(.gz), csv(.gz), parquet, -.")],
    backends: Annotated[str, typer.Option(help="a,b (default: all that are installed).")] = "",
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "fp32",
    limit: Annotated[int | None, typer.Option(help="Read only the first N rows of the source.")] = None,
    max_length: MaxLengthOption = None,
    truncation: TruncationOption = None,
    threads: ThreadsOption = None,
    allow_missing_specials: MissingSpecialsOption = False,
) -> None:
    """Run every backend against the reference: agreement, ranking, tokenizer parity, invariances. Exit 1 on a failure."""
    from rmscore.backends import Settings
    from rmscore.environment import affinity_cores
    from rmscore.verify_command import verify_all

    settings = Settings(device, precision, threads or affinity_cores())
    passed = verify_all(
        model, rows, _list(backends), settings, limit=limit, max_length=max_length, truncation=truncation,
        allow_missing_specials=allow_missing_specials, console=Console(),
    )  # fmt: skip
    sys.exit(0 if passed else 1)


@app.command()
def bench(
    model: Annotated[
        str, typer.Option(metavar="DIR", help="Checkpoint folder or hub id (default: a local model).")
    ] = "",
    rows: Annotated[str, typer.Option(help="File of rows to score (default: the sample that ships here).")] = "",
    backends: Annotated[
        str, typer.Option(help="a,b; a@one measures a with that batching alone.")
    ] = "eager,compile,onnxruntime",
    devices: Annotated[str, typer.Option(help="cpu,cuda")] = "cpu",
    precisions: Annotated[str, typer.Option(help="fp32,bf16,…")] = "fp32",
    batching: Annotated[str, typer.Option(help="one,naive:8,bucketed:8,tokens:2048")] = "one",
    launches: Annotated[int, typer.Option(help="Fresh processes per cell.")] = 5,
    passes: Annotated[int, typer.Option(help="Measured passes over the rows in each launch.")] = 1,
    limit: Annotated[int, typer.Option(help="Read only the first N rows of the file (0: all).")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the order within each block of launches.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of every engine (0: the cores this process may use).")] = 0,
    timeout: Annotated[float, typer.Option(help="Stop a launch after this many seconds.")] = 1800.0,
    output: Annotated[Path, typer.Option("-o", "--output", help="pytest-benchmark JSON to write.")] = Path("run.json"),
    overwrite: Annotated[bool, typer.Option(help="Replace an existing output.")] = False,
) -> None:
    """Measure backend × device × precision × batching, each launch in its own process, and compare. Exit 1 on a failure."""
    from rmscore.bench import run
    from rmscore.compare import compare as compare_runs
    from rmscore.data import sample_path
    from rmscore.local_model import LOCAL_SHAPE, local_model
    from rmscore.progress import BenchProgress
    from rmscore.report import terminal
    from rmscore.results import read
    from rmscore.suite import SuiteSettings

    if not model:
        model = str(local_model())
        _say(f"no --model: measuring a {LOCAL_SHAPE} of random weights, whose speed is that of trained ones")
    settings = SuiteSettings(
        model, rows or str(sample_path()), _list(backends), _list(devices), _list(precisions), _list(batching),
        launches, passes, limit, seed, threads, timeout,
    )  # fmt: skip
    with BenchProgress() as progress:
        code = run(settings, output, progress, overwrite=overwrite)
    _say(f"{output}: written; show it again with: rmscore compare {output}")
    Console().print(terminal(compare_runs(read(output))))
    sys.exit(code)


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE.json", help="Saved run; alone, its cells are compared.")],
    candidate: Annotated[
        Path | None, typer.Argument(metavar="CANDIDATE.json", help="Run to hold against BASE.")
    ] = None,
    margin: Annotated[str, typer.Option(help="Difference that does not matter.")] = "5%",
    metric: Annotated[str, typer.Option(help="rows_per_second, p50 or p95.")] = "rows_per_second",
    baseline: Annotated[str | None, typer.Option(help="Cell that all others are held against.")] = None,
    fail_on: Annotated[str, typer.Option(help="Verdicts that exit with 1: slower,unclear,…")] = "",
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the comparison as JSON.")] = None,
    markdown_out: Annotated[Path | None, typer.Option("--markdown", help="Write it as Markdown.")] = None,
) -> None:
    """Compare the cells of one run, or equal cells of two. Exit 0 fine, 1 the gate failed, 2 cannot compare."""
    from rmscore.compare import compare as compare_runs
    from rmscore.gate import failed_gate, parse_margin, parse_verdicts, write_text
    from rmscore.report import markdown, terminal, to_json
    from rmscore.results import read

    words = parse_verdicts(_list(fail_on))
    comparison = compare_runs(
        read(base),
        None if candidate is None else read(candidate),
        margin=parse_margin(margin),
        metric=metric,
        baseline=baseline,
    )
    Console().print(terminal(comparison))
    if json_out:
        write_text(json_out, json.dumps(to_json(comparison), indent=2, allow_nan=False) + "\n")
    if markdown_out:
        write_text(markdown_out, markdown(comparison))
    failing = failed_gate(comparison, words)
    for line in failing:
        _say(f"gate: {line}")
    sys.exit(1 if failing else 0)


@app.command("tune")
def tune_(
    model: ModelOption,
    rows: Annotated[str, typer.Option("--rows", help="File of rows such as you will score.", metavar="ROWS")],
    budget: Annotated[str, typer.Option(help="Time to measure in; every first launch is done.")] = "5m",
    backends: Annotated[str, typer.Option(help="a,b; a@one tries a with that batching alone (default: a few).")] = "",
    precisions: Annotated[str, typer.Option(help="fp32,bf16,int8 (default: fp32; with a bound, lower ones too).")] = "",
    batching: Annotated[str, typer.Option(help="one,bucketed:8,tokens:1024 (default: a few for each backend).")] = "",
    max_flips: Annotated[str | None, typer.Option(help="Share of preference pairs that may flip: 0.5%.")] = None,
    max_delta: Annotated[float | None, typer.Option(min=0.0, help="Largest |score − reference| allowed.")] = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    limit: Annotated[int, typer.Option(min=0, help="Read only the first N rows of the file (0: all).")] = 60,
) -> None:
    """Find the fastest backend, precision and batching within a correctness budget; `score` then uses it by itself."""
    from rmscore.tune import Limits, parse_duration, parse_share
    from rmscore.tune_command import TuneSettings, tune

    settings = TuneSettings(
        model, rows, _list(backends), _list(precisions), _list(batching), device, threads or 0, limit,
        parse_duration(budget), Limits(max_delta, parse_share(max_flips) if max_flips else None),
    )  # fmt: skip
    try:
        tune(settings, say=_say, console=Console())
    except KeyboardInterrupt:  # told already
        sys.exit(130)


@app.command()
def backends() -> None:
    """Show what is installed, what is missing and the pip line for it, devices and precisions each can run here."""
    from rmscore.backends_command import backends_table

    Console().print(backends_table())


if __name__ == "__main__":
    main()
