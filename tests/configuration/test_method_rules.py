"""Algorithms and regimes that go together; the others are refused in one sentence."""

import pytest
from tests.configuration.compositions import found, names, problems_of, unresolved, validated

from bapo_lightning.configuration.compose import resolve

REUSING = {"reuse", "spear", "pipo"}
SYNCHRONOUS = {*names("regime")} - {"async", "stream", "windowed_fifo"}
CRITIC = "algorithm.stages.step_advantages.critic"
# Algorithms that need something of the regime, and the regimes that have it.
REGIMES_OF = {"spear": REUSING, "spear_turns": REUSING, "pipo": REUSING, "aepo": SYNCHRONOUS}
# And those that need something else.
TURNS = ["environment=calculator", "scale.max_feedback_tokens=32"]
NEEDED = {"simpletir": TURNS, "spear_turns": TURNS}


def needs(algorithm, folder):
    """Overrides without which an algorithm is refused, whatever the regime."""
    if algorithm == "direct_advantage":
        from tests.algorithms.direct_advantage.critics import written_description  # no need without it

        return [f"{CRITIC}={written_description(folder)}"]
    return NEEDED.get(algorithm, [])


def names_a_regime(problem):
    return problem.startswith("algorithm.") and "; write regime=" in problem


def test_batches_are_scored_at_entry_where_the_objective_or_a_correction_asks_for_it():
    asked = {
        (): (),
        ("algorithm=erc",): ("entropy",),
        ("algorithm=rover", "correction=a3po"): ("mean_logp",),
        ("correction=recomputed",): ("logp",),
        ("algorithm=erc", "correction=truncated_is"): ("logp", "entropy"),
    }
    assert {overrides: validated(*overrides).entry_scores for overrides in asked} == asked


@pytest.mark.parametrize("algorithm", names("algorithm"))
def test_every_shipped_algorithm_passes_in_a_regime_that_has_what_it_needs(algorithm, tmp_path):
    regime = [f"regime={min(REGIMES_OF[algorithm])}"] if algorithm in REGIMES_OF else []
    assert found(f"algorithm={algorithm}", *regime, *needs(algorithm, tmp_path)) == []


@pytest.mark.parametrize("algorithm", REGIMES_OF)
def test_an_algorithm_is_refused_in_a_regime_that_lacks_what_it_needs(algorithm, tmp_path):
    other = min({*names("regime")} - REGIMES_OF[algorithm])
    (problem,) = found(f"algorithm={algorithm}", f"regime={other}", *needs(algorithm, tmp_path))
    assert names_a_regime(problem)


@pytest.mark.slow
def test_every_shipped_algorithm_and_regime_passes_or_is_refused_in_one_sentence(tmp_path):
    regimes = {name: unresolved(f"regime={name}").regime for name in names("regime")}
    wrong = {}
    for algorithm in names("algorithm"):
        config = unresolved(f"algorithm={algorithm}", *needs(algorithm, tmp_path))
        for name, regime in regimes.items():
            config.regime = regime  # as Hydra would choose it: no file of either group reaches into the other
            problems = problems_of(resolve(config))
            expected = [] if name in REGIMES_OF.get(algorithm, {name}) else [True]
            if [names_a_regime(problem) for problem in problems] != expected:
                wrong[algorithm, name] = problems
    assert wrong == {}
