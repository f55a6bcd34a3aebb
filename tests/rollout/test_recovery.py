"""An engine that dies, without a process: what is asked again, how often, and what is never asked twice."""

from array import array

import pytest

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import EngineDied, Generation, GenerationRequest, SamplingParams
from bapo_lightning.rollout.recovery import EngineRecovery, generate_all
from bapo_lightning.types import FinishReason, Segment

SAMPLING = SamplingParams(1.0, ())
REQUESTS = [GenerationRequest(array("i", [place]), 1, seed=place) for place in range(6)]


class MortalEngine:
    """Answers every request with its own seed; dies in its first calls, having finished some."""

    def __init__(self, finished_before_each_death, failing_starts=0):
        self.deaths = list(finished_before_each_death)
        self.failing_starts = failing_starts
        self.asked = []
        self.starts = 0

    def generate(self, requests, sampling):
        self.asked.append([request.seed for request in requests])
        made = [
            Generation(Segment(array("i", [r.seed]), array("f", [0.0]), 0), FinishReason.LENGTH)
            for r in requests
        ]
        if self.deaths:
            raise EngineDied("killed", {place: made[place] for place in self.deaths.pop(0)})
        return made

    def restart(self):
        self.starts += 1
        if self.starts <= self.failing_starts:
            raise EngineError("it does not start")


def test_only_what_was_interrupted_is_asked_again_and_the_order_is_kept():
    engine, revived = MortalEngine([[0, 3], [], [1]]), []
    generations = generate_all(engine, REQUESTS, SAMPLING, revived.append)
    assert [generation.segment.token_ids[0] for generation in generations] == [0, 1, 2, 3, 4, 5]
    assert engine.asked == [[0, 1, 2, 3, 4, 5], [1, 2, 4, 5], [1, 2, 4, 5], [1, 4, 5]]
    assert len(revived) == 3


def test_nothing_asked_is_nothing_done():
    engine = MortalEngine([])
    assert generate_all(engine, [], SAMPLING, print) == [] and engine.asked == []


def test_a_restart_that_fails_is_tried_again_and_counts():
    recovery, engine = EngineRecovery(max_restarts=3), MortalEngine([], failing_starts=2)
    recovery.restart(engine, EngineDied("killed"))
    assert (recovery.num_restarts, engine.starts) == (3, 3)
    assert (recovery.take_restarts(), recovery.take_restarts()) == (3, 0)


def test_when_the_restarts_are_used_up_the_last_reason_is_told():
    recovery, engine = EngineRecovery(max_restarts=2), MortalEngine([], failing_starts=5)
    with pytest.raises(
        EngineError, match=r"after 2 restarts \(it does not start\); rollout\.max_restarts=2 allows no more"
    ):
        recovery.restart(engine, EngineDied("killed"))
    with pytest.raises(EngineError, match=r"\(killed again\)"):
        recovery.restart(engine, EngineDied("killed again"))
    assert engine.starts == 2
