"""`make export`: what a run trained is what transformers loads, from one file or from shards."""

import shutil
from dataclasses import replace

import pytest
import torch
from tests.commands import train_to_end
from tests.modules.policy.families import family_folder
from torch.distributed.checkpoint import save
from transformers import AutoModelForCausalLM, AutoTokenizer

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.system.errors import CheckpointError
from bapo_lightning.system.run_folder.checkpoint import TRAINER_FILE, list_checkpoints
from bapo_lightning.system.run_folder.record import read_rows
from bapo_lightning.tools.commands.export import main, policy_weights
from bapo_lightning.tools.evaluation.subject import find_subject
from bapo_lightning.tools.export.checkpoint_weights import load_checkpoint_weights, policy_state

TINY = model_path("package://bapo_lightning/tiny_worlds/additions/model")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of eight updates, large enough ones to change what is answered."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    overrides = [
        "optimizer.optimizer.lr=3e-3", "optimizer.scheduler.warmup_updates=1", "callbacks.hf_export.every=3",
        "callbacks.hf_export.keep=2", "callbacks.hf_export.dtype=bfloat16", "callbacks.validation.every=0",
        "callbacks.entropy_rule.every=0", "callbacks=best_checkpoint",
    ]  # fmt: skip
    train_to_end(folder, 1, *overrides)
    return folder


@torch.no_grad()
def greedy(model, prompt, count=24):
    ids = torch.tensor([prompt])
    for _ in range(count):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0].tolist()


def test_an_exported_run_answers_as_the_trainer_s_policy_does(run, tmp_path):
    assert main([str(run), str(tmp_path / "out")]) == 0
    policy = build_policy(ModelOptions(TINY), 1.0)
    load_checkpoint_weights(policy, list_checkpoints(run / "checkpoints")[0])
    folders = tmp_path / "out", TINY
    exported, start = map(AutoModelForCausalLM.from_pretrained, folders)
    assert all(torch.equal(weight, exported.state_dict()[name]) for name, weight in policy.named_weights())
    texts = [f"{first}+{second}=" for first in (12, 37, 58, 91) for second in (5, 46, 77)]
    prompts, same = (AutoTokenizer.from_pretrained(of)(texts).input_ids for of in (tmp_path / "out", TINY))
    assert prompts == same
    answers = [greedy(exported, prompt) for prompt in prompts]
    assert answers == [greedy(policy.model, prompt) for prompt in prompts]
    assert answers != [greedy(start, prompt) for prompt in prompts]  # else it would prove nothing


def test_what_is_exported_during_training_is_what_is_exported_afterwards(run, tmp_path):
    names = sorted(path.name for path in (run / "exports").iterdir())
    assert names == ["best", "update000006", "update000008"]
    assert main([str(run), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    folders = run / "exports/update000008", tmp_path / "out"
    during, after = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert during == after


def test_the_best_export_is_of_the_first_update_with_the_best_value(run):
    rewards = [row["train/reward"] for row in read_rows(run)]
    best = rewards.index(max(rewards)) + 1
    assert f"{best} updates" in (run / "exports/best/README.md").read_text()
    assert AutoModelForCausalLM.from_pretrained(run / "exports/best").dtype == torch.float32


def test_a_sharded_checkpoint_gives_the_same_weights(run, tmp_path):
    checkpoint = list_checkpoints(run / "checkpoints")[0]
    sharded = tmp_path / checkpoint.name
    shutil.copytree(checkpoint, sharded)
    state = torch.load(sharded / TRAINER_FILE, weights_only=True)["state_dict"]
    (sharded / TRAINER_FILE).unlink()
    save({"state_dict": state}, checkpoint_id=sharded / TRAINER_FILE, no_dist=True)
    found, expected = policy_state(sharded), policy_state(checkpoint)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    load_checkpoint_weights(build_policy(ModelOptions(TINY), 1.0), sharded)


@pytest.mark.parametrize(("checkpoint", "problem"), [
    (TINY, "is a model already, not a run or a checkpoint"),
    ("outputs/no/such/run", "outputs/no/such/run does not exist"),
    ("tests", "is neither a run folder (config.yaml) nor a checkpoint"),
])  # fmt: skip
def test_what_cannot_be_exported_is_named(checkpoint, problem, tmp_path, capsys):
    assert main([checkpoint, str(tmp_path / "out")]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_corrupt_checkpoint_is_not_exported(run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for checkpoint in list_checkpoints(copy / "checkpoints"):
        with (checkpoint / TRAINER_FILE).open("r+b") as file:
            file.seek(5000)
            file.write(b"torn")
    assert main([str(copy), str(tmp_path / "out")]) == 2
    assert "no checkpoint is good" in capsys.readouterr().err


def test_a_checkpoint_of_another_model_is_not_exported(run, tmp_path):
    subject = replace(find_subject(str(run)), model={"path": family_folder("llama", tmp_path)})
    with pytest.raises(CheckpointError, match=r"does not fit the model of its run: .*, expected \["):
        dict(policy_weights(subject, "float32")[0])
