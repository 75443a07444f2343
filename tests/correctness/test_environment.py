"""The environment names what decides speed, imports nothing, and differs only where speed may."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rmscore.compare import compare
from rmscore.environment import affinity_cores, differences, environment, settings
from rmscore.results import Run

from .test_compare import EAGER, GRAPH, changed, run

CPUINFO = """processor\t: 0
cpu family\t: 25
model\t\t: 80
model name\t: AMD Ryzen 7 5800H
stepping\t: 0
cpu MHz\t\t: 3193.9

processor\t: 1
model name\t: never read
"""


@pytest.fixture
def machine(tmp_path):
    """Return a root with the files of a small machine: two cores of two threads, one GPU."""
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemTotal:       16252928 kB\nMemFree: 1 kB\n",
        "proc/loadavg": "0.52 0.58 0.59 1/467 1234\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA GeForce RTX 3060\nIRQ: 1\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpufreq/boost": "0\n",
        "sys/fs/cgroup/cpu.max": "200000 100000\n",
    } | {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{i % 2},{i % 2 + 2}" for i in range(4)}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_machine_is_read_from_its_files(machine):
    """Processor, cores, governor, turbo, memory and GPU are those that the system's files name."""
    found = environment(machine)
    expected = {
        "cpu_model": "AMD Ryzen 7 5800H",
        "cpu_family_model_stepping": "25/80/0",
        "cores_physical": 2,
        "governor": "performance",
        "turbo": "off",
        "memory_gib": 16,
        "cpu_quota": "200000 100000",
        "gpus": ["NVIDIA GeForce RTX 3060"],
        "gpu_driver": "570.86.15",
    }
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(("value", "turbo"), [("1", "off"), ("0", "on")])
def test_intel_says_turbo_the_other_way(machine, value, turbo):
    """Intel's driver writes 1 where turbo is off."""
    path = machine / "sys/devices/system/cpu/intel_pstate/no_turbo"
    path.parent.mkdir()
    path.write_text(value)
    assert environment(machine)["turbo"] == turbo


def test_unreadable_machine_gives_none(tmp_path):
    """What cannot be read is None, never an error and never a guess."""
    found = environment(tmp_path)
    assert [found[key] for key in ("cores_physical", "governor", "turbo", "memory_gib", "gpu_driver")] == [None] * 5
    assert found["gpus"] == []


def test_environment_of_this_machine_is_json():
    """The description survives JSON and equals itself."""
    here = environment()
    assert json.loads(json.dumps(here, allow_nan=False)) == here
    assert differences(here, environment()) == []
    assert here["cores_affinity"] == affinity_cores() >= 1
    assert here["versions"]["numpy"] is not None


def test_no_engine_is_imported():
    """Versions come from metadata: asking for them loads no engine."""
    code = (
        "import sys, rmscore.environment as e; before = set(sys.modules); e.environment();"
        "sys.exit(bool(set(e.ENGINES) & (set(sys.modules) - before)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_differences_name_key_and_both_values():
    """Every key that differs is named with both values, nested ones by a dotted key, absent ones as absent."""
    a = {"python": "3.11", "versions": {"torch": "2.11", "numpy": "2.4"}, "turbo": None}
    b = {"python": "3.12", "versions": {"torch": "2.13", "numpy": "2.4"}}
    assert differences(a, b) == [
        "python: '3.11' against '3.12'",
        "turbo: None against absent",
        "versions.torch: '2.11' against '2.13'",
    ]


def test_momentary_values_are_no_difference():
    """Clock speed and load change from minute to minute and make no two machines different."""
    assert differences({"clock_mhz": "2300", "load_1_minute": "0.1"}, {"clock_mhz": "3000", "load_1_minute": "9"}) == []


def test_settings_list_values_where_launches_differ():
    """A setting that all launches share is its value, one that they do not share is the list."""
    launches = [{"threads": 2, "truncated": 0}, {"threads": 4, "truncated": 0}]
    assert settings(launches) == {"threads": [2, 4], "effective_precision": None, "truncated": 0}


def test_different_machines_and_settings_are_told():
    """Environment and settings that differ are carried as lines, and so is an environment nobody recorded."""
    base, candidate = run(**{EAGER: [1, 1.1]}), changed(run("new", **{EAGER: [1, 1.2]}), threads=4)
    assert compare(base, candidate).differences == [
        "environment: not recorded in both files, so the machines may differ",
        f"{EAGER}.threads: 2 against 4",
    ]
    pair = [
        Run(each.path, each.digest, each.measurements, (), {"python": f"3.1{index}", "load_1_minute": index})
        for index, each in enumerate((base, candidate))
    ]
    assert compare(*pair).differences == ["python: '3.10' against '3.11'", f"{EAGER}.threads: 2 against 4"]


def test_cells_of_one_run_with_other_threads_are_told():
    """Cells of one run that used different numbers of threads are told apart."""
    one, other = run(**{EAGER: [1, 1.1]}), changed(run(**{GRAPH: [2, 2.1]}), threads=4)
    both = Run(one.path, one.digest, [*one.measurements, *other.measurements])
    assert compare(both).differences == ["threads: 2, 4 in cells of one run"]
    assert compare(one).differences == []
