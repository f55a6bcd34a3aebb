"""Past groups that are trained on again: which are kept, and where they stand."""

from dataclasses import replace

import pytest
from tests.builders import group, rollout
from tests.configuration.compositions import found

from bapo_lightning.data.batches.replay_queue import ReplayQueue, ReuseBuffer, is_replayed
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.replay_rule import ReplayRule
from bapo_lightning.types import Origin

REUSE = {"max_age": 7, "reuse_share": 0.5, "max_reuses": 1}


class Successes(ReplayRule):
    """Keeps three samples with a positive advantage."""

    capacity, is_ready = 3, False

    def kept(self, group):
        pairs = zip(group.samples, group.advantages, strict=True)
        samples, advantages = zip(*(pair for pair in pairs if pair[1] > 0), strict=True)
        return replace(group, samples=samples, advantages=advantages)

    def valued(self, replayed, fresh):
        return list(replayed)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def made(name, rewards, advantages=(), version=0):
    answers = [rollout([1], [2, index], [-1.0, -1.0], version) for index in range(len(rewards))]
    return group(name, answers, rewards, advantages)


def test_the_buffer_holds_the_newest_samples_and_gives_none_before_its_rule_is_ready():
    rule = Successes()
    buffer = ReuseBuffer(Regime("reuse", 1, 2, **REUSE), groups_per_batch=4, rule=rule)
    groups = [made(name, [1.0, 1.0, 0.0], [0.5, 0.5, -1.0]) for name in "ab"]
    expert = replace(groups[1].samples[0].rollout, origin=Origin.EXPERT)
    experts = (replace(groups[1].samples[0], rollout=expert), *groups[1].samples[1:])
    groups[1] = replace(groups[1], samples=experts)
    buffer.add(groups)
    assert len(buffer) == 1 and buffer.choose(1) == []
    rule.is_ready = True
    (chosen,) = buffer.choose(1)
    origins = [item.rollout.origin for item in chosen.samples]
    assert chosen.problem.id == "b" and origins == [Origin.EXPERT, Origin.REPLAYED]
    assert not is_replayed(groups[1]) and len(buffer) == 0  # it was reused as often as it may be


@pytest.mark.parametrize("place", ["before", "after"])
def test_reused_groups_have_minibatches_of_their_own(place):
    regime = Regime("reuse", 2, 4, reuse_minibatches=place, **REUSE)
    buffer = ReuseBuffer(regime, groups_per_batch=8)
    buffer.add([made(name, [1.0, 0.0]) for name in "abc"])
    reused = buffer.choose(0)
    assert len(reused) == 2  # three would leave a minibatch half empty
    queue = ReplayQueue(2, 4, seed=0, replayed=place)
    queue.put([made(str(number), [0.0, 1.0]) for number in range(6)] + reused)
    served = [queue.take() for _ in range(8)]
    own = [all(is_replayed(item) for item in part) for part in served]
    assert own == ([True, False, False, False] if place == "before" else [False, False, False, True]) * 2
    assert sum(is_replayed(item) for part in served for item in part) == 4


@pytest.mark.parametrize(("overrides", "complaint"), [
    (["regime=replay", "regime.reuse_minibatches=after"], "without regime.reuse_share has no effect"),
    (["regime=reuse", "regime.reuse_minibatches=before", "regime.reuse_share=0.1"],
     "never fill a minibatch of 16"),
    (["regime=reuse", "regime.reuse_minibatches=first"], "write one of mixed, before, after"),
])  # fmt: skip
def test_one_mistake_gives_one_complaint_that_names_it(overrides, complaint):
    (text,) = found(*overrides)
    assert complaint in text
