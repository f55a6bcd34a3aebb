import pytest
import torch

from bapo_lightning.objectives.divergence import k3


def test_the_estimate_of_one_token_is_the_literal_number() -> None:
    log_ratio = torch.tensor([0.0, 0.6931472, -0.6931472])  # r = 1, 2, 1/2
    assert k3(log_ratio).tolist() == pytest.approx([0.0, 0.3068528, 0.1931472])


def test_its_mean_is_the_kl_from_behaviour_to_policy() -> None:
    behaviour, policy = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.25, 0.25, 0.5])
    log_ratio = (policy / behaviour).log()
    # sum of behaviour * log(behaviour / policy) = 0.2180119
    expected = 0.5 * 0.6931472 + 0.3 * 0.1823216 - 0.2 * 0.9162907
    assert (behaviour * k3(log_ratio)).sum().item() == pytest.approx(expected, rel=1e-6)


def test_it_keeps_its_digits_close_to_equal_policies() -> None:
    assert k3(torch.tensor([1e-3], dtype=torch.float64)).item() == pytest.approx(5.0016670834e-7, rel=1e-9)
    assert (k3(torch.linspace(-3, 3, 101).view(1, 101)) >= 0).all()
