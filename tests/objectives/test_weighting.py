import pytest
import torch

from bapo_lightning.objectives.weighting import fixed_length, sequence_mean, step_mean, token_mean, weigh

MASK = torch.tensor([[True, True, True, True], [True, False, False, False]])
VALUES = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 99.0, 99.0, 99.0]])


def test_the_weights_are_the_literal_numbers():
    assert token_mean(MASK, 5).tolist() == [pytest.approx([0.2] * 4), pytest.approx([0.2, 0, 0, 0])]
    assert sequence_mean(MASK, 2).tolist() == [[0.125] * 4, [0.5, 0, 0, 0]]
    assert sequence_mean(torch.zeros(1, 3), 1).tolist() == [[0.0, 0.0, 0.0]]
    assert fixed_length(MASK, 2, 8).tolist() == [[0.0625] * 4, [0.0625, 0, 0, 0]]


@pytest.mark.parametrize("weights", [lambda mask: token_mean(mask, 5), lambda mask: sequence_mean(mask, 2)])
def test_parts_of_the_minibatch_add_up_to_the_whole(weights):
    parts = sum((weights(MASK[row : row + 1]) * VALUES[row : row + 1]).sum() for row in range(2))
    torch.testing.assert_close(parts, (weights(MASK) * VALUES).sum())


def test_counts_may_be_tensors_and_masks_numbers():
    assert torch.equal(token_mean(MASK.long(), torch.tensor(5)), token_mean(MASK, 5))
    assert torch.equal(sequence_mean(MASK.double(), torch.tensor(2.0)), sequence_mean(MASK, 2))


def test_each_step_counts_alike_and_a_response_without_steps_is_one():
    assert step_mean(MASK, 4).tolist() == [[0.25] * 4, [0.25, 0, 0, 0]]
    assert torch.equal(weigh(step_mean, MASK, 5, 2, 4), step_mean(MASK, 4))
    assert torch.equal(weigh(step_mean, MASK, 5, 2), step_mean(MASK, 2))


@pytest.mark.parametrize(("weights", "name"), [
    (lambda: token_mean(MASK, 0), "total"),
    (lambda: sequence_mean(MASK, 0), "num_sequences"),
    (lambda: fixed_length(MASK, -1, 8), "num_sequences"),
    (lambda: fixed_length(MASK, 2, 0), "length"),
    (lambda: step_mean(MASK, 0), "num_steps"),
])  # fmt: skip
def test_a_normaliser_that_is_not_positive_is_refused(weights, name):
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        weights()
