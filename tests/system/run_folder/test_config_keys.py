"""Every question about a configuration key is answered from its one role."""

import pytest

from bapo_lightning.system.run_folder import config_keys as keys
from bapo_lightning.system.run_folder.config_keys import Role

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
    questions = {
        "place": keys.is_place, "setting": keys.is_setting, "resume": keys.may_change_on_resume,
        "alike": keys.should_be_alike, "listed": keys.is_listed, "names": keys.names_evaluation,
        "evaluation": keys.may_differ_in_evaluation,
    }  # fmt: skip
    assert keys.role_of(key) is role
    assert {name for name, holds in questions.items() if holds(key)} == set(expected.split())


def test_only_whole_parts_of_a_key_count():
    assert keys.role_of("trainer_options") is Role.LEARNING and keys.role_of("trainer") is Role.COMPUTATION
