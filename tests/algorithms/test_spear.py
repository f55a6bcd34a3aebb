"""SPEAR: the tokens that it leaves out, and the past groups that it imitates, by hand."""

import math
from dataclasses import replace

import pytest
import torch
from tests.builders import rollout
from tests.configuration.compositions import found
from tests.data.batches.past_groups import check_state, made
from tests.origins import check_layouts
from tests.token_tables import table

from bapo_lightning.algorithms.spear import SPEAR, SelfImitation
from bapo_lightning.objectives.objective import slopes
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.types import Origin, Reply

REPLAYED = int(Origin.REPLAYED)
TURNS = ["environment=calculator", "scale.max_feedback_tokens=32"]


def tokens(origin=0, size=400, **columns):
    """Half of the tokens have a covariance of 1.5 x 2 = 3, and half of -3."""
    sign = torch.tensor([1.0, -1.0]).repeat(size // 2)
    # (A, log pi) of four kinds of tokens in turn: (1.5, 2), (-1.5, -2), (1.5, -2), (-1.5, 2)
    logp = 2 * sign * torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(size // 4)
    return table(
        1.5 * sign, logp=logp, behaviour_logp=logp, low=0.8, high=1.28, origin=torch.tensor(origin),
        **columns,
    )  # fmt: skip


def kept_tokens(made, **options):
    return SPEAR(**options).prepare(made)["kept"]


def test_a_share_of_the_tokens_between_the_limits_is_left_out_of_each_kind():
    covariance = torch.tensor([True, True, False, False]).repeat(100)  # 3, else -3
    dropped = kept_tokens(tokens(REPLAYED), replay_share=0.05) == 0
    assert dropped.sum() == 20 and bool((dropped <= covariance).all())  # 0.05 x 400
    assert (kept_tokens(tokens(0), fresh_share=0.01) == 0).sum() == 4
    assert (kept_tokens(tokens(0)) == 0).sum() == 1  # at least one
    assert (kept_tokens(tokens(0), fresh_low=3.5) == 0).sum() == 0
    assert (kept_tokens(tokens(REPLAYED), replay_share=1.0) == 0).sum() == 200  # there are no more


def test_the_means_are_those_of_a_kind():
    fresh, replayed = tokens(0, 40), tokens(REPLAYED, 40)
    shifted = torch.cat([fresh.advantage, replayed.advantage + 100.0])
    both = table(
        shifted, logp=torch.cat([fresh.logp, replayed.logp]),
        behaviour_logp=torch.cat([fresh.logp, replayed.logp]), low=0.8, high=1.28,
        origin=torch.tensor([0] * 40 + [REPLAYED] * 40),
    )  # fmt: skip
    dropped = kept_tokens(both, fresh_share=0.5, replay_share=0.5) == 0
    assert dropped.view(2, 10, 4).any(1).tolist() == [[True, True, False, False]] * 2


def test_clipped_tokens_and_those_of_others_are_not_drawn():
    assert (kept_tokens(tokens(int(Origin.EXPERT)), fresh_share=0.5) == 0).sum() == 0
    logp = tokens().logp
    far = table(tokens().advantage, 1.5, logp=logp, behaviour_logp=logp - 0.5, low=0.8, high=1.28)
    dropped = kept_tokens(far, fresh_share=1.0) == 0
    # r = e^0.5: positive tokens are clipped
    assert dropped.sum() == 100 and bool((far.advantage[dropped] < 0).all())


def test_the_draw_does_not_depend_on_the_order_of_responses():
    sequence, position = torch.arange(400) // 8, torch.arange(400) % 8
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0)).repeat_interleave(8) * 8 + position
    whole = tokens(REPLAYED, sequence=sequence, position=position)
    other = TokenTable.of({name: values[order] for name, values in whole.columns.items()})
    assert torch.equal(kept_tokens(whole)[order], kept_tokens(other))


