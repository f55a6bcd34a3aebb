"""Every algorithm has the gradient of its formula, whatever the layout of the tokens; `make check-zoo` prints
the numbers.
"""

import pytest
from tests.zoo import algorithms, updates
from tests.zoo.check_zoo import checks, too_far
from tests.zoo.reference import references

NAMES = sorted(references())


def test_every_algorithm_has_a_reference_and_every_reference_an_algorithm():
    assert algorithms.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_the_formula_and_does_not_depend_on_the_layout(name):
    found = checks(name)
    assert not too_far(found), found


@pytest.mark.slow
def test_the_gradient_over_two_ranks_is_that_of_one_process(tmp_path):
    found = updates.over_ranks(NAMES, tmp_path)
    assert list(found) == NAMES
    assert {name: value for name, value in found.items() if too_far({"ranks": value})} == {}
