"""The checks of the zoo find what they are for."""

from dataclasses import replace

import numpy as np
import pytest
from tests.zoo import algorithms, reference, updates
from tests.zoo.check_zoo import LIMITS, too_far
from tests.zoo.reference import Reference, references


@pytest.fixture
def grpo():
    return algorithms.method("grpo")


def test_a_wrong_formula_is_far_from_the_reference_and_from_what_it_is_at_ratio_one(grpo):
    wrong = replace(grpo, objective=lambda table: 1.001 * table.ratio * table.advantage)
    assert reference.against_reference(wrong, references()["grpo"], 0) > 1e-4
    assert reference.at_one(wrong, references()["grpo"], 0) > 1e-4


def test_a_gradient_through_what_was_meant_as_a_constant_is_far_from_the_formula(grpo):
    cispo = Reference(lambda columns: columns["weight"] * columns["ratio"] * columns["advantage"])
    constant = replace(grpo, objective=lambda table: table.ratio.detach() * table.advantage * table.log_ratio)
    through = replace(grpo, objective=lambda table: table.ratio * table.advantage * table.log_ratio)
    assert reference.against_reference(constant, cispo, 0) < 1e-12
    assert reference.against_differences(constant, 0) < LIMITS["differences"], "detached numbers are frozen"
    assert reference.against_reference(through, cispo, 0) > 0.1


def test_an_objective_through_logp_has_no_slope(grpo):
    hidden = replace(grpo, objective=lambda table: table.advantage * table.logp)
    assert reference.against_slopes(hidden, (0, 1)) > 0.1


def test_a_mean_over_the_tokens_of_a_micro_batch_depends_on_the_split(grpo):
    centred = replace(grpo, objective=lambda table: table.ratio * (table.advantage - table.advantage.mean()))
    assert updates.over_splits(centred) > 1e-3
    assert updates.over_splits(algorithms.method("bapo_authors_code")) == updates.OWN_SEARCH


def test_a_mean_over_rows_is_none_over_tokens(grpo):
    def centred(table):
        return table.ratio * (table.advantage - table.entropy.mean())

    assert reference.over_merged_rows(replace(grpo, objective=centred), 0) > 1e-2
    assert reference.over_merged_rows(grpo, 0) < LIMITS["rows"]


def test_tables_have_ratios_on_both_sides_of_narrow_bounds_and_far_out():
    for seed in range(3):
        ratio = reference.random_columns(seed)["ratio"]
        for near in (3e-4, 0.2):
            assert ((ratio < 1 - near).mean() > 0.05) and ((ratio > 1 + near).mean() > 0.05)
            assert (np.abs(ratio - 1) < near).mean() > 0.05
        assert ratio.max() > 3 and ratio.min() < 1 / 3


def test_a_number_that_is_none_is_too_far():
    assert too_far({"reference": float("nan"), "split": 0.0, "at ratio 1": "not one"}) == ["reference"]
