"""The reference loop and `make train` are the same algorithm."""

import json

import pytest
import torch
from tests.commands import run_command

from bapo_lightning import reference
from bapo_lightning.reference import Settings, train
from bapo_lightning.system.run_folder.checkpoint import TRAINER_FILE, list_checkpoints

# So many tokens that some minibatches pass through the model at once, and others do not.
SMALL = Settings(0, 2, prompts_per_batch=32, group_size=4, minibatches=16, micro_batch_tokens=90)
SIZES = ("num_rollout_batches", "prompts_per_batch", "group_size", "micro_batch_tokens")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run of `make train` on the same problems."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    sizes = [f"scale.{name}={getattr(SMALL, name)}" for name in SIZES]
    settings = ["experiment=quickstart", *sizes, "regime.minibatches=16", "scale.validation_problems=1"]
    done = run_command("bapo_lightning.cli.train", *settings, f"run_folder={folder}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def learned():
    """Policy, optimizer and updates of the reference loop, and the micro-batches of each update."""
    num_micro_batches = []

    def search(settings, tables):
        num_micro_batches.append(len(tables))
        return original(settings, tables)

    original, threads = reference.search, torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "search", search)
        found = (*train(SMALL), num_micro_batches)
    torch.set_num_threads(threads)
    return found


@pytest.fixture(scope="module")
def checkpoint(run_folder):
    newest = list_checkpoints(run_folder / "checkpoints")[0]
    return torch.load(newest / TRAINER_FILE, weights_only=True)


def test_weights_are_equal_to_the_bit(learned, checkpoint):
    policy, _, updates, num_micro_batches = learned
    own = {f"policy.{name}": weight for name, weight in policy.state_dict().items()}
    assert own.keys() == checkpoint["state_dict"].keys()
    assert all(torch.equal(weight, checkpoint["state_dict"][name]) for name, weight in own.items())
    assert len(updates) == 32 and min(num_micro_batches) == 1 < max(num_micro_batches)


def test_the_optimizers_state_is_equal_to_the_bit(learned, checkpoint):
    own, (trained,) = learned[1].state_dict(), checkpoint["optimizer_states"]
    assert own["param_groups"] == trained["param_groups"] and own["state"].keys() == trained["state"].keys()
    assert all(
        torch.equal(value, trained["state"][index][name])
        for index, state in own["state"].items()
        for name, value in state.items()
    )


def test_bounds_and_losses_of_every_update_are_equal(learned, run_folder):
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert [(update.loss, update.low, update.high) for update in learned[2]] == [
        (row["train/loss"], row["bapo/clip_low"], row["bapo/clip_high"]) for row in rows
    ]


@pytest.mark.slow
def test_the_printed_reward_rises(capsys):
    train(Settings(num_rollout_batches=4, prompts_per_batch=128))
    lines = capsys.readouterr().out.splitlines()
    rewards = [float(line.split()[1]) for line in lines]
    assert len(lines) == 4 and all(line.startswith("reward ") for line in lines)
    assert rewards[-1] > rewards[0] + 0.1
