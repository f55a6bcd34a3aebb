"""Tables of lengths: means, limits and tails."""

import numpy as np
import pytest

from bapo_lightning.simulation.lengths import KINDS, length_table, table_of


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_mean_that_is_asked_for_within_the_limit(kind):
    table = length_table(kind, 400.0, 1000, spread=0.8)
    assert table.mean() == pytest.approx(400, rel=0.01)
    assert 1 <= table.min() <= table.max() <= 1000


def test_tails_are_ordered():
    def spread(kind, width):
        return length_table(kind, 400.0, 10_000, width).std()

    assert spread("constant", 0.0) == 0
    assert spread("lognormal", 0.4) < spread("geometric", 0.0) < spread("lognormal", 1.2)


def test_lengths_of_a_run_are_taken_as_they_are():
    assert table_of([3, 1]).tolist() == [3, 1]
    assert table_of([3, 1]).dtype == np.int64
    with pytest.raises(ValueError, match="no lengths"):
        table_of([])
