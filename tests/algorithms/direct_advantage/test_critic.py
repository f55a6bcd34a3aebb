"""`make critic`, and training with what it makes."""

import io
import json
import re
import shutil
from contextlib import redirect_stdout

import pytest
import torch
from tests.algorithms.direct_advantage.critics import ADDITIONS, written_description
from tests.commands import run_command
from tests.configuration.compositions import composed, found

from bapo_lightning.algorithms.direct_advantage.make import (
    CriticOptions,
    make_critic,
    read_critic,
    split_problems,
)
from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.types import Problem

COMMAND, TRAIN = "bapo_lightning.algorithms.direct_advantage.command", "bapo_lightning.cli.train"
OWN = {"num_problems": 40, "samples": 4, "split": 1}
SETTINGS = (
    "experiment=quickstart", "debug=fast", "algorithm=direct_advantage", "scale.num_rollout_batches=3",
    "algorithm.objective.beta=0.1", "callbacks.validation.every=0", "callbacks.checkpoint.every=5",
    "callbacks.checkpoint.keep=9", "regime.minibatches=4",
)  # fmt: skip


def train(critic, folder, *overrides):
    own = f"algorithm.stages.step_advantages.critic={critic}", f"run_folder={folder}"
    done = run_command(TRAIN, *SETTINGS, *own, *overrides, forks=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A critic of the locks, and what was said of it."""
    folder, output = tmp_path_factory.mktemp("critics") / "critic", io.StringIO()
    plain = composed("experiment=quickstart", "debug=fast") | {"critic": {"to": str(folder), **OWN}}
    with redirect_stdout(output), torch.random.fork_rng():
        make_critic(plain)
    return folder, output.getvalue()


def rows(folder):
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            key: value
            for key, value in row.items()
            if not key.startswith(("time/", "sync/")) and "second" not in key
        }
        for row in parsed
    ]


def weights(folder, update):
    file = folder / f"checkpoints/update{update:06d}/trainer.ckpt"
    return torch.load(file, weights_only=True)["state_dict"]


def test_it_says_how_good_the_critic_is_and_leaves_its_folder_alone(made):
    folder, output = made
    assert "160 responses to 36 problems, and 4 that are held out" in output
    assert re.search(r"\d+ held-out prefixes: Brier score 0\.\d{4} \(0\.\d{4} for the mean score\)", output)
    record = json.loads((folder / "config.json").read_text())["step_critic"]
    assert record["split"] == 1 and record["prefixes"] > 4
    assert [path.name for path in folder.parent.iterdir()] == ["critic"]


@pytest.mark.slow
def test_the_command_makes_the_same_and_says_what_to_do_next(made, tmp_path):
    folder, output = made
    keys = [f"critic.{name}={value}" for name, value in OWN.items()]
    done = run_command(
        COMMAND, "experiment=quickstart", "debug=fast", *keys, f"critic.to={tmp_path / 'critic'}"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(output)
    next_command = f"algorithm=direct_advantage algorithm.stages.step_advantages.critic={tmp_path / 'critic'}"
    assert f'make train EXP=quickstart ARGS="{next_command}"' in done.stdout
    weights = [(each / "model.safetensors").read_bytes() for each in (folder, tmp_path / "critic")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"split": "(a"}, "critic.split=(a is no regular expression"),
        ({"split": 0}, "critic.split=0 must be"),
        ({"sample": 4}, "critic.sample is not an option of critic; did you mean samples?"),
        ({"held_out": 1.0}, "critic.held_out=1.0 must be a number in (0, 1)"),
        ({"to": None}, "critic.to=None must be text"),
    ],
)
def test_one_mistake_gives_one_complaint_that_names_it(own, complaint):
    plain = composed() | {"critic": {"to": "unused", **own}}
    with pytest.raises(ConfigError) as error:
        read_critic(plain)
    (text,) = error.value.problems
    assert complaint in text


def test_a_folder_must_be_named_and_a_mistake_of_the_run_is_told():
    with pytest.raises(ConfigError, match=r"critic\.to is missing; write critic\.to=VALUE"):
        read_critic(composed() | {"critic": {}})
    with pytest.raises(ConfigError, match=r"scale\.prompts_per_batch=0 must be"):
        read_critic(composed("scale.prompts_per_batch=0") | {"critic": {"to": "unused"}})


def test_it_needs_no_critic_itself_whatever_the_algorithm():
    config, options = read_critic(composed("algorithm=direct_advantage") | {"critic": {"to": "unused"}})
    assert config.algorithm.stage_nodes == {} and options.split == r"\n+"


def test_problems_are_learnt_from_or_held_out():
    problems = [Problem(str(number), "", "") for number in range(20)]
    train, held_out = split_problems(problems, CriticOptions(to="unused", num_problems=10), seed=0)
    assert (len(train), len(held_out), len({*train, *held_out})) == (9, 1, 10)
    train, held_out = split_problems(problems, CriticOptions(to="unused", held_out=0.99), seed=0)
    assert (len(train), len(held_out)) == (1, 19)
    with pytest.raises(DataError, match="a critic needs two problems"):
        split_problems(problems[:1], CriticOptions(to="unused"), seed=0)


def test_a_folder_that_is_there_is_replaced_only_if_that_is_allowed(tmp_path):
    plain = composed() | {"critic": {"to": str(written_description(tmp_path / "critic"))}}
    with pytest.raises(DataError, match=r"critic exists already; .* or critic.overwrite=true"):
        make_critic(plain)
    (tmp_path / "critic/config.json").unlink()
    plain["critic"] = {"to": str(tmp_path / "critic"), "overwrite": True}
    with pytest.raises(DataError, match="is no model folder"):
        make_critic(plain)


@pytest.mark.slow
def test_training_gives_steps_their_advantages_and_goes_on_as_if_it_had_never_stopped(made, tmp_path):
    critic, _ = made
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    output = train(critic, whole)
    assert re.search(r"direct_advantage, replay, staleness \d+, seed 0: finished", output)
    measured = rows(whole)
    assert sum(0 <= row["critic/brier"] <= 1 for row in measured if "critic/brier" in row) == 3
    shutil.copytree(whole, resumed)
    last = len(measured)
    for checkpoint in (resumed / "checkpoints").iterdir():
        if checkpoint.name > "update000005":  # within the second rollout batch
            shutil.rmtree(checkpoint)
    manifest = json.loads((resumed / "manifest.json").read_text())
    (resumed / "manifest.json").write_text(json.dumps(manifest | {"status": "interrupted"}))
    assert "at update 5" in train(critic, resumed, f"resume={resumed}")
    one, other = weights(whole, last), weights(resumed, last)
    assert all(torch.equal(one[key], other[key]) for key in one) and rows(resumed) == measured


@pytest.mark.slow
def test_two_ranks_train_as_one_process_does(made, tmp_path):
    """On one rollout batch: later ones may differ in a token, where a draw is close."""
    critic, _ = made
    one, two = tmp_path / "one", tmp_path / "two"
    common = "scale.num_rollout_batches=1", "trainer.accelerator=cpu"
    train(critic, one, *common)
    train(critic, two, *common, "trainer.devices=2", "strategy=ddp")
    last = len(rows(one))
    for key, expected in weights(one, last).items():
        torch.testing.assert_close(weights(two, last)[key], expected, rtol=1e-4, atol=1e-5)
    assert rows(one)[0]["critic/brier"] == rows(two)[0]["critic/brier"]


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
