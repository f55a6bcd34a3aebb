"""Applied Compute's formula of staleness: its published rows, its parts by hand, and simulated streams."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from tests.extras.simulation.worlds import setting

from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.extras.simulation.fleet import EngineTimes
from bapo_lightning.extras.simulation.law import admitted_queue, in_updates, mean_staleness, tail_factor
from bapo_lightning.extras.simulation.lengths import length_table
from bapo_lightning.extras.simulation.run import VirtualRun
from bapo_lightning.extras.simulation.study import outcome_of
from bapo_lightning.extras.simulation.times import ServiceTimes

GROUP, GROUPS = 4, 16
LENGTHS = length_table("lognormal", 400.0, 4000, 0.8)
EQUAL = length_table("constant", 400.0, 4000, 0.0)


@pytest.mark.parametrize(("row", "here", "published"), [
    ((120, 240, 1.42, 0.63, 2), 1.34, 1.34),
    ((240, 120, 1.43, 0.92, 2), 3.78, 3.86),
    ((128, 128, 1.44, 1.07, 2), 3.25, 3.29),
    ((240, 120, 1.42, 0.86, 1), 3.70, 3.34),
    ((120, 120, 1.42, 0.67, 1), 2.09, 1.95),
    ((128, 128, 1.45, 1.14, 1), 2.21, 2.24),
])  # fmt: skip
def test_published_rows_are_reproduced_except_for_short_queues_and_slow_generation(row, here, published):
    concurrency, batch, tail, rho, queue = row
    found = mean_staleness(concurrency, batch, tail, rho, queue)
    assert round(found, 2) == here
    assert (abs(found - published) < 0.085) == (queue == 2 or rho > 1)


def test_the_tail_factor_is_the_mean_over_all_groups_of_the_table():
    table = [5, 1, 3, 3, 12]
    longest = Fraction(sum(max(group) for group in product(table, repeat=3)), 5**3)
    assert tail_factor(np.array(table), 3) == pytest.approx(float(longest / Fraction(sum(table), 5)))
    assert tail_factor(np.array(table), 1) == pytest.approx(1.0)
    assert tail_factor(EQUAL, 16) == pytest.approx(1.0)


def test_updates_on_a_batch_add_their_mean_if_responses_start_between_two_batches():
    assert in_updates(2.0, 1, 0.5) == 2.0
    assert in_updates(2.0, 4, 1.0) == 8.0
    assert in_updates(2.0, 4, 0.0) == in_updates(2.0, 4, float("inf")) == 8.0 + 1.5
    assert in_updates(2.0, 4, 0.5) == in_updates(2.0, 4, 2.0) == 8.0 + 0.75


def test_admission_leaves_places_that_are_not_generated():
    regime = Regime("test", 1, 4, async_generation=True, max_age=15)
    assert admitted_queue(regime, 8, 0.0) == 3.0
    assert admitted_queue(regime, 8, 1.25) == 1.75
    assert admitted_queue(regime, 8, 3.25) == 0.0
    assert admitted_queue(replace(regime, window=5), 8, 1.25) == 1.25
    assert admitted_queue(replace(regime, window=5, batches_in_flight=2), 8, 0.0) == 2.0
    assert admitted_queue(replace(regime, max_age=3), 8, 0.0) == 0.0


def streamed(lengths, minibatches, ahead, slots, rho):
    """A stream of `slots` requests at once; full, it makes `rho` batches while one trains."""
    own = {"async_generation": True, "stream": "keep", "max_new_tokens": 4000, "is_endless": True}
    own |= {"group_size": GROUP, "groups_per_batch": GROUPS, "num_batches": 24, "lengths": lengths}
    made = setting(**own, minibatches=minibatches, max_age=(ahead + 1) * minibatches - 1)
    update = rho * GROUP * GROUPS * float(lengths.mean()) / slots / minibatches
    run = VirtualRun(made, ServiceTimes(1, EngineTimes(1.0, slots=slots), lambda responses: update))
    run.run()
    return outcome_of(run, 10)


@pytest.mark.parametrize(("rho", "tolerance"), [(0.3, 0.05), (0.6, 0.05), (0.75, 0.05), (0.9, 0.08)])
@pytest.mark.parametrize("minibatches", [1, 4])
def test_law_and_simulation_agree_while_admission_does_not_bind(minibatches, rho, tolerance):
    """Near rho = 1 chance makes batches wait for the trainer; below 1 the formula has no queue."""
    found = streamed(LENGTHS, minibatches, 20, 32, rho)
    assert (found.requests, found.evicted) == (32.0, 0)
    assert found.rho == pytest.approx(rho, rel=0.1)  # of the lengths that were drawn
    assert found.law_age == pytest.approx(found.start_age, rel=tolerance)


@pytest.mark.parametrize("ahead", [2, 4])
def test_admission_keeps_a_stream_that_is_too_fast_exactly_so_many_batches_ahead(ahead):
    """The formula is below by (q - 1 / 2) (1 - 1 / rho)."""
    found = streamed(EQUAL, 1, ahead, 32, 2.0)
    assert found.rho == pytest.approx(2.0, rel=0.02)
    assert found.start_age == ahead
    assert found.queue == pytest.approx(ahead - 0.25, abs=0.01)
    assert found.law_age == pytest.approx(ahead - (found.queue - 0.5) * (1 - 1 / found.rho), abs=1e-6)


def test_a_stream_that_never_rests_has_a_rho_of_one_and_the_age_of_admission():
    found = streamed(LENGTHS, 1, 3, 32, 1.5)
    assert found.requests < 24 and found.rho == pytest.approx(1.0, abs=0.02)
    assert found.law_age == pytest.approx(3.0, abs=0.05)
    assert found.start_age == pytest.approx(3.0, abs=0.05)


def test_if_admission_bounds_the_requests_of_a_slow_stream_the_formula_is_too_high():
    found = streamed(EQUAL, 1, 3, 256, 0.4)
    assert found.start_age == 3.0
    assert found.law_age == pytest.approx(3.92, abs=0.01)
