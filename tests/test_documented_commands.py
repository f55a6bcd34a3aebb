"""The runs that README and docs show are composed: their keys, choices and values exist and go together."""

import re
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from tests.test_readme import ROOT, dry_run, shown_commands, words

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.validate import validate
from bapo_lightning.errors import ConfigError

RUNS = re.compile(r"-m bapo_lightning\.cli\.(?:train|rehearse|data) (.*)")
FRONT = ["README.md", "docs/recipes.md"]
OTHERS = sorted(
    name
    for path in (ROOT / "docs").rglob("*.md")
    # tests/test_add_a_baseline.py follows the other one to the letter.
    if (name := path.relative_to(ROOT).as_posix()) not in {*FRONT, "docs/add_a_baseline.md"}
)


def shown_runs(document):
    """Returns the arguments of every run that a page starts by make."""
    commands = [words(command) for command in shown_commands((ROOT / document).read_text())]
    made = "\n".join(dry_run(*command[1:]).stdout for command in commands if command[0] == "make")
    return {run for run in RUNS.findall(made) if "<" not in run and run.strip()}


def composed(arguments):
    """Returns the overrides of a run; of a multirun those of its first run."""
    words = [word for word in shlex.split(arguments) if word != "-m"]
    parsed = OverridesParser.create().parse_overrides(words)
    return [
        f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"
        if override.is_sweep_override()
        else override.input_line
        for override in parsed
        if not override.get_key_element().startswith("+show")
    ]


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """The reward functions that docs/rewards.md shows can be imported."""
    page = (ROOT / "docs/rewards.md").read_text()
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]


@pytest.mark.parametrize("document", [*FRONT, *SLOW])
def test_every_run_that_is_shown_can_be_composed(document, functions):
    wrong = {}
    for arguments in shown_runs(document):
        try:
            validate(compose_run(composed(arguments)), "run")
        except ConfigError as error:
            wrong[arguments] = str(error)
    assert wrong == {}
