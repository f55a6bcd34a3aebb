"""Engines that are killed while a stream samples: one death is one start and one restart."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.commands import run_command

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = {"vllm_server": "vllm", "ray": "ray"}
ENGINES = ["hf_child", *(name for name, package in OPTIONAL.items() if find_spec(package))]


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize("engine", ENGINES)
def test_one_death_is_one_start_and_one_restart(engine):
    drill = ROOT / "bench/kill_engines.py"
    done = run_command(drill, "--kills", 2, "--batches", 40, "--engines", engine, cwd=ROOT, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{engine}: 2 deaths, 2 starts, 2 restarts" in done.stdout
