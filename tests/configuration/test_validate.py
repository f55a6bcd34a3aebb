"""The shipped configurations break no rule; what is wrong with others is told together, and once."""

import pytest
import torch
from tests.commands import run_command
from tests.configuration.compositions import CONF, composed, found, names

from bapo_lightning.configuration.targets import Target
from bapo_lightning.system.errors import ConfigError

NEEDED = {
    "reward=functions": "reward.functions=[tests.rewards.test_functions.right]",
    "data=table": "data.train.path=mine.jsonl",
    "data=verl": "data.train.path=a.parquet data.validation.test.path=b.parquet",
    "reward=environment": "environment=calculator scale.max_feedback_tokens=8",
    "data=agent": "environment=agent environment.answers.endpoint.command=[sh] reward=environment "
    "scale.max_feedback_tokens=8",
    "data=openenv": "environment=openenv environment.answers.server.url=http://127.0.0.1:8000 "
    "reward=environment scale.max_feedback_tokens=8",
    "data=verifiers": "environment=verifiers environment.answers.server.values.environment=served "
    "reward=environment scale.max_feedback_tokens=8",
    "experiment=own": "model=additions data.train.path=mine.jsonl scale.max_prompt_tokens=8 "
    "scale.max_new_tokens=24",
}
SLOW = ("data", "reward", "scale", "experiment")
SHIPPED = [
    pytest.param(f"{group}={name}", marks=[pytest.mark.slow] * (group in SLOW))
    for group in ("correction", "rollout", "regime", *SLOW)
    for name in names(group)
]


@pytest.mark.parametrize(
    "choice", [*SHIPPED, *(f"data=gsm8k data/prompt={name}" for name in names("data/prompt"))]
)
def test_every_shipped_choice_passes(choice, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")  # several nodes are started by torchrun
    monkeypatch.setenv("WORLD_SIZE", "32")
    complaints = found(*choice.split(), "plan.ignore=true", *NEEDED.get(choice, "").split())
    # A model that is made need not be there; the tiny one's positions do not do for large scales.
    unavoidable = "make it: make model-", "the model has 128 positions"
    assert [text for text in complaints if not any(part in text for part in unavoidable)] == []


def test_the_bare_text_can_be_chosen_where_a_data_set_has_a_chat_prompt():
    plain = {"_target_": "bapo_lightning.data.problems.prompts.PlainPrompt", "bos": None}
    assert composed("data=gsm8k", "data/prompt=plain")["data"]["prompt"] == plain


@pytest.mark.parametrize("name", names("problem_set"))
def test_every_problem_set_can_be_trained_and_validated_on(name):
    overrides = [f"problem_set@data.train={name}", f"+problem_set@data.validation.more={name}"]
    paths = ["data.train.path=own.jsonl", "data.validation.more.path=own.jsonl"]
    assert found("data=gsm8k", *overrides, *(paths if name in ("table", "verl") else [])) == []


def test_a_target_need_not_have_the_options_that_a_base_file_leaves_unset():
    target = "+algorithm.objective={_target_: bapo_lightning.objectives.divergence.k3}"
    assert found(target) == []
    told, *_ = found(target, "algorithm.objective.dual_clip=3.0")
    assert "algorithm.objective.dual_clip is not an option of" in told
    node = {**composed(target)["algorithm"]["objective"], "_partial_": False}
    assert torch.equal(Target(node).make(log_ratio=torch.zeros(2)), torch.zeros(2))


def test_all_complaints_come_together():
    messages = found(
        "regime.minibatches=5", "scale.group_size=1", "algorithm.bounds.target=2", "model.path=/nowhere"
    )
    assert len(messages) == 4
    text = str(ConfigError(messages))
    assert text.startswith("the configuration has 4 problems:\n  1. ")
    assert all(message in text for message in messages)


def test_a_corrupt_model_folder_is_found_before_it_is_loaded(tmp_path):
    source = CONF.parent / "src/bapo_lightning/tiny_worlds/additions/model"
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert found(f"model.path={tmp_path}") == []
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "is corrupt: model.safetensors" in found(f"model.path={tmp_path}")[0]
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not a JSON object" in found(f"model.path={tmp_path}")[0]
    (tmp_path / "config.json").unlink()
    assert "config.json is missing" in found(f"model.path={tmp_path}")[0]


def test_a_missing_value_is_named():
    with pytest.raises(ConfigError, match=r"name cannot be resolved .*; write name=VALUE"):
        composed("name=???")


@pytest.mark.parametrize(("override", "words"), [
    ("experiment=nope", ["at least 1 problem", "experiment=nope is not a choice; it takes additions, "]),
    ("scale.group_size=1", ["error: the configuration has 1 problem", "scale.group_size=1"]),
])  # fmt: skip
def test_the_command_ends_with_one_clear_error_and_no_traceback(tmp_path, override, words):
    result = run_command("bapo_lightning.cli.train", override, f"output_root={tmp_path}", cwd=tmp_path)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words)
    assert list(tmp_path.iterdir()) == []
