from array import array

import pytest
import torch
from tests.rollout.contract import tokens

from bapo_lightning.rollout import distributed
from bapo_lightning.rollout import engine as rollout_engine
from bapo_lightning.rollout.distributed import CollectiveWeightSource, DistributedEngine
from bapo_lightning.rollout.engine import MERGED, UNSYNCED_VERSION, EngineDied, RolloutEngine, Wanted
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.ranks.channel import outcome_on
from bapo_lightning.types import FinishReason, Segment

SAMPLING = rollout_engine.SamplingParams(1.0, ())


class Engine(RolloutEngine):
    """Answers with the first token of each request; fails on demand."""

    def __init__(self):
        self.version, self.asked, self.failure, self.restarts = UNSYNCED_VERSION, [], None, 0
        self.failing_restarts = 0

    def generate(self, requests, sampling):
        self.asked.append([request.token_ids[0] for request in requests])
        segments = [Segment(each.token_ids[:1], array("f", [0.0]), self.version) for each in requests]
        made = [rollout_engine.Generation(segment, FinishReason.STOP) for segment in segments]
        if self.failure is not None:
            raise self.failure(made)
        return made

    def load_weights(self, source, version):
        self.version = version

    def restart(self):
        self.restarts += 1
        if self.failing_restarts:
            self.failing_restarts -= 1
            raise EngineError("it does not start")


class Here:
    """A channel whose workers are in this process."""

    def __init__(self, engines):
        self.engines = [distributed.LocalEngine(engine) for engine in engines]
        self.size = len(engines)

    def together(self, name, payloads, own):
        def obey(rank):
            if name == "load_weights":
                return self.engines[rank].engine.load_weights(None, payloads[rank])
            return self.engines[rank].handlers()[name](payloads[rank])

        others = (outcome_on(rank, lambda rank=rank: obey(rank)) for rank in range(1, self.size))
        return [outcome_on(0, own), *others]

    def all(self, value):
        return [value] * self.size


def rank_group(count, ranks_per_engine=1, on_controller_only=False):
    engines = [Engine() for _ in range(count)]
    channel = Here(engines)
    made = DistributedEngine(channel.engines[0], channel, channel, ranks_per_engine, on_controller_only)
    made.load_weights(Counted(), 3)
    return made, engines


def requests(count):
    return [rollout_engine.GenerationRequest(array("i", [number]), 1, number) for number in range(count)]


def first_tokens(generations):
    return [each[0] for each in tokens(generations)]


def test_parts_are_contiguous_and_cover_all():
    bounds = [distributed.part_bounds(*sizes) for sizes in ((10, 4), (1, 3))]
    assert bounds == [[0, 2, 5, 7, 10], [0, 0, 0, 1]]


@pytest.mark.parametrize(("ranks", "parts"), [
    ((3, 1, False), [[[0, 1]], [[2, 3]], [[4, 5, 6]]]),
    ((4, 2, False), [[[0, 1, 2]]] * 2 + [[[3, 4, 5, 6]]] * 2),  # shared: the same part
    ((2, 1, True), [[[0, 1, 2, 3, 4, 5, 6]], []]),
])  # fmt: skip
def test_each_engine_samples_its_part_and_answers_come_in_order(ranks, parts):
    made, engines = rank_group(*ranks)
    assert first_tokens(made.generate(requests(7), SAMPLING)) == list(range(7))
    assert [engine.asked for engine in engines] == parts


def test_every_engine_answers_the_same_requests_to_be_proven():
    made, engines = rank_group(4, ranks_per_engine=2)
    answers = made.generate_on_each(requests(2), SAMPLING)
    assert {number: first_tokens(answer) for number, answer in answers.items()} == {0: [0, 1], 1: [0, 1]}
    assert [engine.asked for engine in engines] == [[[0, 1]]] * 4 and made.take_counts() == {}
    engines[3].failure = lambda sampled: EngineDied("no memory")
    with pytest.raises(EngineDied, match="rank 3: no memory"):
        made.generate_on_each(requests(2), SAMPLING)


