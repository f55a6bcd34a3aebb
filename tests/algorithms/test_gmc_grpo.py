import numpy as np
import pytest
import torch
from tests.algorithms.by_hand import exact, prepared, pulls
from tests.token_tables import table
from tests.zoo.reference import Array, Columns, Reference, reinforce

from bapo_lightning.algorithms.gmc_grpo import GMCGRPO


def closed_form(columns: Columns) -> Array:
    """GMC-GRPO (arXiv 2610.01896): w s min(1, 1.28 G / sum of s) A, over the G responses of a group."""
    found = np.empty_like(columns["ratio"])
    for group in set(columns["group"].tolist()):
        rows = np.flatnonzero(columns["group"] == group)
        own = {
            name: rows[columns["sequence"][rows] == name] for name in set(columns["sequence"][rows].tolist())
        }
        ratios = {name: float(np.prod(columns["ratio"][places])) for name, places in own.items()}
        scale = min(1.0, 1.28 * len(ratios) / sum(ratios.values()))
        for name, places in own.items():
            found[places] = scale * ratios[name]
    return found * reinforce(columns)


REFERENCES = {"gmc_grpo": Reference(closed_form)}
HARMLESS = {"a cap of a group that is never reached": ((1e30, 10**9, 2**53 + 1), "GMCGRPO.cap")}

# Two responses of two tokens and one; a group of one response each.
SEQUENCE, GROUP = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0, 0, 1])


def made(objective, *ratios):
    own = table(exact(1, 1, -1, 1), exact(*ratios), sequence=SEQUENCE, group=GROUP)
    return pulls(objective, prepared(objective, own))


def test_responses_of_a_group_above_the_cap_shrink_together():
    # The group has ratios of 4 and 1 and may have 2 * 1.25, so that they become 2 and 0.5.
    assert made(GMCGRPO(1.25), 2, 2, 1, 1.2) == pytest.approx([2.0, 2.0, -0.5, 1.2])


def test_a_group_below_the_cap_has_the_weights_of_its_responses():
    assert made(GMCGRPO(3.0), 2, 2, 1, 1.2) == pytest.approx([4.0, 4.0, -1.0, 1.2])


def test_ratios_beyond_all_numbers_stay_finite():
    assert made(GMCGRPO(1.5), 1e30, 1e30, 1, 1) == pytest.approx([3.0, 3.0, 0.0, 1.0])
