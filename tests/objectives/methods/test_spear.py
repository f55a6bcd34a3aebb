import torch
from tests.token_tables import table

from bapo_lightning.algorithms.spear import kept_tokens, spear
from bapo_lightning.objectives.token_table import slopes
from bapo_lightning.types import Origin

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
    other = type(whole)(*(getattr(whole, name)[order] for name in whole.__dataclass_fields__))
    assert torch.equal(kept_tokens(whole)[order], kept_tokens(other))


def test_tokens_left_out_have_no_gradient_and_all_others_that_of_ppo():
    made = table(
        [1.0, -2.0, 1.0, -2.0, 1.0], torch.tensor([1.1, 0.9, 1.3, 0.7, 1.0]), low=0.8, high=1.28,
        statistic=torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]),
    )  # fmt: skip
    assert slopes(spear, made).tolist() == [1.0, -2.0, 0.0, 0.0, 0.0]
