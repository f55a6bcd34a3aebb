"""Rules about single groups, composed."""

import pytest
import torch
from tests.builders import group, rollout
from tests.configuration.compositions import found
from tests.data.rollouts.scripted import ruled
from tests.data.rollouts.turns import IN_TURNS

from bapo_lightning.data.rollouts.admission import DynamicSampling
from bapo_lightning.data.rollouts.rules import GroupRule, Rules
from bapo_lightning.data.rollouts.stages import with_batch_advantages

SCORED = group("p", [rollout([1], [2], [-1.0])] * 2, [1.0, 0.0])
(SAMPLE, _) = SCORED.samples


class Counting(GroupRule):
    """A rule with a state."""

    seen = 0

    def admits(self, group):
        self.seen += 1
        return True

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def both(first, second):
    return Rules({"first": first.by_name["own"], "second": second.by_name["own"]})


def test_rewards_add_up_in_the_order_of_the_rules_and_every_rule_must_keep_a_sample():
    rules = both(
        ruled(shape=lambda rollout, version: 0.1 * version),
        ruled(shape=lambda rollout, version: 0.2, keeps=lambda sample: sample.reward < 2),
    )
    assert rules.applied(SAMPLE, 3).reward == 1.0 + 0.1 * 3 + 0.2 and rules.applied(SAMPLE, 3).is_trained
    assert not rules.applied(SAMPLE, 30).is_trained


def test_all_must_admit_the_first_begins_again_and_the_longest_patience_holds():
    strict = ruled(admits=lambda group: False, max_rounds=3)
    assert not both(ruled(), strict).admits(SCORED) and both(ruled(), strict).max_rounds == 3
    asked = []
    first = ruled(retry=lambda group, encode: asked.append(group))
    second, third = (ruled(retry=lambda group, encode, share=share: (share, [])) for share in (0.5, 0.7))
    assert both(first, second).retry(SCORED, None) == (0.5, []) and asked == [SCORED]
    assert both(second, third).retry(SCORED, None) == (0.5, [])
    opened = both(ruled(open=lambda *asked: [1, 2]), ruled(open=lambda *asked: [3])).open(None, None, None)
    assert opened == [1, 2, 3]
    none = Rules()
    assert none.applied(SAMPLE, 3) is SAMPLE and none.admits(SCORED) and none.max_rounds == 1
    assert none.open(None, None, None) == [] and none.retry(SCORED, None) is None


def test_states_are_kept_by_name():
    rules = Rules({"counting": Counting(), "plain": GroupRule()})
    rules.admits(SCORED)
    state = rules.state_dict()
    assert state == {"counting": {"seen": 1}}
    restored = Counting()
    Rules({"plain": GroupRule(), "counting": restored}).load_state_dict(state)
    assert restored.seen == 1


FILTER = "+algorithm.rules.x={_target_: bapo_lightning.data.rollouts.turn_rules.SampleFilter, "


@pytest.mark.parametrize(("overrides", "complaint"), [
    (["+algorithm.rules.x={_target_: bapo_lightning.system.errors.first_line}"],
     "first_line is not a rule; derive it from bapo_"),
    (["+algorithm.rules.x=3"], "algorithm.rules.x=3 has no _target_; write {_target_: "),
    (["algorithm.rules=3"], "algorithm.rules=3 must be a mapping"),
    (["algorithm.rules.admission.max_rounds=0"], "admission.max_rounds=0 must be a whole"),
    (["algorithm.rules.admission=null"], None),
    ([FILTER + "void_turns: true}"], "rules.x.void_turns without an environment: a response is"),
    ([FILTER + "void_turns: true}", *IN_TURNS], None),
    ([FILTER + "void_turns: false}"], "cut and repeats are all off; write null in the place of the rule"),
    ([FILTER + "repeats: 1}"], "write algorithm.rules.x.repeats=10"),
    ([FILTER + "cut: true, ngram: 0}"], "ngram=0 must be"),
])  # fmt: skip
def test_one_mistake_gives_one_complaint_that_names_it(overrides, complaint):
    problems = found("algorithm=dapo", *overrides)
    assert len(problems) == bool(complaint) and all(complaint in problem for problem in problems)


def groups(scores):
    def answers(row):
        return [rollout([1], [2] * length, [-1.0] * length) for length in range(3, 3 + len(row))]

    return [group(f"p{index}", answers(row), row, [0.0] * len(row)) for index, row in enumerate(scores)]


def test_the_batch_holds_rewards_lengths_and_ids_and_its_answer_becomes_the_advantages():
    seen, made = [], groups([[1.0, 0.0], [0.0, 0.0]])
    less = lambda batch: seen.append(batch) or batch.rewards - 0.25  # noqa: E731
    found = with_batch_advantages(less, made, 1, Rules().admits)
    (batch,) = seen
    assert batch.rewards.tolist() == [[1, 0], [0, 0]] and batch.lengths.tolist() == [[3, 4], [3, 4]]
    assert batch.problems == ("p0", "p1") and batch.is_new == (True, False)
    assert not batch.advantages.any()
    assert [item.advantages for item in found] == [(0.75, -0.25), (-0.25, -0.25)]
    assert [item.samples for item in found] == [item.samples for item in made]


def test_groups_that_only_fill_a_batch_are_no_part_of_it_and_keep_advantages_of_zero():
    made = groups([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    admits, counted = DynamicSampling(1).admits, lambda one: torch.full_like(one.rewards, len(one.problems))
    found = with_batch_advantages(counted, made, 3, admits)
    assert [item.advantages for item in found] == [(0, 0), (1, 1), (0, 0)]
    assert with_batch_advantages(pytest.fail, made[::2], 2, admits) == made[::2]
