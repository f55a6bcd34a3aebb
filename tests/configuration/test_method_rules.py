"""Algorithms and regimes that go together; the others are refused in one sentence."""

import pytest
from tests.configuration.compositions import found, names, validated

REUSING = {"reuse", "spear", "pipo"}
SYNCHRONOUS = {*names("regime")} - {"async", "windowed_fifo"}
# Algorithms that need something of the regime, and the regimes that have it.
REGIMES_OF = {"spear": REUSING, "pipo": REUSING, "aepo": SYNCHRONOUS}


def test_batches_are_scored_at_entry_where_the_objective_or_a_correction_asks_for_it():
    asked = {
        (): (),
        ("algorithm=erc",): ("entropy",),
        ("algorithm=rover", "correction=a3po"): ("mean_logp",),
        ("correction=recomputed",): ("logp",),
        ("algorithm=erc", "correction=truncated_is"): ("logp", "entropy"),
    }
    assert {overrides: validated(*overrides).entry_scores for overrides in asked} == asked


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