class FleetOfOne(Engine):
    """Is several engines itself."""

    def generate_on_each(self, requests, sampling):
        return {5: self.generate(requests, sampling)}

    def take_counts(self):
        return {"fleet/engines": 1}


def test_the_leaders_fleet_answers_and_counts_for_itself():
    fleet = FleetOfOne()
    channel = Here([fleet, Engine()])
    made = DistributedEngine(channel.engines[0], channel, channel, 1, on_controller_only=True)
    fleet.version = 3
    assert list(made.generate_on_each(requests(2), SAMPLING)) == [5]
    assert made.take_counts() == {"fleet/engines": 1}


def test_after_a_death_what_others_sampled_is_kept_and_only_the_dead_one_is_restarted():
    made, engines = rank_group(2)
    engines[1].failure = lambda sampled: EngineDied("no memory", {0: sampled[0]})
    with pytest.raises(EngineDied, match="rank 1: no memory") as death:
        made.generate(requests(4), SAMPLING)
    assert sorted(death.value.finished) == [0, 1, 2] and made.version == UNSYNCED_VERSION
    made.restart()
    assert [engine.restarts for engine in engines] == [0, 1]


def test_a_restart_that_fails_on_one_rank_is_tried_again_on_that_rank_alone():
    made, engines = rank_group(3)
    for engine in engines[:2]:
        engine.failure = lambda sampled: EngineDied("no memory")
    with pytest.raises(EngineDied):
        made.generate(requests(6), SAMPLING)
    engines[1].failing_restarts = 1
    with pytest.raises(EngineError, match="it does not start"):
        made.restart()
    made.restart()
    made.restart()
    assert [engine.restarts for engine in engines] == [1, 2, 0]


def test_any_other_error_of_one_rank_is_raised():
    made, engines = rank_group(2)
    engines[1].failure = lambda sampled: EngineError("a prompt is too long")
    with pytest.raises(EngineError, match="a prompt is too long"):
        made.generate(requests(4), SAMPLING)


class Agreement:
    """The other rank begins as many passes as told."""

    def __init__(self, others):
        self.others, self.size = list(others), 2

    def all(self, value):
        return [value, self.others.pop(0) if self.others else None]


class Counted:
    def __init__(self):
        self.given = []

    def named_weights(self, wanted=MERGED):
        names = {"merged": "abc", "split": ["a", "b", "a.lora_A"], "adapters": ["a.lora_A"]}
        for name in names[wanted.content]:
            self.given.append(name)
            yield name, torch.zeros(1)


def test_every_pass_over_the_weights_is_gone_through_to_its_end_even_if_the_engine_dies():
    class Picky(Engine):
        def load_weights(self, source, version):
            for _ in range(2):
                next(iter(source.named_weights()))
            raise EngineDied("in the middle")

    counted = Counted()
    with pytest.raises(EngineDied, match="in the middle"):
        CollectiveWeightSource(counted, Agreement([MERGED, MERGED])).feed(Picky(), 1)
    assert sorted(counted.given) == sorted("abcabc")


def test_a_rank_without_an_engine_goes_through_the_passes_of_the_others():
    counted = Counted()
    CollectiveWeightSource(counted, Agreement([MERGED, MERGED])).feed(None, 1)
    assert counted.given == list("abcabc")


def test_ranks_that_have_the_weights_under_adapters_help_one_that_was_started_anew():
    taken = []

    class Adapting(Engine):
        def load_weights(self, source, version):
            taken.extend(name for name, _ in source.named_weights(Wanted("adapters")))

    counted = Counted()
    CollectiveWeightSource(counted, Agreement([Wanted("split")])).feed(Adapting(), 1)
    assert counted.given == ["a", "b", "a.lora_A"] and taken == ["a.lora_A"]
