import pytest
import torch
from transformers import DynamicCache

from bapo_lightning.rollout.hf.kv_cache import move_rows, roomy_cache


def states(rows, tokens, seed):
    return [
        torch.randn(rows, 2, tokens, 4, generator=torch.Generator().manual_seed(seed + part))
        for part in range(2)
    ]


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
