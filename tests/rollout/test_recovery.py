import threading
from array import array

import pytest
from tests.rollout.contract import tokens

from bapo_lightning.rollout import engine as rollout_engine
from bapo_lightning.rollout.engine import EngineDied, Generation, RolloutEngine, SamplingParams
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import Proof, SyncReport
from bapo_lightning.system.errors import EngineError
from bapo_lightning.types import FinishReason, Segment

SAMPLING = SamplingParams(1.0, ())
REQUESTS = [rollout_engine.GenerationRequest(array("i", [number]), 1, seed=number) for number in range(6)]


class MortalEngine(RolloutEngine):
    """Answers every request with its own seed; dies in its first calls, having finished some."""

    def __init__(self, finished_before_each_death=(), failing_starts=0):
        self.deaths = list(finished_before_each_death)
        self.failing_starts = failing_starts
        self.asked = []
        self.starts = 0

    def generate(self, requests, sampling):
        self.asked.append([request.seed for request in requests])
        segments = [Segment(array("i", [each.seed]), array("f", [0.0]), 0) for each in requests]
        made = [Generation(segment, FinishReason.LENGTH) for segment in segments]
        if self.deaths:
            raise EngineDied("killed", {number: made[number] for number in self.deaths.pop(0)})
        return made

    def restart(self):
        self.starts += 1
        if self.starts <= self.failing_starts:
            raise EngineError("it does not start")

    def load_weights(self, source, version):
        raise AssertionError("weights are pushed by Pushes")


class Pushes:
    """A weight sync that notes what it pushed; the engine dies in its first pushes."""

    def __init__(self, deaths=0, unproven=()):
        self.deaths = deaths
        self.unproven = unproven
        self.made = []

    def load(self, source, engine, version, vocab_size):
        if self.deaths:
            self.deaths -= 1
            raise EngineDied("killed")
        self.made.append((source, version, vocab_size))
        return Proof(source, version, [], {}, {}, 0.5, 0.25, 0.125)

    def prove(self, proof):
        if proof.version in self.unproven:
            raise EngineError("the engine holds other weights")
        return SyncReport(proof.version, 0.0, 0.0, 0.0, 0.0)


def test_the_time_of_probes_is_reported_once():
    restarting = RestartingEngine(MortalEngine([]), Pushes(deaths=1), vocab_size=24, max_restarts=3)
    for version in (1, 2):
        restarting.load_weights("policy", version)
    assert [restarting.take_answer_seconds() for _ in range(2)] == [0.5, 0.0]


def test_only_what_was_interrupted_is_asked_again_in_order_and_with_the_same_weights():
    engine, pushes = MortalEngine([[0, 3], [], [1]]), Pushes()
    restarting = RestartingEngine(engine, pushes, vocab_size=24, max_restarts=3)
    restarting.load_weights("policy", 7)
    assert tokens(restarting.generate(REQUESTS, SAMPLING)) == [array("i", [seed]) for seed in range(6)]
    assert engine.asked == [[0, 1, 2, 3, 4, 5], [1, 2, 4, 5], [1, 2, 4, 5], [1, 4, 5]]
    assert engine.starts == 3
    assert pushes.made == [("policy", 7, 24)] * 4
    assert [report.version for report in restarting.sync_reports] == [7] * 4


def test_nothing_asked_is_nothing_done():
    engine = MortalEngine()
    restarting = RestartingEngine(engine, Pushes(), 24, max_restarts=0)
    assert restarting.generate([], SAMPLING) == [] and restarting.generate_once([], SAMPLING) == {}
    assert engine.asked == []


def test_one_call_keeps_nothing_of_a_death_and_neither_restarts_nor_asks_again():
    engine = MortalEngine([[0, 3]])
    restarting = RestartingEngine(engine, Pushes(), 24, max_restarts=1)
    assert restarting.generate_once(REQUESTS, SAMPLING) == {}, "the finished ones are the short ones"
    assert (engine.starts, len(engine.asked)) == (0, 1)
    for _ in range(2):
        restarting.restart()
        assert engine.starts == 1  # an engine that lives is left alone


class HeldEngine(MortalEngine):
    """An engine whose restart says that it began and waits for leave."""

    def __init__(self):
        super().__init__([[]])
        self.begun, self.leave, self.restarting = threading.Event(), threading.Event(), 0
        self.most_restarting = 0

    def restart(self):
        self.restarting += 1
        self.most_restarting = max(self.most_restarting, self.restarting)
        self.begun.set()
        self.leave.wait(10)
        super().restart()
        self.restarting -= 1


