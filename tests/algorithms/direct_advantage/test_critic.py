"""`make critic`, and training with what it makes."""

import io
import json
import re
import shutil
from contextlib import redirect_stdout

import pytest
import torch
from tests.algorithms.direct_advantage.critics import ADDITIONS, written_description
from tests.algorithms.resuming import SETTINGS, check_resumed_run, rows, weights
from tests.commands import run_command
from tests.configuration.compositions import composed, found
from tests.configuration.small_commands import COMMANDS
from tests.runs.test_fake_gpu import done, keeps_to_its_device

from bapo_lightning.algorithms.direct_advantage import make
from bapo_lightning.algorithms.direct_advantage.critic import StepCritic, build_critic
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.system.errors import ConfigError, DataError
from bapo_lightning.types import Problem

COMMAND, TRAIN = "bapo_lightning.algorithms.direct_advantage.command", "bapo_lightning.cli.train"
OWN = {"num_problems": 40, "samples": 4, "split": 1}
CRITIC = "algorithm.stages.step_advantages.critic"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A critic of the locks, and what was said of it."""
    folder, output = tmp_path_factory.mktemp("critics") / "critic", io.StringIO()
    plain = composed("experiment=quickstart", "debug=fast") | {"critic": {"to": str(folder), **OWN}}
    with redirect_stdout(output), torch.random.fork_rng():
        make.make_critic(plain)
    return folder, output.getvalue()


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
    finished = run_command(
        COMMAND, "experiment=quickstart", "debug=fast", *keys, f"critic.to={tmp_path / 'critic'}"
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith(output)
    next_command = f"algorithm=direct_advantage algorithm.stages.step_advantages.critic={tmp_path / 'critic'}"
    assert f'make train EXP=quickstart ARGS="{next_command}"' in finished.stdout
    written = [(each / "model.safetensors").read_bytes() for each in (folder, tmp_path / "critic")]
    assert written[0] == written[1]


@pytest.mark.parametrize(("own", "complaint"), [
    ({"split": "(a"}, "critic.split=(a is not a regular expression"),
    ({"split": 0}, "critic.split=0 is a number"),
    ({"sample": 4}, "critic.sample is not an option of critic; did you mean samples?"),
    ({"held_out": 1.0}, "critic.held_out=1.0 must be a number in (0, 1)"),
    ({"to": None}, "critic.to=None must be text"),
])  # fmt: skip
def test_one_mistake_gives_one_complaint_that_names_it(own, complaint):
    plain = composed() | {"critic": {"to": "unused", **own}}
    with pytest.raises(ConfigError) as error:
        make.read_critic(plain)
    (text,) = error.value.problems
    assert complaint in text


def test_a_folder_must_be_named_and_a_mistake_of_the_run_is_reported():
    with pytest.raises(ConfigError, match=r"critic\.to is missing; write critic\.to=VALUE"):
        make.read_critic(composed() | {"critic": {}})
    with pytest.raises(ConfigError, match=r"scale\.prompts_per_batch=0 must be"):
        make.read_critic(composed("scale.prompts_per_batch=0") | {"critic": {"to": "unused"}})


def test_it_needs_no_critic_itself_whatever_the_algorithm():
    config, options = make.read_critic(composed("algorithm=direct_advantage") | {"critic": {"to": "unused"}})
    assert config.algorithm.stage_nodes == {} and options.split == r"\n+"


def test_problems_are_learnt_from_or_held_out():
    problems = [Problem(str(number), "", "") for number in range(20)]
    train, held_out = make.split_problems(problems, make.CriticOptions(to="unused", num_problems=10), seed=0)
    assert (len(train), len(held_out), len({*train, *held_out})) == (9, 1, 10)
    train, held_out = make.split_problems(problems, make.CriticOptions(to="unused", held_out=0.99), seed=0)
    assert (len(train), len(held_out)) == (1, 19)
    with pytest.raises(DataError, match="a critic needs two problems"):
        make.split_problems(problems[:1], make.CriticOptions(to="unused"), seed=0)


def test_a_folder_that_is_there_is_replaced_only_if_that_is_allowed(tmp_path):
    plain = composed() | {"critic": {"to": str(written_description(tmp_path / "critic"))}}
    with pytest.raises(DataError, match=r"critic exists already; .* or critic.overwrite=true"):
        make.make_critic(plain)
    (tmp_path / "critic/config.json").unlink()
    plain["critic"] = {"to": str(tmp_path / "critic"), "overwrite": True}
    with pytest.raises(DataError, match="is not a model folder"):
        make.make_critic(plain)


@pytest.mark.slow
def test_training_gives_steps_their_advantages_and_goes_on_as_if_it_had_never_stopped(made, tmp_path):
    own = f"{CRITIC}={made[0]}", "algorithm.objective.beta=0.1", "regime.minibatches=4"
    check_resumed_run(tmp_path, '"critic/brier"', "algorithm=direct_advantage", *own, batches=3)
    measured = [row["critic/brier"] for row in rows(tmp_path / "whole") if "critic/brier" in row]
    assert len(measured) == 3 and all(0 <= brier <= 1 for brier in measured)


@pytest.mark.slow
def test_two_ranks_train_as_one_process_does(made, tmp_path):
    """On one rollout batch: later ones may differ in a token, where a draw is close."""
    own = "algorithm=direct_advantage", f"{CRITIC}={made[0]}", "regime.minibatches=4"
    runs = {"one": (), "two": ("trainer.devices=2", "strategy=ddp")}
    for name, ranks in runs.items():
        settings = "experiment=quickstart", *SETTINGS, *own, "scale.num_rollout_batches=1"
        finished = run_command(
            TRAIN, *settings, "trainer.accelerator=cpu", *ranks, f"run_folder={tmp_path / name}", forks=True
        )
        assert finished.returncode == 0, finished.stderr
    one, two = (weights(tmp_path / name) for name in runs)
    for key, expected in one.items():
        torch.testing.assert_close(two[key], expected, rtol=1e-4, atol=1e-5)
    first, second = (rows(tmp_path / name)[0]["critic/brier"] for name in runs)
    assert first == second


@pytest.mark.slow
def test_a_run_with_a_critic_keeps_to_its_device(tmp_path):
    own = "tests.algorithms.direct_advantage.on_fake_gpu"
    (run,) = done(tmp_path, ["with_critic algorithm=direct_advantage"], own)
    file = "algorithms/direct_advantage/critic.py"
    keeps_to_its_device(run, {f"{file}:state_logits", f"{file}:values"})


def test_steps_need_a_critic_that_is_there_and_of_this_model(tmp_path):
    (missing,) = found("algorithm=direct_advantage")
    assert missing == (
        "algorithm.stages.step_advantages needs a critic that is trained first: make critic EXP=additions "
        "TO=FOLDER; then write algorithm.stages.step_advantages.critic=FOLDER"
    )
    (nowhere,) = found("algorithm=direct_advantage", f"{CRITIC}=no/such/folder")
    assert nowhere.startswith(f"{CRITIC}=no/such/folder is not a model folder; make one: make critic EXP=")
    (policy,) = found("algorithm=direct_advantage", f"{CRITIC}={ADDITIONS}")
    assert "is a model, but not a critic of steps; make one: make critic EXP=additions" in policy
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


def test_make_fuzz_changes_every_option_of_the_command():
    assert COMMANDS["critic"].values["critic"].keys() == make.CriticOptions.model_fields.keys()


@pytest.mark.parametrize("key", ["samples", "completions", "epochs", "batch_size"])
def test_no_size_is_beyond_what_a_machine_can_hold(key):
    with pytest.raises(
        ConfigError, match=rf"critic\.{key}=1000001 must be a whole number in \[[01], 1000000\]"
    ):
        make.read_critic(composed() | {"critic": {"to": "critic", key: 1_000_001}})


def test_a_model_whose_weights_are_not_its_own_becomes_no_critic(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(model_path("package://bapo_lightning/tiny_worlds/additions/model"), model)
    with pytest.raises(DataError, match=r"the files do not have score\.bias, score\.weight\)"):
        StepCritic(str(model)).values([], [], 1, torch.device("cpu"))
    config = json.loads((model / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"the files do not have model\.layers\.2\."):
        build_critic(str(model), "float32", {"split": 1})
