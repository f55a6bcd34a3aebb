import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.algorithms.by_hand import check_rule_memory, past_group
from tests.algorithms.resuming import check_resumed_run
from tests.configuration.compositions import found
from tests.data.rollouts.turns import ANSWER, CALL, FAILED, VOID, sample, talk
from tests.origins import check_layouts
from tests.token_tables import table

from bapo_lightning.algorithms.spear import SPEAR, SelfImitation, ToolCallReward
from bapo_lightning.objectives.objective import slopes
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.types import Origin

SPEAR_TURNS = "algorithm=spear_turns", "regime=spear"
REPLAYED = int(Origin.REPLAYED)


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
    one = past_group("a", [1.0, 0.0, 0.5], [2.0, -1.0, 0.5])
    kept = SelfImitation(above=1.0).kept(one)
    assert (kept.samples, kept.advantages) == (one.samples[:1], (2.0,))
    assert SelfImitation(above=2.0).kept(one) is None
    expert = replace(one.samples[0], rollout=replace(one.samples[0].rollout, origin=Origin.EXPERT))
    kept = SelfImitation().kept(replace(one, samples=(expert, *one.samples[1:])))
    assert (kept.samples, kept.advantages) == (one.samples[2:], (0.5,))


def test_its_advantages_are_what_exceeds_the_median_of_earlier_group_means():
    rule = SelfImitation(window=3, ramp=4)
    assert not rule.is_ready
    rule.valued([], [past_group("a", [0.0, 0.2]), past_group("b", [1.0, 0.0])])  # means 0.1 and 0.5
    assert rule.is_ready
    fresh = [past_group("d", [1.0, 1.0]), past_group("e", [1.0, 0.6])]
    (again,) = rule.valued([past_group("c", [1.0, 0.2])], fresh)
    assert again.advantages == pytest.approx((0.7, 0.0))  # 1 - 0.3, and nothing below the baseline
    assert again.weight == pytest.approx((1 - math.cos(math.pi * 2 / 4)) / 2)
    (again,) = rule.valued([past_group("c", [1.0, 0.2])], [])  # of the last three means: 0.5, 1.0, 0.8
    assert again.advantages == pytest.approx((0.2, 0.0))
    rule.valued([], [])
    assert rule.valued([past_group("c", [1.0])], [])[0].weight == 1.0  # the ramp is over


def test_the_rule_goes_on_from_its_state():
    check_rule_memory(lambda: SelfImitation(window=3))


def test_self_imitation_can_ask_for_calls_and_never_keeps_what_is_not_trained_on():
    group = past_group("a", [0.0])
    calling, silent = sample(talk(FAILED, ANSWER)), sample(talk(ANSWER))
    left_out = replace(calling, is_trained=False)
    mixed = replace(group, samples=(silent, calling, left_out), advantages=(1.0, 2.0, 3.0))
    assert SelfImitation().kept(mixed).samples == (silent, calling)
    kept = SelfImitation(needs_call=True).kept(mixed)
    assert (kept.samples, kept.advantages) == ((calling,), (2.0,))
    assert SelfImitation(needs_call=True).kept(replace(mixed, samples=(silent,) * 3)) is None


def test_turns_with_a_call_are_rewarded_up_to_a_limit_and_less_and_less():
    rule = ToolCallReward(per_call=0.1, most=0.25, decay_updates=4)
    counts = {n: rule.shape(talk(*[CALL] * n, ANSWER), 0) for n in range(5)}
    assert list(counts.values()) == pytest.approx([0.0, 0.1, 0.2, 0.25, 0.25])
    several = replace(CALL, calls=7)
    # One for each turn, whatever came of it.
    assert rule.shape(talk(several, FAILED, VOID), 0) == pytest.approx(0.2)
    over_time = [rule.shape(talk(CALL, CALL), version) for version in range(7)]
    assert over_time == pytest.approx([0.2, 0.2 * (1 + 0.5**0.5) / 2, 0.1, 0.2 * (1 - 0.5**0.5) / 2, 0, 0, 0])
    assert all(earlier >= later for earlier, later in pairwise(over_time))


def test_all_that_needs_turns_is_named_where_there_are_none():
    shaping, replay = sorted(found(*SPEAR_TURNS))
    ending = " without an environment: a response is one turn"
    assert shaping.startswith(f"algorithm.rules.turn_shaping{ending}")
    assert replay.startswith(f"algorithm.stages.replay.needs_call{ending}")


def test_past_groups_must_be_kept():
    (text,) = found("algorithm=spear")
    assert "regime=replay keeps none; write regime=reuse" in text


@pytest.mark.slow
def test_a_run_with_tools_goes_on_as_if_it_had_never_stopped(tmp_path):
    repeats = [f"algorithm.rules.sample_filter.{option}=2" for option in ("repeats", "ngram")]
    sign = r'(?s)"origin": "replayed".*"rollout/filtered_samples": [1-9]'
    check_resumed_run(tmp_path, sign, *SPEAR_TURNS, *repeats, experiment="sums", batches=6)
