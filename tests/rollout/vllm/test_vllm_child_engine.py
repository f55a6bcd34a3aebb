"""vLLM in a process of its own on this machine, without a server."""

import os
import signal
from array import array
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from tests.builders import VOCAB_SIZE, random_policy
from tests.rollout.contract import SAMPLING, EngineContract, SmallSteps, requests, tokens

from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, EngineDied, GenerationRequest
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.errors import EngineError


@pytest.fixture(scope="module")
def engine(folder, options):
    made = ChildEngine(folder, partial(VLLMLocalEngine, options=options), cpu_threads=1, part_megabytes=0)
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


class TestVLLMChildEngine(EngineContract, SmallSteps):
    """Everything is inherited."""


def test_it_samples_the_tokens_of_vllm_in_this_process(engine, folder, options):
    with closing(VLLMLocalEngine(folder, options)) as here:
        here.load_weights(random_policy(), version=3)
        expected = tokens(here.generate(requests(20), SAMPLING))
    assert tokens(engine.generate(requests(20), SAMPLING)) == expected


def test_what_vllm_refuses_is_reported_and_the_child_lives(engine):
    pid = engine.pid
    with pytest.raises(EngineError, match="request 0 has 1 prompt tokens and asks for 100 more"):
        engine.generate(requests(1, limit=100), SAMPLING)
    assert engine.version == 3 and engine.pid == pid


def test_a_killed_child_is_noticed_and_its_successor_samples_the_same(engine):
    before = engine.generate(requests(10), SAMPLING)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="ended by SIGKILL"):
        engine.generate(requests(10), SAMPLING)
    assert engine.version == UNSYNCED_VERSION
    engine.restart()
    WeightSync(tolerance=1e-3, probe_tokens=40).push(random_policy(), engine, 3, VOCAB_SIZE)
    assert engine.generate(requests(10), SAMPLING) == before


def test_prompts_beyond_what_one_step_takes_are_read_whole(folder, options):
    # In parts, beside requests with seeds, vLLM 0.32 dies on a CPU.
    narrow = replace(options, max_num_seqs=16, extra={"max_num_batched_tokens": 64})
    with closing(ChildEngine(folder, partial(VLLMLocalEngine, options=narrow), cpu_threads=1)) as made:
        made.load_weights(random_policy(), version=3)
        rows = [[(7 * row + column**2) % VOCAB_SIZE for column in range(40)] for row in range(12)]
        wanted = [GenerationRequest(array("i", row), 8, seed) for seed, row in enumerate(rows)]
        alone = [tokens(made.generate([request], SAMPLING))[0] for request in wanted]
        assert tokens(made.generate(wanted, SAMPLING)) == alone
