"""One answer to each problem: which advantages allow it."""

import pytest
from tests.configuration.compositions import found


@pytest.mark.parametrize("algorithm", ["spo", "psr", "nsr", "w_reinforce", "reinforce_pp"])
def test_advantages_without_a_group_need_one_answer(algorithm):
    assert found(f"algorithm={algorithm}", "scale.group_size=1") == []


@pytest.mark.parametrize("algorithm", ["rloo", "maxrl", "asymre", "reinforce_pp_baseline"])
def test_advantages_that_compare_answers_need_several(algorithm):
    (complaint,) = found(f"algorithm={algorithm}", "scale.group_size=1")
    assert complaint.startswith("scale.group_size=1 is refused by the advantages: a group of 1 ")
    assert complaint.endswith("write scale.group_size=8")


def test_what_a_tracker_keeps_is_a_share():
    (complaint,) = found("algorithm=spo", "algorithm.stages.batch_advantages.advantages.keep=1.0")
    assert "algorithm.stages.batch_advantages.advantages.keep=1.0 must be in [0, 1)" in complaint