@pytest.mark.parametrize("first", ["restart", "hand_over"])
def test_two_threads_that_meet_one_death_restart_the_engine_once_before_it_gets_weights(first):
    engine, pushes = HeldEngine(), Pushes()
    restarting = RestartingEngine(engine, pushes, 24, max_restarts=3)
    assert restarting.generate_once(REQUESTS, SAMPLING) == {}
    calls = {"restart": restarting.restart, "hand_over": lambda: restarting.hand_over("policy", 7)}
    works = [calls.pop(first), *calls.values()]
    threads = [threading.Thread(target=work) for work in works]
    threads[0].start()
    assert engine.begun.wait(10)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive() and pushes.made == [], "it waits for the restart"
    engine.leave.set()
    for thread in threads:
        thread.join(10)
    assert (engine.starts, engine.most_restarting, pushes.made) == (1, 1, [("policy", 7, 24)])
    assert restarting.take_counts() == {"rollout/engine_restarts": 1}


def test_weights_are_handed_over_while_no_call_is_at_work():
    engine, pushes = HeldEngine(), Pushes()
    engine.deaths = []
    sampling, leave, sampled = threading.Event(), threading.Event(), engine.generate

    def generate(requests, parameters):
        sampling.set()
        leave.wait(10)
        return sampled(requests, parameters)

    engine.generate = generate
    restarting = RestartingEngine(engine, pushes, 24, max_restarts=0)
    generating = threading.Thread(target=restarting.generate_once, args=(REQUESTS, SAMPLING))
    training = threading.Thread(target=restarting.hand_over, args=("policy", 7))
    generating.start()
    assert sampling.wait(10)
    training.start()
    training.join(0.2)
    assert pushes.made == []
    leave.set()
    training.join(10)
    generating.join(10)
    assert pushes.made == [("policy", 7, 24)]


def test_a_closed_engine_is_not_restarted():
    engine = MortalEngine([[]])
    restarting = RestartingEngine(engine, Pushes(), 24, max_restarts=3)
    restarting.generate_once(REQUESTS, SAMPLING)
    restarting.close()
    with pytest.raises(EngineError, match="was closed"):
        restarting.restart()
    assert engine.starts == 0


def test_a_death_while_weights_are_loaded_begins_the_push_anew():
    engine, pushes = MortalEngine(), Pushes(deaths=2)
    restarting = RestartingEngine(engine, pushes, 24, max_restarts=2)
    restarting.load_weights("policy", 7)
    assert engine.starts == 2 and pushes.made == [("policy", 7, 24)]
    assert len(restarting.sync_reports) == 1


def test_an_engine_samples_before_its_weights_are_proven_and_each_proof_is_made_once():
    restarting = RestartingEngine(MortalEngine(), Pushes(unproven=[8]), 24, max_restarts=0)
    restarting.hand_over("policy", 7)
    assert len(restarting.generate(REQUESTS, SAMPLING)) == len(REQUESTS) and not restarting.sync_reports
    for _ in range(2):
        restarting.prove()
        assert [report.version for report in restarting.sync_reports] == [7]
    restarting.hand_over("policy", 8)
    with pytest.raises(EngineError, match="other weights"):
        restarting.prove()
    assert [report.version for report in restarting.sync_reports] == [7]


def test_a_restart_that_fails_is_tried_again_and_counts():
    engine = MortalEngine([[]], failing_starts=2)
    restarting = RestartingEngine(engine, Pushes(), 24, max_restarts=3)
    restarting.generate_once(REQUESTS, SAMPLING)
    restarting.restart()
    assert engine.starts == 3
    assert [restarting.take_counts() for _ in range(2)] == [{"rollout/engine_restarts": n} for n in (3, 0)]


def test_when_the_restarts_are_used_up_the_last_reason_is_reported():
    engine = MortalEngine([[], []], failing_starts=5)
    restarting = RestartingEngine(engine, Pushes(), 24, max_restarts=2)
    message = r"after 2 restarts \(it does not start\); rollout\.max_restarts=2 allows no more"
    with pytest.raises(EngineError, match=message):
        restarting.generate(REQUESTS, SAMPLING)
    with pytest.raises(EngineError, match=r"\(killed\)"):
        restarting.generate(REQUESTS, SAMPLING)
    assert engine.starts == 2
