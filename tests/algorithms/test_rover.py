from functools import partial

import pytest
import torch
from tests.algorithms.by_hand import exact
from tests.algorithms.resuming import check_resumed_run
from tests.token_tables import table

from bapo_lightning.algorithms.rover import rover
from bapo_lightning.objectives.objective import needs_of, scores_at_entry, slopes


def test_it_regresses_to_the_advantage_and_the_change_at_the_next_token():
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


def test_it_asks_for_mean_log_probs_at_entry_and_now():
    with_options = partial(partial(rover, rho=2.0), beta=0.0)
    assert scores_at_entry(with_options) == ("mean_logp",)
    assert needs_of(with_options) == {"mean_logp", "entry_mean_logp"}


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path):
    own = "algorithm=rover", "regime=reuse", "correction=truncated_is"
    check_resumed_run(tmp_path, '"origin": "replayed"', *own)
