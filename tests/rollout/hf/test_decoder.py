import pytest
import torch
from transformers import DynamicCache

from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.hf.decoder import BLOCK, sample_tokens, tokens_at
from bapo_lightning.rollout.hf.reader import move_rows, roomy_cache


def test_a_draw_picks_the_token_at_its_share_of_the_cumulative_probability():
    logits = torch.tensor([0.5, 0.0, 0.25, 0.25]).log().expand(5, 4)
    draws = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.999999999], dtype=torch.float64)
    tokens, logprobs, of_all = sample_tokens(logits, SamplingParams(1.0, ()), draws)
    assert tokens.tolist() == [0, 0, 2, 2, 3]  # never token 1, which has no mass
    assert logprobs.exp().tolist() == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.25])
    assert torch.equal(of_all, logits.log_softmax(-1))


@pytest.mark.parametrize("size", [3, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_the_search_in_blocks_finds_what_one_cumulative_sum_over_all_tokens_finds(size):
    generator = torch.Generator().manual_seed(size)
    mass = torch.rand(200, size, generator=generator) * (torch.rand(200, size, generator=generator) < 0.3)
    mass[:, -1] = 0.5
    draws = torch.rand(200, dtype=torch.float64, generator=generator)
    cumulative = mass.double().cumsum(-1)
    expected = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True)[:, 0]
    assert tokens_at(mass, draws).tolist() == expected.tolist()


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-53])
def test_the_first_and_the_last_draw_meet_tokens_with_mass(draw):
    mass = torch.zeros(2, 2 * BLOCK + 7)
    mass[0, 5], mass[0, BLOCK + 9] = 0.1, 0.9
    mass[1, BLOCK + 1] = 1e-30
    chosen = tokens_at(mass, torch.full((2,), draw, dtype=torch.float64))
    assert chosen.tolist() == [5 if draw == 0 else BLOCK + 9, BLOCK + 1]


def states(rows, tokens, seed):
    draws = [torch.Generator().manual_seed(seed + part) for part in range(2)]
    return [torch.randn(rows, 2, tokens, 4, generator=each) for each in draws]


def test_it_holds_what_the_dynamic_cache_holds_through_repeats_and_cuts():
    ours, theirs = roomy_cache(9), DynamicCache()
    first, second, third, last = states(2, 3, 0), states(5, 1, 10), states(2, 1, 20), states(2, 4, 30)
    for item in (first, torch.tensor([1, 0, 0, 1, 1]), second, torch.tensor([4, 0]), third, last):
        if isinstance(item, torch.Tensor):
            move_rows(ours, item)
            move_rows(theirs, item)
        else:
            for layer in range(2):
                for mine, other in zip(ours.update(*item, layer), theirs.update(*item, layer), strict=True):
                    assert torch.equal(mine, other)
        assert ours.get_seq_length() == theirs.get_seq_length()


def test_a_step_copies_nothing_of_what_is_there_and_more_than_there_is_room_for_is_an_error():
    cache = roomy_cache(4)
    before = cache.update(*states(2, 3, 0), 0)[0]
    after = cache.update(*states(2, 1, 1), 0)[0]
    assert before.data_ptr() == after.data_ptr()
    with pytest.raises(RuntimeError):
        cache.update(*states(2, 1, 0), 0)
