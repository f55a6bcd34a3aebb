"""How the process of an engine begins, reports errors, and ends."""

import os
import signal
import subprocess
import sys
import threading
from functools import partial

import psutil
import pytest
import torch
from tests.builders import random_policy
from tests.commands import Command, command_line, run_command, train
from tests.rollout.child.test_child_engine import weight_files
from tests.rollout.contract import SAMPLING, SomeWeights, requests
from tests.rollout.odd_engines import Complaining, Counting, Exiting, OddEngine, Rereading, Slow, Talkative
from tests.tools.sweeps.pretended import wait_until

from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, EngineDied
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.system.errors import ConfigError, DataError, EngineError
from bapo_lightning.system.phases import phase


@pytest.fixture
def odd():
    """Makes engines that are closed after the test."""
    made = []

    def make(kind, **options):
        made.append(ChildEngine("nowhere", kind, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def children():
    """Command lines of engines' processes below this one."""
    found = [(child.pid, command_line(child)) for child in psutil.Process().children()]
    return [(pid, line) for pid, line in found if "resource_tracker" not in line]


@pytest.mark.slow
def test_errors_of_the_constructor_come_back(folder):
    before = children()
    for path, kind, changes, error, text in [
        (folder, partial(HFEngine, dtype="float99"), {}, EngineError, "AttributeError: .*float99"),
        ("nowhere", HFEngine, {}, DataError, "^model.path=nowhere is not a folder here"),
        ("nowhere", Complaining, {}, ConfigError, "2 problems:\n  1. first\n  2. second"),
        ("nowhere", Exiting, {}, EngineError, "did not start: its process ended with exit code 3"),
        ("nowhere", OddEngine, {"start_seconds": 0.2}, EngineError, "did not answer within 0.2 s"),
    ]:
        with pytest.raises(error, match=text):
            ChildEngine(path, kind, **changes)
    assert children() == before


def test_an_error_that_is_not_ours_keeps_its_name_and_the_child_lives(odd):
    engine = odd(OddEngine)
    engine.load_weights(SomeWeights([]), version=0)
    for _ in range(2):
        with pytest.raises(EngineError, match="KeyError: 'what an engine of ours would not raise'"):
            engine.generate([], SAMPLING)
    engine.sleep()
    assert engine.version == UNSYNCED_VERSION


@pytest.mark.slow
def test_threads_and_cores_are_those_asked_for_and_the_trainers_process_group_is_not_the_childs(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    core = max(os.sched_getaffinity(0))

    def state():
        own = torch.get_num_threads(), torch.get_rng_state().tolist()
        return dict(os.environ), os.sched_getaffinity(0), *own

    before = state()
    with pytest.raises(EngineError, match=rf"^3 threads on \[{core}\], RANK=None$"):
        ChildEngine("nowhere", Talkative, cpu_threads=3, cpu_affinity=[core])
    assert state() == before


@pytest.mark.slow
@pytest.mark.parametrize("part_megabytes", [0, 256])
def test_an_engine_may_read_the_weights_again(odd, part_megabytes):
    engine = odd(Rereading, part_megabytes=part_megabytes)
    engine.load_weights(random_policy(), version=7)
    assert engine.version == 7 and weight_files() == []


@pytest.mark.slow
def test_closing_ends_a_call_of_another_thread_and_is_final(odd):
    engine, caught = odd(Slow), []
    engine.load_weights(SomeWeights([]), version=0)

    def generate():
        try:
            engine.generate([], SAMPLING)
        except EngineError as error:
            caught.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    wait_until(engine._busy.locked)
    engine.close()
    thread.join(10)
    assert not thread.is_alive()
    assert "closed while it was at work" in str(caught[0]) and not isinstance(caught[0], EngineDied)
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        engine.restart()
    assert engine.pid is None


@pytest.mark.slow
def test_an_engine_that_nobody_closed_ends_with_its_object(folder):
    engine = ChildEngine("nowhere", OddEngine)
    pid = engine.pid
    del engine
    wait_until(lambda: not psutil.pid_exists(pid))


TRAINER = """
import os, sys, time
from types import SimpleNamespace
from tests.rollout.odd_engines import Slow
from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.engine import SamplingParams
engine = ChildEngine("nowhere", Slow)
engine.load_weights(SimpleNamespace(named_weights=lambda *_: iter([])), version=0)
if not os.fork():
    time.sleep(60)  # holds copies of the trainer's end of the pipe
print(engine.pid, flush=True)
if sys.argv[1] == "samples":
    engine.generate([], SamplingParams(1.0, ()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("doing", "number", "is_stopped"), [
    ("nothing", None, False), ("samples", signal.SIGKILL, False), ("samples", signal.SIGKILL, True),
], ids=["ends by itself", "kill -9", "kill -9 beside a stopped child"])  # fmt: skip
def test_the_child_does_not_outlive_the_trainer(doing, number, is_stopped):
    command = [sys.executable, "-c", TRAINER, doing]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        child = psutil.Process(int(trainer.stdout.readline()))
        if is_stopped:
            child.suspend()
        if number is not None:
            trainer.send_signal(number)
        trainer.wait(20)
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    finally:
        os.killpg(trainer.pid, signal.SIGKILL)


def test_samples_are_counted_while_the_child_is_at_work(odd):
    engine = odd(Counting)
    engine.load_weights(SomeWeights([("weight", torch.zeros(2))]), 1)
    for _ in range(2):  # each call counts from the start
        with phase("sampling", 4) as sampling:
            assert engine.generate(requests(4), SAMPLING) == []
        assert 1 <= sampling.done <= 4


@pytest.mark.slow
def test_a_run_trains_on_what_the_same_engine_in_its_process_would_sample(tmp_path):
    for rollout in ("hf", "hf_child"):
        done = train(f"rollout={rollout}", f"run_folder={tmp_path / rollout}")
        assert done.returncode == 0, done.stdout + done.stderr
    in_process, child = (tmp_path / rollout / "rollouts.jsonl" for rollout in ("hf", "hf_child"))
    assert in_process.read_bytes() == child.read_bytes()


def test_an_error_of_the_engines_start_ends_the_command_with_one_line(tmp_path):
    options = ["rollout=hf_child", "rollout.engine.start_seconds=0.1", f"run_folder={tmp_path / 'run'}"]
    done = run_command("bapo_lightning.cli.train", *options)
    assert done.returncode == 1
    assert "error: the rollout engine did not start: it did not answer within 0.1 s" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_second_signal_ends_a_run_at_once_also_while_it_waits_for_a_child_that_is_stopped(tmp_path):
    options = ["experiment=additions", "rollout=hf_child", "scale.num_rollout_batches=500"]
    run = Command("bapo_lightning.cli.train", [*options, "debug=fast", f"run_folder={tmp_path / 'run'}"])
    try:
        wait_until(lambda: (tmp_path / "run/metrics.jsonl").exists() or run.poll() is not None)
        found = psutil.Process(run.pid).children()
        (child,) = (each for each in found if "rollout.child.main" in command_line(each))
        child.suspend()
        run.send_signal(signal.SIGTERM)
        wait_until(lambda: "once more to stop at once" in run.output()[0])
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=10)
        assert run.returncode == -signal.SIGTERM
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    finally:
        run.kill()
