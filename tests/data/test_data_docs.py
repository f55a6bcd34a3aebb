"""The tables of docs/data.md are those of the configuration files."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from tests.configuration.compositions import CONF, names

from bapo_lightning.configuration.help import description
from bapo_lightning.configuration.hydra_versions import BASE

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()


OURS = ("table", "verl", "additions", "locks", "sums")
PUBLIC = [name for name in names("problem_set") if name not in OURS]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_set_stands_in_the_table_as_it_is_declared(name):
    with initialize_config_dir(str(CONF), **BASE):
        node = compose("train", overrides=[f"+problem_set@here={name}"])["here"]
    config = f", {node.config}" if node.config else ""
    row = (
        f"| `{name}` | [{node.path}](https://huggingface.co/datasets/{node.path}){config} | {node.split} | "
        f"{node.size} | {node.licence} |"
    )
    assert row in DOCS.splitlines()
    assert node.size > 0 and node.licence and "/" in node.path and not node.any_size


@pytest.mark.parametrize("name", names("data/prompt"))
def test_every_prompt_stands_in_the_table_as_its_file_says(name):
    assert f"| `{name}` | {description(CONF / 'data/prompt' / f'{name}.yaml')} |" in DOCS.splitlines()


@pytest.mark.parametrize("group", ["data", "data/filters"])
def test_every_choice_is_named(group):
    assert all(f"`{name}`" in DOCS for name in names(group))
