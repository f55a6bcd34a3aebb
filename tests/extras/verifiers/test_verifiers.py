"""A stand-in for the library is served by the script that serves the library; docs/verifiers.md has what was
done with the library itself.
"""

import sys
from pathlib import Path

import pytest
from tests.configuration.compositions import composed, found
from tests.extras.openenv.test_openenv import conversation as answered

from bapo_lightning.configuration.targets import Target
from bapo_lightning.system.errors import DataError

LIBRARY = Path(__file__).with_name("library")
MODEL = ("experiment=qwen2.5_0.5b_gsm8k", "scale.max_feedback_tokens=2000")  # only its configuration


def choices(options="{}"):
    return [
        *("environment=verifiers", "data=verifiers", "reward=environment"),
        "environment.answers.server.values.environment=verifiers",
        f"environment.answers.server.values.python={sys.executable}",
        f"environment.answers.server.values.options='{options}'",
        f"+environment.answers.server.variables.PYTHONPATH={LIBRARY}",
    ]


@pytest.fixture
def made():
    """Makes the environment, and its first problems of both splits, from the files of conf/."""
    environments = []

    def make(options="{}", count=2):
        config = composed(*choices(options))
        nodes = config["data"]["train"], config["data"]["validation"]["openenv"]
        problems = [item for node in nodes for item in Target(node | {"count": count}).make()]
        environments.append(Target(config["environment"]["answers"]).make())
        return environments[-1], problems

    yield make
    for environment in environments:
        environment.close()


def test_the_files_go_together():
    assert found(*MODEL, *choices()) == []


def test_rows_are_problems_with_messages(made):
    _, problems = made(count=4)
    prompts = [item.prompt for item in problems]
    assert prompts == ["0", "2", "4", "0", "1", "3", "5", "1"]  # of six rows
    assert problems[1].metadata["messages"] == [
        {"role": "system", "content": "Double it."}, {"role": "user", "content": "2"},
    ]  # fmt: skip


def test_turns_until_the_rubric_judges(made):
    environment, problems = made()
    wrong, right = answered(environment, problems[1], ["5", "4"])
    assert (wrong.text, wrong.score, wrong.is_done) == ("No, 1.", None, False)
    assert (right.text, right.score, right.is_done) == ("Right.", 1.0, True)
    (at_once,) = answered(environment, problems[1], [" 4"])
    assert (at_once.is_done, at_once.score) == (True, 1.5)


def test_the_limit_of_the_environment_ends_with_a_reward(made):
    environment, problems = made('{"max_turns": 1}')
    (only,) = answered(environment, problems[1], ["5"])
    assert only.is_done and only.score == 0.5 and only.text == ""


def test_a_killed_run_goes_on_in_an_episode_made_again(made):
    environment, problems = made()
    first, second = answered(environment, problems[1], ["5", "6"])
    environment.close()
    third, end = answered(environment, problems[1], ["7", "4"], second.state, 2)
    assert (first.text, third.text, end.is_done) == ("No, 1.", "No, 3.", True)


def test_a_fault_of_the_environment_is_feedback(made):
    environment, problems = made()
    (broken,) = answered(environment, problems[1], ["break"])
    assert broken.text == "Error: RuntimeError: it broke" and broken.errors == 1


def test_what_is_not_served_says_so(made):
    with pytest.raises(DataError, match="verifiers has tools, whose calls are not served"):
        made('{"tools": true}')
