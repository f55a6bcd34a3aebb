"""Numbers that no run means are refused in one sentence at the start."""

import pytest
from tests.configuration.compositions import found


@pytest.mark.parametrize(
    "override",
    [
        "rollout.temperature=1e30",
        "rollout.weight_sync.tolerance=1e30",
        "rollout.weight_sync.tolerance=1",
        "optimizer.optimizer.lr=1e-320",
        "cpu_threads=1000000",
        "cpu_threads=9007199254740993",
    ],
)
def test_an_extreme_is_refused_by_its_key(override):
    key = override.partition("=")[0].rpartition(".")[2]
    assert [key in text for text in found(override)][:1] == [True]
