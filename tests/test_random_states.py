"""The global random generators, saved and put back."""

import random

import numpy as np
import torch

from bapo_lightning.random_states import random_states, random_states_kept, set_random_states


def draw():
    return random.gauss(0, 1), random.random(), np.random.standard_normal(), float(torch.randn(()))


def test_the_same_is_drawn_again_after_a_round_through_a_file(tmp_path):
    draw()  # so that the second halves of Gaussian pairs are pending
    torch.save(random_states(), tmp_path / "states.pt")
    first = [draw() for _ in range(3)]
    set_random_states(torch.load(tmp_path / "states.pt", weights_only=True))
    assert [draw() for _ in range(3)] == first


def test_draws_inside_are_as_if_they_had_not_been():
    states = random_states()
    first = draw()
    set_random_states(states)
    with random_states_kept():
        draw()
    assert draw() == first
