"""What is wrong with a reward is found by a first call, of which nothing stays."""

import random
import re

import numpy as np
import pytest
import torch
from tests.cli.evaluations import MODEL, TINY, run
from tests.commands import run_command
from tests.configuration.compositions import composed, names
from tests.runs import own_rewards

from bapo_lightning import fit
from bapo_lightning.configuration.targets import Target
from bapo_lightning.runs.reward_trial import COMPLETIONS, try_reward
from bapo_lightning.system.errors import RewardError
from bapo_lightning.types import Completion, FinishReason, Problem

OWN = "tests.runs.own_rewards"
PROBLEM = Problem("p1", "1+1=", "2", "sums", {"level": 1})
WRONG = {
    "one_for_all": "returned 1 scores for 2 completions",
    "not_a_number": "returned Score.value=nan",
    "fails": "failed: KeyError: 'gone' .own_rewards.py, line ",
    "of_last_reply": "failed: IndexError: tuple index out of range",
}


class Words:
    """As much of a tokenizer as is asked for."""

    def encode(self, text, add_special_tokens):
        return [len(word) for word in text.split()]


def tried(name, has_turns=False, **options):
    node = Target({"_target_": f"{OWN}.{name}", **options})
    try_reward(node, {"data.train": [PROBLEM]}, Words(), has_turns)


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def test_nothing_of_the_first_call_stays():
    own_rewards.MADE.clear()
    before = states()
    tried("Stateful")
    (reward,) = own_rewards.MADE
    assert states() == before and reward.is_closed and PROBLEM.metadata == {"level": 1}
    assert reward.seen == [Completion(r"\boxed{2}", 1, FinishReason.STOP)] * COMPLETIONS
    assert [item.token_ids.tolist() for item in reward.seen] == [[9]] * COMPLETIONS


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reward_is_named_with_what_it_returned(name):
    said = rf"^reward {OWN}\.{name} {WRONG[name]}.*problem p1 of data\.train"
    with pytest.raises(RewardError, match=said):
        tried(name, _partial_=True)


def test_where_an_environment_answers_there_is_a_reply():
    tried("of_last_reply", has_turns=True, _partial_=True)


@pytest.mark.parametrize("choice", names("reward"))
def test_every_reward_that_ships_takes_the_first_call(choice):
    functions = [f"reward.functions=[{OWN}.length]"] if choice == "functions" else []
    problem = PROBLEM
    if choice in ("reasoning_gym", "countdown"):
        entry = {"question": "1 + 1?", "answer": "2", "metadata": {"numbers": [1, 1], "target": 2}}
        problem = Problem("0", "1 + 1?", "2", "basic_arithmetic", entry)
    node = Target(composed(f"reward={choice}", *functions)["reward"])
    try_reward(node, {"data.train": [problem]}, Words(), has_turns=choice == "environment")


def test_training_evaluation_and_the_library_try_the_reward_before_a_model_is_loaded(tmp_path):
    options = [
        "experiment=additions", "debug=fast", "reward=functions", f"reward.functions=[{OWN}.wants_rubric]",
    ]  # fmt: skip
    done = run_command("bapo_lightning.cli.train", *options, f"run_folder={tmp_path / 'run'}")
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert re.search(r"wants_rubric takes rubric, and there are .*answer.*keep=\[rubric\]", said)
    with pytest.raises(RewardError, match=r"nothing returned None for 2 completions.* of data\.train"):
        fit(f"run_folder={tmp_path / 'run'}", experiment="additions", reward=own_rewards.nothing)
    own = [*TINY[:1], f"reward._target_={OWN}.one_for_all", *TINY[1:]]
    with pytest.raises(RewardError, match=r"one_for_all returned 1 scores.* of data\.validation\.additions"):
        run(f"checkpoint={MODEL}", *own, f"run_folder={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()
