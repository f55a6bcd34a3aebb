"""The critic that a run asks for must be there, of its model, and the only one that gives advantages."""

from tests.algorithms.direct_advantage.critics import ADDITIONS, written_description
from tests.configuration.compositions import found

CRITIC = "algorithm.stages.step_advantages.critic"


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
    shaping = "+algorithm.rules.length_shaping._target_=bapo_lightning.data.rollouts.shaping.OverlongPenalty"
    limits = "+algorithm.rules.length_shaping.limit=32", "+algorithm.rules.length_shaping.buffer=8"
    (text,) = found(*own, shaping, *limits)
    assert text.startswith(
        "algorithm.stages.step_advantages gives every step its own advantage, by the verifier's scores, and "
        "algorithm.rules.length_shaping changes rewards"
    )
