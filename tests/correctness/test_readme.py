"""Every example of the README runs as printed, over a tiny model."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("pytest_benchmark")
pytest.importorskip("torch")

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    import shutil

    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(tiny("deberta-v3-xsmall"), folder / "my-model")
    rows = [{"prompt": f"What is {i}?", "response": f"A number: {i}.", "chosen_by": "me"} for i in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def blocks(kind):
    if not README.exists():
        pytest.skip("the README is not beside the installed suite")
    return re.findall(rf"```{kind}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_python_examples_run(folder, monkeypatch):
    """The Python examples run from top to bottom."""
    monkeypatch.chdir(folder)
    examples = blocks("python")
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})


def test_commands_run(folder):
    """The commands run in their order; ``$`` lines of console blocks are what is typed."""
    commands = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ rmscore")]
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[1] == "make-model":
            continue
        small = ["--launches", "2", "--backends", "eager"] if words[1] == "bench" else []
        done = subprocess.run(
            [sys.executable, "-m", "rmscore.cli", *words[1:], *small],
            cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
