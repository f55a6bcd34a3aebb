"""Options of objectives that cannot be are refused before a run starts."""

import pytest
from tests.configuration.compositions import found


@pytest.mark.parametrize(
    ("algorithm", "option", "sentence"),
    [
        ("topr", "level=word", "level=word is none of its values; write one of sequence, token, geometric"),
        ("dppo", "divergence=js", "divergence=js is none of its values; write one of tv, kl"),
        ("dro", "beta=0", "beta=0 must be a positive number"),
        ("tis", "cap=0", "cap=0 must be positive"),
        ("aspo", "widening=0.5", "widening=0.5 must be at least 1"),
        ("ce_gppo", "dual_clip=0.5", "dual_clip=0.5 must be above 1"),
        ("maspo", "width=-1", "width=-1 must be a positive number"),
        ("erc", "delta=0", "delta=0 must be"),
        ("rover", "beta=-1", "beta=-1 must be"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_what_can(algorithm, option, sentence):
    (problem,) = found(f"algorithm={algorithm}", f"algorithm.objective.{option}")
    assert problem.startswith(f"algorithm.objective.{sentence}")


def test_another_reading_of_a_paper_is_an_option_of_its_objective():
    assert found("algorithm=topr", "algorithm.objective.level=geometric") == []
    assert found("algorithm=dppo", "algorithm.objective.cap=null") == []
