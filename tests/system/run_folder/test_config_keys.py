"""Every question about a configuration key is answered from its one role."""

import pytest

from bapo_lightning.system.run_folder.config_keys import (
    Role,
    is_listed,
    is_place,
    is_setting,
    may_change_on_resume,
    may_differ_in_evaluation,
    names_evaluation,
    role_of,
    should_be_alike,
)

# A key of each role, and the questions of which the answer is yes.
ANSWERS = {
    "run_folder": (Role.PLACE, "place resume evaluation"),
    "callbacks.rollout_writer.folder": (Role.PLACE, "place resume evaluation"),
    "name": (Role.NAME, "listed"),
    "algorithm.name": (Role.NAME, "listed"),
    "seed": (Role.SEED, "names"),
    "logger.wandb.offline": (Role.LOGGER, "resume evaluation"),
    "callbacks.checkpoint.every": (Role.RECORDING, "resume listed names"),
    "data.validation.aime24.path": (Role.VALIDATION, "resume alike listed evaluation"),
    "scale.num_rollout_batches": (Role.LENGTH, "resume alike listed evaluation"),
    "rollout.engine.cpu_threads": (Role.OPERATION, "resume alike listed evaluation"),
    "rollout.engine._target_": (Role.COMPUTATION, "resume alike listed names"),
    "model.packing": (Role.COMPUTATION, "resume alike listed names"),
    "trainer.precision": (Role.PRECISION, "resume setting alike listed names"),
    "model.path": (Role.WEIGHTS, "setting alike listed evaluation"),
    "regime.epochs": (Role.CONDITION, "alike listed names"),
    "algorithm.bounds.low": (Role.ALGORITHM, "setting listed names"),
    "rollout.temperature": (Role.LEARNING, "setting alike listed names"),
    "model.lora.rank": (Role.LEARNING, "setting alike listed names"),
    "data.train": (Role.LEARNING, "setting alike listed names"),
}


def test_every_role_has_a_key():
    assert {role for role, _ in ANSWERS.values()} == set(Role)


@pytest.mark.parametrize("key", ANSWERS)
def test_a_role_answers_all_questions(key):
    role, expected = ANSWERS[key]
    answers = {
        "place": is_place(key), "setting": is_setting(key), "resume": may_change_on_resume(key),
        "alike": should_be_alike(key), "listed": is_listed(key), "evaluation": may_differ_in_evaluation(key),
        "names": names_evaluation(key),
    }  # fmt: skip
    assert role_of(key) is role
    assert {name for name, yes in answers.items() if yes} == set(expected.split())


def test_only_whole_parts_of_a_key_count():
    assert role_of("trainer_options") is Role.LEARNING and role_of("trainer") is Role.COMPUTATION
