"""ERC and ROVER by hand."""

from functools import partial

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.algorithms.erc import erc
from bapo_lightning.algorithms.rover import rover
from bapo_lightning.objectives.clip import clip
from bapo_lightning.objectives.token_table import needs_at_entry, scored_at_entry, slopes


def exact(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_erc_cuts_the_gradient_where_the_entropy_has_left_its_range_and_keeps_the_number():
    made = table(
        exact(2, 2, 2, 2, 0), exact(1.1, 1.1, 1.1, 1.5, 1.1),
        entropy=exact(1.04, 1.06, 0.94, 0.96, 9.0), entry_entropy=exact(1, 1, 1, 1, 1), low=0.8, high=1.28,
    )  # fmt: skip
    assert erc(made).tolist() == pytest.approx([2.2, 2.2, 2.2, 2.56, 0])
    assert slopes(erc, made).tolist() == [2, 0, 0, 0, 0], "the fourth is clipped by its ratio"
    assert slopes(partial(erc, delta=0.07), made).tolist() == [2, 2, 2, 0, 0]


def test_erc_is_ppo_with_a_dual_clip_of_10_where_no_entropy_has_changed():
    made = table(
        exact(1, -1, -1, -1), exact(2, 0.5, 9, 11), entropy=0.3, entry_entropy=0.3, low=0.8, high=1.28
    )
    assert torch.equal(slopes(erc, made), slopes(partial(clip, dual_clip=10.0), made))
    assert slopes(erc, made).tolist() == [0, 0, -1, 0]


def test_a_certain_token_has_not_changed_and_one_that_became_uncertain_has():
    made = table(exact(1, 1, 1), entropy=exact(0, 0.1, 0), entry_entropy=exact(0, 0, 0.1), high=2.0)
    assert slopes(erc, made).tolist() == [1, 0, 0]


def test_rover_regresses_to_the_advantage_and_the_change_at_the_next_token():
    made = table(
        exact(0.5, 0.5, 0.5, -0.5), exact(1, 2, 1, 1), sequence=torch.tensor([0, 0, 0, 1]),
        mean_logp=exact(-3, -4, -5, -6), entry_mean_logp=exact(-3.5, -4.25, -4, -9),
    )  # fmt: skip
    log_two = exact(2).log()
    # targets 0.5 + 0.25, 0.5 - 1, 0.5 at the last token of its response, -0.5 in one of a single token
    expected = -torch.stack([exact(0.75), log_two + 0.5, exact(0.5), exact(0.5)]).flatten().square()
    torch.testing.assert_close(rover(made), expected)
    halved = partial(rover, beta=0.5, rho=2.0)
    # Q = 2 log r, targets 0.5 + 0.5 * 2 * 0.25 and 0.5 - 0.5 * 2 * 1
    torch.testing.assert_close(halved(made)[:2], -torch.cat([exact(0.75), 2 * log_two + 0.5]).square())
    assert slopes(rover, made)[0] == 1.5, "twice the target at ratio 1"


def test_what_an_objective_needs_is_known_through_its_options():
    assert needs_at_entry(erc) == ("entropy",) and needs_at_entry(clip) == ()
    assert needs_at_entry(partial(partial(rover, rho=2.0), beta=0.0)) == ("mean_logp",)

    @scored_at_entry("entropy", "mean_logp")
    class Own:
        pass

    assert needs_at_entry(Own) == needs_at_entry(Own()) == ("entropy", "mean_logp")
