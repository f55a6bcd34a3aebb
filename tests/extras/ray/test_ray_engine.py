"""A fleet on three nodes of this machine: the contract, what is sampled, and engines that are lost."""

import os
import signal
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from tests.builders import VOCAB_SIZE, random_policy
from tests.extras.ray.test_nodes import expected
from tests.rollout.contract import SAMPLING, EngineContract, SomeWeights, assert_scored_by, requests
from tests.rollout.odd_engines import Complaining, OddEngine, Slow
from tests.rollout.odd_hf_engines import Suicidal
from tests.rollout.stream_contract import Stream, StreamContract, by_number

from bapo_lightning.extras.ray.engine import RayEngine
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, EngineDied
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.errors import ConfigError, EngineError
from bapo_lightning.types import Segment

pytestmark = pytest.mark.slow


class TestRayEngine(EngineContract, StreamContract):
    """Everything is inherited."""


def test_three_engines_give_the_tokens_and_log_probs_of_one_in_this_process(engine, folder):
    assert engine.generate(requests(50), SAMPLING) == expected(folder, 50)
    assert engine.take_counts()["fleet/nodes"] == 3


def test_every_engine_is_proven(engine):
    answers = engine.generate_on_each(requests(4), SAMPLING)
    assert len(answers) == 3 and len({str(answer) for answer in answers.values()}) == 1


@pytest.mark.parametrize("moment", [0.0, 0.02])
def test_what_a_killed_engine_had_is_sampled_by_the_others_as_it_would_have_been(engine, moment):
    before = engine.generate(requests(60), SAMPLING)
    engine.take_counts()
    victim = engine._fleet.ready[1].process
    killer = threading.Timer(moment, os.kill, (victim, signal.SIGKILL))
    killer.start()
    assert engine.generate(requests(60), SAMPLING) == before
    killer.join()
    assert engine.generate(requests(60), SAMPLING) == before
    counts = engine.take_counts()
    assert counts["fleet/lost"] == 1 and counts["fleet/reissued"] in (0, 4, 7)


def test_what_a_killed_engine_had_of_a_stream_goes_on_elsewhere_with_its_tokens(engine):
    wanted = requests(30, limit=20)
    stream = Stream(engine)
    stream.call(by_number(wanted), steps=4)
    had = {number: tokens[:] for number, tokens in stream.tokens.items()}
    engine.take_counts()
    os.kill(engine._fleet.ready[1].process, signal.SIGKILL)
    stream.to_the_end()
    assert engine.take_counts()["fleet/reissued"] > 0
    assert all(stream.tokens[number][: len(tokens)] == tokens for number, tokens in had.items())
    for number, tokens in stream.tokens.items():
        made = SimpleNamespace(segment=Segment(tokens, stream.logprobs[number], 3))
        assert_scored_by(random_policy(), [wanted[number]], [made])


def test_a_late_engine_joins_in_the_middle_of_a_version_with_the_present_weights(engine):
    WeightSync(1e-3).push(random_policy(), engine, 3, VOCAB_SIZE)
    before = engine.generate(requests(60), SAMPLING)
    os.kill(engine._fleet.ready[0].process, signal.SIGKILL)
    engine.take_counts()
    deadline = time.monotonic() + 60
    while engine.take_counts()["fleet/joined"] == 0:
        assert engine.generate(requests(60), SAMPLING) == before and time.monotonic() < deadline
    assert engine.take_counts()["fleet/engines"] == 3


def test_without_any_engine_left_the_call_ends_and_what_was_finished_is_kept(engine):
    before = engine.generate(requests(60), SAMPLING)
    for member in engine._fleet.ready:
        os.kill(member.process, signal.SIGKILL)
    with pytest.raises(EngineDied, match="no engine of the fleet is left") as death:
        engine.generate(requests(60), SAMPLING)
    assert all(before[number] == generation for number, generation in death.value.finished.items())
    assert engine.version == UNSYNCED_VERSION
    with pytest.raises(EngineError, match="before it was given weights"):
        engine.generate(requests(1), SAMPLING)
    engine.restart()
    engine.load_weights(random_policy(), version=3)
    assert engine.generate(requests(60), SAMPLING) == before


def test_a_death_while_weights_are_sent_leaves_the_others_with_them(engine):
    def killing():
        for place, weight in enumerate(random_policy().named_weights()):
            if place == 5:
                os.kill(engine._fleet.ready[0].process, signal.SIGKILL)
            yield weight

    engine.load_weights(SomeWeights(list(killing())), version=3)
    assert engine.version == 3 and len(engine.generate(requests(20), SAMPLING)) == 20


def small(nodes, folder, kind, actors=1, **options):
    return closing(RayEngine(folder, kind, nodes.address, actors=actors, cpus=0.25, **options))


def test_requests_that_every_engine_dies_of_end_the_run_after_the_allowed_restarts(nodes, folder):
    with small(nodes, folder, Suicidal, actors=2) as made:
        restarting = RestartingEngine(made, WeightSync(1e-3), VOCAB_SIZE, max_restarts=0)
        restarting.load_weights(random_policy(), 3)
        with pytest.raises(EngineError, match=r"died after 0 restarts.*no engine of the fleet is left"):
            restarting.generate(requests(14), SAMPLING)


def test_an_engine_that_hangs_counts_as_lost(nodes, folder):
    with small(nodes, folder, Slow, deadline_seconds=1) as made:
        made.load_weights(random_policy(), 3)
        with pytest.raises(EngineDied):
            made.generate(requests(1), SAMPLING)
        assert made.take_counts()["fleet/lost"] == 1


def test_closing_ends_a_call_in_another_thread(nodes, folder):
    with small(nodes, folder, Slow) as made:
        made.load_weights(random_policy(), 3)
        threading.Timer(0.5, made.close).start()
        with pytest.raises(EngineError, match="closed while it was at work"):
            made.generate(requests(1), SAMPLING)
        with pytest.raises(EngineError, match="was closed"):
            made.load_weights(random_policy(), 3)


def test_errors_of_an_engine_come_back_as_ours(nodes, folder):
    with pytest.raises(ConfigError, match="first"):
        small(nodes, folder, Complaining)
    with small(nodes, folder, OddEngine) as made:
        made.load_weights(random_policy(), 3)
        with pytest.raises(EngineError, match=r"failed in its process \(KeyError"):
            made.generate(requests(1), SAMPLING)


def test_a_cluster_without_room_is_named(nodes, folder):
    with pytest.raises(EngineError, match="no node of the Ray cluster has room for an engine of 5 CPUs"):
        RayEngine(folder, HFEngine, nodes.address, cpus=5)