def test_tokens_left_out_have_no_gradient_and_all_others_that_of_ppo():
    made = table(
        [1.0, -2.0, 1.0, -2.0, 1.0], torch.tensor([1.1, 0.9, 1.3, 0.7, 1.0]), low=0.8, high=1.28,
        prepared={"kept": torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])},
    )  # fmt: skip
    assert slopes(SPEAR(), made).tolist() == [1.0, -2.0, 0.0, 0.0, 0.0]


def test_the_gradient_depends_on_neither_split_nor_layout():
    check_layouts(SPEAR(), (Origin.POLICY, Origin.REPLAYED))


def test_self_imitation_keeps_what_the_policy_did_better_than_usual():
    one = made("a", [1.0, 0.0, 0.5], [2.0, -1.0, 0.5])
    kept = SelfImitation(above=1.0).kept(one)
    assert (kept.samples, kept.advantages) == (one.samples[:1], (2.0,))
    assert SelfImitation(above=2.0).kept(one) is None
    expert = replace(one.samples[0], rollout=replace(one.samples[0].rollout, origin=Origin.EXPERT))
    kept = SelfImitation().kept(replace(one, samples=(expert, *one.samples[1:])))
    assert (kept.samples, kept.advantages) == (one.samples[2:], (0.5,))


def test_its_advantages_are_what_exceeds_the_median_of_earlier_group_means():
    rule = SelfImitation(window=3, ramp=4)
    assert not rule.is_ready
    rule.valued([], [made("a", [0.0, 0.2]), made("b", [1.0, 0.0])])  # means 0.1 and 0.5
    assert rule.is_ready
    (again,) = rule.valued([made("c", [1.0, 0.2])], [made("d", [1.0, 1.0]), made("e", [1.0, 0.6])])
    assert again.advantages == pytest.approx((0.7, 0.0))  # 1 - 0.3, and nothing below the baseline
    assert again.weight == pytest.approx((1 - math.cos(math.pi * 2 / 4)) / 2)
    (again,) = rule.valued([made("c", [1.0, 0.2])], [])  # of the last three means: 0.5, 1.0, 0.8
    assert again.advantages == pytest.approx((0.2, 0.0))
    rule.valued([], [])
    assert rule.valued([made("c", [1.0])], [])[0].weight == 1.0  # the ramp is over


def test_it_can_ask_for_calls_and_never_keeps_what_is_not_trained_on():
    group = made("a", [1.0, 1.0, 1.0], (1.0, 2.0, 3.0))
    silent = group.samples[0]
    calling = replace(silent, rollout=replace(rollout([1], [2], [-1.0]), replies=(Reply(calls=1, errors=1),)))
    mixed = replace(group, samples=(silent, calling, replace(calling, is_trained=False)))
    assert SelfImitation().kept(mixed).samples == (silent, calling)
    kept = SelfImitation(needs_call=True).kept(mixed)
    assert (kept.samples, kept.advantages) == ((calling,), (2.0,))
    assert SelfImitation(needs_call=True).kept(replace(mixed, samples=(silent,) * 3)) is None


def test_self_imitation_goes_on_from_its_state():
    check_state(SelfImitation)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["algorithm=spear"], "regime=replay keeps none; write regime=reuse"),
        (
            ["algorithm=spear", "regime=spear", "algorithm.stages.replay.ramp=0"],
            "ramp=0 must be a whole number",
        ),
        (
            ["algorithm=spear_turns", "regime=spear"],
            "algorithm.turn_shaping, algorithm.stages.replay.needs_call without an environment",
        ),
        (
            [*TURNS, "algorithm=spear_turns", "regime=spear", "algorithm.turn_shaping.decay_updates=0"],
            "decay_updates=0 must be",
        ),
    ],
)
def test_one_mistake_gives_one_complaint_that_names_it(overrides, complaint):
    (text,) = found(*overrides)
    assert complaint in text


def test_with_an_environment_and_its_regime_calls_can_be_rewarded():
    assert found(*TURNS, "algorithm=spear_turns", "regime=spear") == []
