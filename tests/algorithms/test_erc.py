from functools import partial

import pytest
import torch
from tests.algorithms.by_hand import exact
from tests.algorithms.resuming import PARTIAL, check_resumed_run
from tests.token_tables import table

from bapo_lightning.algorithms.erc import erc
from bapo_lightning.objectives.objective import clip, scores_at_entry, slopes


def test_it_cuts_the_gradient_where_the_entropy_has_left_its_range_and_keeps_the_number():
    made = table(
        exact(2, 2, 2, 2, 0), exact(1.1, 1.1, 1.1, 1.5, 1.1),
        entropy=exact(1.04, 1.06, 0.94, 0.96, 9.0), entry_entropy=exact(1, 1, 1, 1, 1), low=0.8, high=1.28,
    )  # fmt: skip
    assert erc(made).tolist() == pytest.approx([2.2, 2.2, 2.2, 2.56, 0])
    assert slopes(erc, made).tolist() == [2, 0, 0, 0, 0], "the fourth is clipped by its ratio"
    assert slopes(partial(erc, delta=0.07), made).tolist() == [2, 2, 2, 0, 0]


def test_it_is_ppo_with_a_dual_clip_of_10_where_no_entropy_has_changed():
    own = {"entropy": 0.3, "entry_entropy": 0.3, "low": 0.8, "high": 1.28}
    made = table(exact(1, -1, -1, -1), exact(2, 0.5, 9, 11), **own)
    assert torch.equal(slopes(erc, made), slopes(partial(clip, dual_clip=10.0), made))
    assert slopes(erc, made).tolist() == [0, 0, -1, 0]


def test_a_certain_token_has_not_changed_and_one_that_became_uncertain_has():
    made = table(exact(1, 1, 1), entropy=exact(0, 0.1, 0), entry_entropy=exact(0, 0, 0.1), high=2.0)
    assert slopes(erc, made).tolist() == [1, 0, 0]


def test_it_asks_for_the_entropy_at_entry():
    assert scores_at_entry(erc) == ("entropy",)


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path):
    check_resumed_run(tmp_path, '"time/proximal_seconds"', "algorithm=erc", *PARTIAL)
