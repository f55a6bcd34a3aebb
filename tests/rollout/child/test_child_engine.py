"""An engine in a process of its own: the contract, every way in which that process or the trainer can die,
and what errors say.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from functools import partial

import psutil
import pytest
import torch
from tests.builders import random_model, random_policy
from tests.rollout.contract import SAMPLING, EngineContract, SomeWeights, requests
from tests.rollout.odd_engines import Complaining, Exiting, OddEngine, Rereading, Slow, Talkative

from bapo_lightning.errors import ConfigError, EngineError
from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, EngineDied, GenerationRequest, SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(made)
    return str(made)


@pytest.fixture(scope="module")
def engine(folder):
    made = ChildEngine(
        folder, partial(HFEngine, max_rows=7), deadline_seconds=60, cpu_threads=1, part_megabytes=0
    )
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


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


def weight_files():
    return [name for name in os.listdir("/dev/shm") if name.startswith("bapo-weights-")]


def wait_until(condition, seconds=20):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)


class TestChildEngine(EngineContract):
    """Everything is inherited."""


def revived(engine):
    assert engine.version == UNSYNCED_VERSION and engine.pid is None
    with pytest.raises(EngineError, match="before it was given weights"):
        engine.generate(requests(1), SAMPLING)
    with pytest.raises(EngineDied, match="ended before"):
        engine.load_weights(random_policy(), version=3)
    engine.restart()
    assert engine.version == UNSYNCED_VERSION
    engine.load_weights(random_policy(), version=3)
    return engine


def test_it_samples_the_tokens_and_log_probs_of_the_same_engine_in_this_process(engine, folder):
    assert torch.get_num_threads() == 1
    here = HFEngine(folder, max_rows=7)
    here.load_weights(random_policy(), version=3)
    assert engine.generate(requests(30), SAMPLING) == here.generate(requests(30), SAMPLING)


def test_a_killed_child_is_noticed_and_its_successor_samples_the_same(engine):
    before = engine.generate(requests(10), SAMPLING)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="ended by SIGKILL") as death:
        engine.generate(requests(10), SAMPLING)
    assert death.value.finished == {}
    assert revived(engine).generate(requests(10), SAMPLING) == before


def test_a_child_killed_between_two_weights_leaves_no_weights_and_no_file(engine):
    def killing():
        for place, weight in enumerate(random_policy().named_weights()):
            if place == 5:
                os.kill(engine.pid, signal.SIGKILL)
            yield weight

    with pytest.raises(EngineDied, match="SIGKILL"):
        engine.load_weights(SomeWeights(killing()), version=4)
    assert weight_files() == []
    assert revived(engine).version == 3


def test_a_child_killed_while_it_sleeps_is_noticed_at_the_next_weights(engine):
    os.kill(engine.pid, signal.SIGKILL)
    engine.sleep()
    revived(engine)


@pytest.mark.parametrize(
    "prompt_tokens", [1, 50_000], ids=["small request", "request that does not fit into the pipe"]
)
def test_a_hung_child_is_dead_after_its_deadline(engine, prompt_tokens, monkeypatch):
    monkeypatch.setattr(engine, "deadline_seconds", 1.0)
    os.kill(engine.pid, signal.SIGSTOP)
    pid, started = engine.pid, time.monotonic()
    with pytest.raises(EngineDied, match="did not answer within 1 s"):
        engine.generate(
            [GenerationRequest(array("i", [1] * prompt_tokens), 1, seed) for seed in range(10)], SAMPLING
        )
    assert time.monotonic() - started < 10 and not psutil.pid_exists(pid)
    monkeypatch.undo()
    revived(engine)


def test_signals_for_the_trainer_do_not_end_the_child(engine):
    assert os.getsid(engine.pid) != os.getsid(0)  # Ctrl-C in the terminal does not get there
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(engine.pid, number)
    assert len(engine.generate(requests(3), SAMPLING)) == 3


def test_a_source_that_fails_raises_its_own_error_and_the_child_lives(engine):
    def failing():
        yield from list(random_policy().named_weights())[:3]
        raise ZeroDivisionError("in the trainer")

    pid = engine.pid
    with pytest.raises(ZeroDivisionError, match="in the trainer"):
        engine.load_weights(SomeWeights(failing()), version=4)
    assert engine.version == UNSYNCED_VERSION and weight_files() == []
    engine.sleep()
    assert engine.version == UNSYNCED_VERSION
    engine.load_weights(random_policy(), version=3)
    assert engine.pid == pid


def test_an_interrupted_call_leaves_no_answer_for_the_next_one(engine, monkeypatch):
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    os.kill(engine.pid, signal.SIGSTOP)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(requests(3), SAMPLING)
    signal.signal(signal.SIGALRM, previous)
    with pytest.raises(EngineDied):
        engine.generate(requests(3), SAMPLING)
    revived(engine)


def children():
    """Command lines of engines' processes below this one."""
    found = [(child.pid, child.cmdline()) for child in psutil.Process().children()]
    return [(pid, line) for pid, line in found if "resource_tracker" not in " ".join(line)]


