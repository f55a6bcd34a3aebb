"""What classes of one's own say of their options and the run: parts of an algorithm, starters of ranks."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.commands import run_command
from tests.configuration.compositions import found, validated

from bapo_lightning.data.run_facts import RunFacts


class Centred:
    """Advantages with options that have the names of keys of the run."""

    def __init__(self, scale: float = 1.0, group_size: int = 2) -> None:
        self.scale, self.group_size = scale, group_size

    def __call__(self, rewards: Any) -> Any:
        return self.scale * rewards

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        if options["group_size"] > run.group_size:
            yield f"group_size={options['group_size']} and scale=1 exceed scale.group_size={run.group_size}"
        if run.environment is not None:
            yield f" with environment={run.environment} hears nothing"


OWN = f"algorithm.advantages={{_target_: {__name__}.Centred, scale: 1, baseline: null}}"
KEY = "algorithm.advantages"


@pytest.mark.parametrize(("overrides", "expected"), [
    ([], []),
    (["+algorithm.advantages.group_size=99"],
     [f"{KEY}.group_size=99 and {KEY}.scale=1 exceed scale.group_size=8"]),
    (["environment=calculator", "scale.max_feedback_tokens=32"],
     [f"{KEY} with environment=calculator hears nothing"]),
    (["+algorithm.advantages.group_size=x"], [f"{KEY}.group_size=x must be a whole number"]),
])  # fmt: skip
def test_a_part_of_your_own_is_asked_about_the_run_if_its_options_are_right(overrides, expected):
    assert found(OWN, *overrides) == expected


def test_facts_are_those_of_the_run_and_parts_of_null_are_left_out():
    config = validated("algorithm=luffy", "scale.group_size=4")
    facts = config.facts
    assert (facts.group_size, facts.environment, facts.regime) == (4, None, config.staleness)
    assert set(facts.parts) == {"objective", "weighting", "advantages", "bounds", "rules.experts"}


RANKS = "+ranks._target_=tests.configuration.test_run_facts.Elsewhere"


class Elsewhere:
    """Starts nothing, and is too far away for a lone device."""

    def __init__(self, least=1):
        self.least = least

    def run_problems(self, config):
        if config.devices < self.least:
            yield f"ranks.least={self.least}: write trainer.devices={self.least}"

    def launch(self, config, arguments):
        print(config.name, arguments)
        return 7


def test_it_may_refuse_a_run_and_its_options_are_checked():
    assert found(RANKS) == []
    assert found(RANKS, "+ranks.least=2") == ["ranks.least=2: write trainer.devices=2"]
    assert "ranks.most is not an option of" in found(RANKS, "+ranks.most=2")[0]


def test_it_gets_the_arguments_and_its_exit_code_is_the_commands(tmp_path):
    done = run_command("bapo_lightning.cli.train", RANKS, f"run_folder={tmp_path / 'run'}")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"quickstart {[RANKS, f'run_folder={tmp_path}/run']}\n"
    assert not (tmp_path / "run").exists()
