import os
import signal
import time
from array import array
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import torch
from tests.builders import random_policy
from tests.rollout.contract import SAMPLING, EngineContract, SmallSteps, SomeWeights, requests
from tests.rollout.stream_contract import StreamContract

from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, EngineDied, GenerationRequest, SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.system.errors import EngineError


@pytest.fixture(scope="module")
def engine(folder):
    kind = partial(HFEngine, max_rows=7)
    made = ChildEngine(folder, kind, deadline_seconds=60, cpu_threads=1, part_megabytes=0)
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_go_in_the_precision_of_the_engine(dtype, folder):
    dtypes = set()

    def named_weights(wanted):
        for name, weight in random_policy().named_weights(wanted):
            dtypes.add(weight.dtype)
            yield name, weight

    name = str(dtype).removeprefix("torch.")
    with closing(ChildEngine(folder, partial(HFEngine, dtype=name), cpu_threads=1)) as made:
        made.load_weights(SimpleNamespace(named_weights=named_weights), version=1)
    assert dtypes == {dtype}


def test_an_option_that_the_engine_refuses_is_one_sentence(folder, capfd):
    told = r"failed in its process \(RuntimeError: Invalid device string: '1'"
    with pytest.raises(EngineError, match=told):
        ChildEngine(folder, partial(HFEngine, device="1"), cpu_threads=1)
    assert capfd.readouterr().err == ""


def weight_files():
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"bapo-weights-{os.getpid()}-")]


@pytest.mark.slow
class TestChildEngine(EngineContract, StreamContract):
    """Everything is inherited."""


class TestSmallSteps(SmallSteps):
    """Everything is inherited."""


def revived(engine):
    assert engine.version == UNSYNCED_VERSION and engine.pid is None
    with pytest.raises(EngineError, match="before it was given weights"):
        engine.generate(requests(1), SAMPLING)
    with pytest.raises(EngineDied, match="had ended already"):
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_child_killed_while_it_sleeps_is_noticed_at_the_next_weights(engine):
    os.kill(engine.pid, signal.SIGKILL)
    engine.sleep()
    revived(engine)


@pytest.mark.slow
@pytest.mark.parametrize("prompt_tokens", [1, 50_000], ids=["small request", "larger than the pipe"])
def test_a_hung_child_is_dead_after_its_deadline(engine, prompt_tokens, monkeypatch):
    monkeypatch.setattr(engine, "deadline_seconds", 1.0)
    os.kill(engine.pid, signal.SIGSTOP)
    pid, started = engine.pid, time.monotonic()
    with pytest.raises(EngineDied, match="did not answer within 1 s"):
        engine.generate([GenerationRequest(array("i", [1] * prompt_tokens), 1, 0)] * 10, SAMPLING)
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


@pytest.mark.slow
def test_an_interrupted_call_leaves_no_answer_for_the_next_one(engine, monkeypatch):
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    os.kill(engine.pid, signal.SIGSTOP)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(requests(3), SAMPLING)
    signal.signal(signal.SIGALRM, previous)
    with pytest.raises(EngineDied):
        engine.generate(requests(3), SAMPLING)
    revived(engine)


def test_a_nonsense_request_is_the_engines_business(engine):
    with pytest.raises(EngineError, match="failed in its process"):
        engine.generate([GenerationRequest(array("i", [1000]), 1, 0)], SamplingParams(1.0, ()))
    assert len(engine.generate(requests(3), SAMPLING)) == 3
