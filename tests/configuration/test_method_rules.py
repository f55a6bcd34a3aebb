"""Algorithms and regimes that go together; the others are refused in one sentence."""

import pytest
from tests.configuration.compositions import found, names

REUSING = {"reuse", "spear", "pipo"}
SYNCHRONOUS = {*names("regime")} - {"async", "windowed_fifo"}
# Algorithms that need something of the regime, and the regimes that have it.
REGIMES_OF = {"spear": REUSING, "pipo": REUSING, "aepo": SYNCHRONOUS}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", names("algorithm"))
@pytest.mark.parametrize("regime", names("regime"))
def test_every_shipped_algorithm_and_regime_passes_or_is_refused_in_one_sentence(algorithm, regime):
    problems = found(f"algorithm={algorithm}", f"regime={regime}")
    if regime in REGIMES_OF.get(algorithm, {regime}):
        assert problems == []
    else:
        (problem,) = problems
        assert problem.startswith("algorithm.") and "; write regime=" in problem
