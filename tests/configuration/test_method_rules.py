"""Algorithms and regimes that go together; the others are refused in one sentence."""

import pytest
from tests.algorithms.direct_advantage.critics import ADDITIONS, written_description
from tests.configuration.compositions import found, names, problems_of, unresolved, validated

from bapo_lightning.configuration.compose import resolve

REUSING = {"reuse", "spear", "pipo"}
SYNCHRONOUS = {*names("regime")} - {"async", "windowed_fifo"}
CRITIC = "algorithm.stages.step_advantages.critic"
# Algorithms that need something of the regime, and the regimes that have it.
REGIMES_OF = {"spear": REUSING, "spear_turns": REUSING, "pipo": REUSING, "aepo": SYNCHRONOUS}
# And those that need something else.
TURNS = ["environment=calculator", "scale.max_feedback_tokens=32"]
NEEDED = {"simpletir": TURNS, "spear_turns": TURNS}


def needs(algorithm, folder):
    """Overrides without which an algorithm is refused, whatever the regime."""
    if algorithm == "direct_advantage":
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


@pytest.mark.parametrize("regime", names("regime"))
def test_every_shipped_regime_passes(regime):
    assert found(f"regime={regime}") == []


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


def test_steps_need_a_critic_that_is_there_and_of_this_model(tmp_path):
    (missing,) = found("algorithm=direct_advantage")
    assert missing == (
        "algorithm.stages.step_advantages needs a critic that is trained first: make critic EXP=additions "
        "TO=FOLDER; then write algorithm.stages.step_advantages.critic=FOLDER"
    )
    (nowhere,) = found("algorithm=direct_advantage", f"{CRITIC}=no/such/folder")
    assert nowhere.startswith(f"{CRITIC}=no/such/folder is no model folder; make one: make critic EXP=")
    (policy,) = found("algorithm=direct_advantage", f"{CRITIC}={ADDITIONS}")
    assert "is a model, but no critic of steps; make one: make critic EXP=additions" in policy
    other = written_description(tmp_path, model=ADDITIONS.replace("additions/model", "locks/model"))
    (foreign,) = found("algorithm=direct_advantage", f"{CRITIC}={other}")
    assert "was made of another model, with 42 tokens; model.path=" in foreign


def test_a_critic_that_gives_advantages_is_the_only_one_and_needs_no_group(tmp_path):
    own = "algorithm=direct_advantage", f"{CRITIC}={written_description(tmp_path)}"
    assert found(*own, "scale.group_size=1") == []
    shaping = "+algorithm.rules.long._target_=bapo_lightning.data.rollouts.shaping.OverlongPenalty"
    limits = "+algorithm.rules.long.limit=32", "+algorithm.rules.long.buffer=8"
    (text,) = found(*own, shaping, *limits)
    assert text.startswith(
        "algorithm.stages.step_advantages gives every step its advantage by the verifier's scores, and "
        "algorithm.rules.long changes rewards"
    )