def test_errors_of_the_constructor_come_back(folder):
    before = children()
    with pytest.raises(EngineError, match=r"AttributeError: .*float99"):
        ChildEngine(folder, partial(HFEngine, dtype="float99"))
    with pytest.raises(EngineError, match="OSError: "):
        ChildEngine("nowhere", HFEngine)
    with pytest.raises(ConfigError) as error:
        ChildEngine("nowhere", Complaining)
    assert error.value.problems == ("first", "second")
    with pytest.raises(EngineError, match="did not start: its process ended with exit code 3"):
        ChildEngine("nowhere", Exiting)
    with pytest.raises(EngineError, match=r"did not start: it did not answer within 0\.2 s"):
        ChildEngine("nowhere", OddEngine, start_seconds=0.2)
    assert children() == before


def test_an_error_that_is_not_ours_keeps_its_name_and_the_child_lives(odd):
    engine = odd(OddEngine)
    engine.load_weights(SomeWeights([]), version=0)
    for _ in range(2):
        with pytest.raises(EngineError, match="KeyError: 'what an engine of ours would not raise'"):
            engine.generate([], SAMPLING)
    engine.sleep()
    assert engine.version == UNSYNCED_VERSION


def test_threads_and_cores_are_those_asked_for_and_the_trainers_process_group_is_not_the_childs(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    core = max(os.sched_getaffinity(0))
    before = (
        dict(os.environ),
        os.sched_getaffinity(0),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
    )
    with pytest.raises(EngineError, match=rf"^3 threads on \[{core}\], RANK=None$"):
        ChildEngine("nowhere", Talkative, cpu_threads=3, cpu_affinity=[core])
    assert before == (
        dict(os.environ),
        os.sched_getaffinity(0),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("part_megabytes", [0, 256])
def test_an_engine_may_read_the_weights_again(odd, part_megabytes):
    engine = odd(Rereading, part_megabytes=part_megabytes)
    engine.load_weights(random_policy(), version=7)
    assert engine.version == 7 and weight_files() == []


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
    assert (
        not thread.is_alive()
        and "closed while it was at work" in str(caught[0])
        and not isinstance(caught[0], EngineDied)
    )
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        engine.restart()
    assert engine.pid is None


def test_an_engine_that_nobody_closed_ends_with_its_object(folder):
    engine = ChildEngine("nowhere", OddEngine)
    pid = engine.pid
    del engine
    wait_until(lambda: not psutil.pid_exists(pid))


TRAINER = """
import os, sys, time
from tests.rollout.contract import SomeWeights, SAMPLING
from tests.rollout.odd_engines import Slow
from bapo_lightning.rollout.child.engine import ChildEngine
engine = ChildEngine("nowhere", Slow)
engine.load_weights(SomeWeights([]), version=0)
if not os.fork():
    time.sleep(60)  # holds copies of the trainer's end of the pipe
print(engine.pid, flush=True)
if sys.argv[1] == "samples":
    engine.generate([], SAMPLING)
"""


@pytest.mark.parametrize(
    ("doing", "number"), [("nothing", None), ("samples", signal.SIGKILL)], ids=["ends by itself", "kill -9"]
)
def test_the_child_does_not_outlive_the_trainer(doing, number):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, doing], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        child = psutil.Process(int(trainer.stdout.readline()))
        if number is not None:
            trainer.send_signal(number)
        trainer.wait(20)
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    finally:
        os.killpg(trainer.pid, signal.SIGKILL)


def test_a_nonsense_request_is_the_engines_business(engine):
    with pytest.raises(EngineError, match="failed in its process"):
        engine.generate([GenerationRequest(array("i", [1000]), 1, 0)], SamplingParams(1.0, ()))
    assert len(engine.generate(requests(3), SAMPLING)) == 3
