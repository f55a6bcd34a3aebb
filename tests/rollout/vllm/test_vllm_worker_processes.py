"""vLLM over two worker processes of its own, below a child process: tensor parallelism without ranks."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.builders import VOCAB_SIZE, random_policy
from tests.commands import command_line
from tests.rollout.contract import SAMPLING, EngineContract, requests

from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, EngineDied
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.weight_sync import WeightSync

ROOT = Path(__file__).resolve().parents[3]
TRAINER = """
import sys
from functools import partial
from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from tests.builders import random_policy
options = VLLMOptions(64, dtype="float32", kv_cache_bytes=1 << 26, tensor_parallel_size=2)
engine = ChildEngine(sys.argv[1], partial(VLLMLocalEngine, options=options), cpu_threads=1)
engine.load_weights(random_policy(), 0)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def engine(folder, options):
    kind = partial(VLLMLocalEngine, options=replace(options, tensor_parallel_size=2))
    made = ChildEngine(folder, kind, cpu_threads=1)
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


def workers(pid):
    """vLLM's worker processes below a process."""
    below = psutil.Process(pid).children(recursive=True)
    return [process for process in below if "spawn_main" in command_line(process)]


def wait_for_the_end(processes, seconds=20):
    give_up = time.monotonic() + seconds
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.monotonic() < give_up
        time.sleep(0.1)


class TestTwoWorkerProcesses(EngineContract):
    """Everything is inherited."""


def test_the_death_of_a_worker_is_the_engines_and_its_successor_samples_the_same(engine):
    before = engine.generate(requests(10), SAMPLING)
    both = workers(engine.pid)
    assert len(both) == 2
    both[1].kill()
    with pytest.raises(EngineDied, match="a worker process of vLLM ended"):
        for _ in range(1000):
            engine.generate(requests(60, limit=40), SAMPLING)
    assert engine.version == UNSYNCED_VERSION
    wait_for_the_end(both)
    engine.restart()
    WeightSync(tolerance=1e-3, probe_tokens=40).push(random_policy(), engine, 3, VOCAB_SIZE)
    assert engine.generate(requests(10), SAMPLING) == before


@pytest.mark.drill
def test_workers_do_not_outlive_a_killed_trainer(folder):
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    options["env"] = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, folder], **options)
    assert trainer.stdout is not None and trainer.stdout.readline() == "ready\n"
    below = psutil.Process(trainer.pid).children(recursive=True)
    assert len(below) >= 3
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    wait_for_the_end(below)
