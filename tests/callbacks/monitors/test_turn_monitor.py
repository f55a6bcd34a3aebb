"""The numbers of conversations, worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.builders import conversation, rollout
from tests.callbacks.monitors.token_table import module
from tests.token_tables import Recording, table

from bapo_lightning.callbacks.monitors.bounds import ContributionMonitor
from bapo_lightning.callbacks.monitors.monitor import MonitoredUpdate, context_lengths, turn_numbers
from bapo_lightning.callbacks.monitors.turns import MOST_TURNS, TurnMonitor
from bapo_lightning.types import FinishReason, Origin, Reply

DONE = Reply(is_done=True)
# Two turns of 2 tokens and 1, three turns of a token each, one turn of 2 tokens.
ROLLOUTS = [
    conversation([5, 6], [90, 91, 92], [7], replies=[Reply("x", calls=3, errors=1), DONE]),
    conversation([5], [90, 91], [6], [92], [7], replies=[Reply("y", calls=1), Reply("z", is_void=True)],
                 finish=FinishReason.LENGTH),
    conversation([5, 6], replies=[replace(DONE, is_void=True)]),
]  # fmt: skip
# The minibatch's micro-batches put rollout 1 first; token 0 of rollout 2 is too old to be trained on.
SEQUENCE = [1, 1, 1, 0, 0, 0, 2]
POSITION = [0, 1, 2, 0, 1, 2, 1]
TURN = [0, 1, 2, 0, 0, 1, 0]


def tokens(**columns):
    advantages = torch.tensor([-1.0, -1, -1, 2, 2, 2, 1])
    return table(advantages, sequence=torch.tensor(SEQUENCE), position=torch.tensor(POSITION), **columns)


def measured(found, rollouts=ROLLOUTS, weight="none"):
    monitor = TurnMonitor()
    monitor.has_environment = True
    update = MonitoredUpdate(0, 0, found, [], SimpleNamespace(rollouts=rollouts), module(weight), {})
    return {name: float(value) for name, value in monitor.measure(update).items()}


def test_turns_calls_and_faults_are_counted_by_conversation():
    found = measured(tokens())
    assert {name: value for name, value in found.items() if "positive" not in name} == pytest.approx(
        {
            "turns/mean": 2.0,  # 2, 3, 1
            "turns/max": 3.0,
            "turns/calls_mean": 4 / 3,  # 3 + 1 in three conversations
            "turns/error_share": 0.25,  # 1 of 4
            "turns/void_share": 2 / 3,
            "turns/feedback_tokens_mean": 2.0,  # 3, 3, 0
            "turns/cut_share": 1 / 3,
            "turns/lost_share": 0.0,
        }
    )


@pytest.mark.parametrize(("data_module", "is_needed"), [
    (SimpleNamespace(sampler=SimpleNamespace(conversations=object())), True),
    (SimpleNamespace(sampler=SimpleNamespace(conversations=None)), False),
    (SimpleNamespace(), False),  # of a rank that does not sample
])  # fmt: skip
def test_columns_are_needed_and_an_update_looked_at_where_an_environment_answers(data_module, is_needed):
    monitor, found = TurnMonitor(), Recording(tokens().columns)
    monitor.on_train_start(SimpleNamespace(datamodule=data_module), None)
    made = (
        MonitoredUpdate(0, 0, found, [], SimpleNamespace(rollouts=ROLLOUTS), module(), {})
        if is_needed
        else None
    )
    assert bool(monitor.measure(made)) == is_needed == monitor.has_environment
    assert found.read == monitor.needs and bool(monitor.needs) == is_needed


def test_the_context_of_a_token_is_prompt_feedback_and_response_before_it():
    # One token of prompt. Rollout 1: 5 | 90 91 | 6 | 92 | 7; rollout 0: 5 6 | 90 91 92 | 7.
    assert context_lengths(ROLLOUTS, tokens()).tolist() == [1, 4, 6, 1, 2, 6, 2]


def test_each_turn_has_the_positive_share_of_its_own_tokens():
    assert turn_numbers(ROLLOUTS, tokens()).tolist() == TURN
    shares = measured(tokens(ratio=torch.tensor([2.0, 1, 1, 1, 1, 0.5, 1])))
    # Positive: turn 1 has 2 + 2 + 1, turn 2 has 2 x 0.5. Negative: 1 x 2, 1, 1.
    assert [shares[f"turns/positive_share_{turn}"] for turn in (1, 2, 3)] == pytest.approx([5 / 7, 0.5, 0])
    assert "turns/positive_share_4" not in shares


def test_the_share_of_a_turn_is_weighed_and_cut_as_that_of_the_run_is():
    made = tokens(behaviour_logp=torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]).log(), weight=0.5)
    made = replace(made, slope=made.advantage * torch.tensor([1.0, 1, 1, 0, 1, 1, 1]))
    shares = measured(made, weight="rollout_prob")
    # Turn 1: 0.5 x 2 + 0.7 of positives, as the 0.4 is cut; 0.1 of a negative.
    assert shares["turns/positive_share_1"] == pytest.approx(1.7 / 1.8)
    alone = [conversation([5], replies=[DONE])] * len(TURN)
    each = replace(made, sequence=torch.arange(len(TURN)), position=torch.zeros(len(TURN), dtype=torch.long))
    whole = ContributionMonitor().measure(MonitoredUpdate(0, 0, made, [], None, module(), {}))
    share = measured(each, alone, "rollout_prob")["turns/positive_share_1"]
    assert share == pytest.approx(float(whole["bapo/positive_share"]))


def test_the_first_turns_alone_have_a_share_and_no_calls_have_no_share_of_errors():
    parts = [[5], [90]] * (MOST_TURNS + 2) + [[6]]
    long = conversation(*parts, replies=[Reply("x")] * (MOST_TURNS + 2))
    size = MOST_TURNS + 3
    sequence = torch.zeros(size, dtype=torch.long)
    found = measured(table(torch.ones(size), sequence=sequence, position=torch.arange(size)), [long])
    assert found["turns/max"] == size and "turns/error_share" not in found
    assert sum("positive_share" in name for name in found) == MOST_TURNS


def test_answers_of_an_expert_are_no_conversations():
    expert = replace(rollout([1], [5, 6], [0.0, 0.0]), origin=Origin.EXPERT)
    found = measured(tokens(), [*ROLLOUTS, expert])
    assert found["turns/mean"] == 2.0
