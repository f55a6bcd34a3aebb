import pytest
import torch
from tests.algorithms.by_hand import exact, prepared, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.real import REAL

HOMONYMS = {"real": "real numbers"}


def of_groups(log_ratio, advantage, temperature=0.5):
    """Two groups of three responses; the first has responses of two tokens."""
    made = table(
        advantage, log_ratio.exp(), sequence=torch.tensor([0, 0, 1, 1, 2, 2, 3, 4, 5]),
        group=torch.tensor([0] * 6 + [1] * 3),
    )  # fmt: skip
    return prepared(REAL(temperature), made)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_it_has_the_gradient_of_the_loss_it_is_named_after(temperature):
    log_ratio = exact(0.5, -0.1, 0.3, 0.2, -0.7, 0.1, 2.0, -3.0, 0.4)
    made = of_groups(log_ratio, exact(1, 1, -1, -1, 1, 1, -2, 1, 1), temperature)
    weight = 1 / (6 * exact(2, 2, 2, 2, 2, 2, 1, 1, 1))  # a mean over responses
    found = pulls(lambda each: weight * REAL(temperature)(each), made)
    log_ratio.requires_grad_()
    a, b, c = log_ratio[:6].view(3, 2).mean(1) / temperature
    d, e, f = log_ratio[6:] / temperature
    losses = (1 + (-a).exp() + (-c).exp()).log() + (1 + b.exp()).log()
    losses += (1 + (-e).exp() + (-f).exp()).log() + (1 + d.exp()).log()
    (expected,) = torch.autograd.grad(-losses / 2, log_ratio)
    assert found == pytest.approx(expected.tolist())


def test_groups_of_one_class_are_left_alone():
    made = of_groups(torch.zeros(9, dtype=torch.float64), exact(*[0] * 6, 1, 1, 1))
    assert pulls(REAL(), made) == [0] * 9


def test_far_out_it_is_finite():
    made = of_groups(exact(*[-20] * 6, 20, 20, 20), exact(1, 1, -1, -1, 1, 1, -1, 1, -1))
    found = pulls(REAL(), made)
    assert found[:2] == pytest.approx([3 / 0.5 / 2] * 2), "2 right ones of 3 share 1 / temperature"
    assert max(map(abs, found)) <= 3 / 0.5
