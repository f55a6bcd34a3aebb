"""Steps of responses: where they end, what they are worth, and that a checkpoint keeps them."""

from array import array
from dataclasses import replace

import pytest
import torch
from tests.builders import group, rollout

from bapo_lightning.algorithms.direct_advantage.critic import with_step_advantages
from bapo_lightning.algorithms.direct_advantage.steps import StepSplitter, states_of
from bapo_lightning.data.rollouts.group_state import ArrayStore, pack_group, unpack_group
from bapo_lightning.types import Problem, Steps

END = 0  # a token without text


class LetterTokenizer:
    """Token n is the nth of these texts."""

    eos_token_id = 0
    texts = ("<end>", "a", "b", "\n", ".\n", "\n\n", "\nb", " ")

    def decode(self, token_ids, skip_special_tokens):
        return "".join(self.texts[token] for token in token_ids if token or not skip_special_tokens)


def numbers(texts, split=r"\n+"):
    ids = [LetterTokenizer.texts.index(text or "<end>") for text in texts]
    return StepSplitter(LetterTokenizer(), split)(ids).tolist()


@pytest.mark.parametrize(("texts", "steps"), [
    (["a", "b", ""], [0, 0, 0]),  # no separator
    (["a"], [0]), ([""], [0]), (["\n"], [0]), (["a", "\n", "b"], [0, 0, 1]),
    (["a", ".\n", "b", "\n", "a", ""], [0, 0, 1, 1, 2, 2]),
    (["a", "\n", "b", "\n"], [0, 0, 1, 1]),  # a trailing one
    (["a", "\n", "b", "\n", " ", ""], [0, 0, 1, 1, 1, 1]),  # followed by no text
    (["a", "\n", "\n", "b"], [0, 0, 0, 1]),  # several in a row
    (["a", "\n\n", "\n", "b"], [0, 0, 0, 1]),
    (["a", "\nb", "a"], [0, 0, 1]),  # the token in which it ends belongs to the step
    (["a", "\nb", ""], [0, 0, 0]),
    (["\n", "a"], [0, 1]),
])  # fmt: skip
def test_a_step_ends_with_a_separator_unless_no_text_follows(texts, steps):
    assert numbers(texts) == steps


def test_separators_may_lie_in_several_tokens_and_be_any_expression():
    assert numbers(["a", "b", "a", "b", "a"], "ba") == [0, 0, 0, 1, 1]
    assert numbers(["a", "\n", "b", "b", "a"], r"[b\n]") == [0, 0, 1, 2, 3]
    assert numbers(["a", "b"], "x*") == [0, 0]  # matches of nothing end nothing


def test_steps_of_a_number_of_tokens():
    assert numbers(["a"] * 5, 2) == [0, 0, 1, 1, 2]
    assert numbers(["a"] * 3, 1) == [0, 1, 2] and numbers(["a"] * 3, 9) == [0, 0, 0]


def test_states_are_where_prompt_and_response_stand_before_each_step():
    made = rollout([1, 2, 3], [1, 3, 2, 1], [-1.0] * 4)
    assert states_of(made, [0, 0, 1, 2]) == [2, 4, 5]
    assert states_of(made, [0] * 4) == [2]


class TableCritic:
    """Says 0.5 of a prompt, and of a prefix an eighth of its length beyond the prompt."""

    split = 2

    def values(self, rollouts, states, token_budget, device):
        self.asked = [list(own) for own in states]
        return [
            [(state + 1 - len(item.prompt_ids)) / 8 or 0.5 for state in own]
            for item, own in zip(rollouts, states, strict=True)
        ]


def batch():
    responses = [rollout([1, 2], range(length), [-1.0] * length) for length in (5, 1)]
    return [group("p", responses, [1.0, 0.0], [9.0, 9.0]), group("filler", responses, [0.0, 0.0], [0.0, 0.0])]


def valued(critic):
    admits = lambda found: found.problem.id == "p"  # noqa: E731
    return with_step_advantages(
        critic, batch(), StepSplitter(LetterTokenizer(), 2), admits, 100, torch.device("cpu")
    )


def test_each_step_gets_its_advantage_each_response_their_sum_and_groups_that_fill_up_nothing():
    critic = TableCritic()
    (found, filler), metrics = valued(critic)
    assert critic.asked == [[1, 3, 5], [1]]
    # V: 0.5, 0.25, 0.5, then 1; and 0.5, then 0
    first, second = found.samples
    assert first.steps == Steps(array("i", [0, 0, 1, 1, 2]), array("f", [-0.25, -0.25, 0.25, 0.25, 0.5]))
    assert second.steps == Steps(array("i", [0]), array("f", [-0.5]))
    assert found.advantages == (0.5, -0.5) and (first.steps.count, second.steps.count) == (3, 1)
    assert filler == batch()[1]
    assert metrics["critic/value"] == 0.5
    assert metrics["critic/brier"] == pytest.approx((0.25 + 0.5625 + 0.25 + 0.25) / 4)


def test_a_batch_that_only_fills_up_has_no_metrics_of_the_critic():
    admits = lambda found: False  # noqa: E731
    groups, metrics = with_step_advantages(
        TableCritic(), batch(), StepSplitter(LetterTokenizer(), 2), admits, 100, torch.device("cpu")
    )
    assert groups == batch() and list(metrics) == ["time/critic_seconds"]


def test_a_checkpoint_keeps_steps():
    (found, filler), _ = valued(TableCritic())
    problem = Problem("p", "", "")
    for made in (found, filler):
        store = ArrayStore()
        packed = pack_group(store, made)
        loaded = ArrayStore.from_state_dict(store.state_dict())
        again = unpack_group(loaded, packed, lambda name: problem)
        assert again == replace(made, problem=problem)
