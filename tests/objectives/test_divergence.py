import pytest
import torch

from bapo_lightning.objectives.divergence import k1, k2, k3


def test_the_estimators_of_one_token_are_the_literal_numbers() -> None:
    log_ratio = torch.tensor([0.0, 0.6931472, -0.6931472])  # r = 1, 2, 1/2
    assert k1(log_ratio).tolist() == pytest.approx([0.0, -0.6931472, 0.6931472])
    assert k2(log_ratio).tolist() == pytest.approx([0.0, 0.2402265, 0.2402265])
    assert k3(log_ratio).tolist() == pytest.approx([0.0, 0.3068528, 0.1931472])


def test_k1_and_k3_have_the_kl_from_behaviour_to_policy_as_their_mean() -> None:
    behaviour, policy = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.25, 0.25, 0.5])
    log_ratio = (policy / behaviour).log()
    expected = (
        0.5 * 0.6931472 + 0.3 * 0.1823216 - 0.2 * 0.9162907
    )  # sum of behaviour * log(behaviour / policy) = 0.2180119
    assert (behaviour * k1(log_ratio)).sum().item() == pytest.approx(expected, rel=1e-6)
    assert (behaviour * k3(log_ratio)).sum().item() == pytest.approx(expected, rel=1e-6)


def test_k3_keeps_its_digits_close_to_equal_policies() -> None:
    assert k3(torch.tensor([1e-3], dtype=torch.float64)).item() == pytest.approx(5.0016670834e-7, rel=1e-9)
    assert (k3(torch.linspace(-3, 3, 101).view(1, 101)) >= 0).all()
