"""Choices are listed with what they are; installed packages add some through entry points."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.configuration.compositions import names

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.conf_dir import installed_folders
from bapo_lightning.configuration.help import help_text, listed
from bapo_lightning.configuration.validate import validate
from bapo_lightning.system.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "halved"
version = "1.0"

[project.entry-points."bapo_lightning.conf"]
halved = "halved.conf"

[tool.setuptools]
packages = ["halved", "halved.conf"]
package-data = { "halved.conf" = ["*/*.yaml"] }
"""
ALGORITHM = """# GRPO's objective, halved.
defaults: [grpo, _self_]
name: halved
objective: {_target_: halved.objective, dual_clip: null}
"""
OBJECTIVE = '''"""A paper's objective."""


def objective(table):
    """Half of the policy gradient."""
    return 0.5 * table.ratio * table.advantage
'''


def package(folder, name, entry=None, algorithm=None):
    """Writes a package as it is once installed, with its metadata."""
    conf = folder / name / "conf"
    (conf / "algorithm").mkdir(parents=True)
    (folder / name / "__init__.py").write_text(OBJECTIVE)
    (conf / "algorithm" / f"{algorithm or name}.yaml").write_text(ALGORITHM.replace("halved", name))
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[bapo_lightning.conf]\n{name} = {entry or f'{name}.conf'}\n")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder on the Python path."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("halved", "third"):
        sys.modules.pop(name, None)


def test_an_algorithm_of_an_installed_package_is_chosen_by_its_name(installed):
    package(installed, "halved")
    run = validate(compose_run(["experiment=quickstart", "algorithm=halved"]))
    assert run.algorithm.objective.name == "halved.objective"
    assert run.algorithm.bounds.options["low"] == 0.8, "it builds on an algorithm of ours"


def test_it_is_a_choice_wherever_choices_are_listed(installed):
    package(installed, "halved")
    line = next(line for line in help_text().splitlines() if line.strip().startswith("halved "))
    assert "GRPO's objective, halved." in line
    with pytest.raises(ConfigError, match=r"algorithm=havled is not a choice; did you mean halved\?"):
        compose_run(["experiment=quickstart", "algorithm=havled"])


@pytest.mark.parametrize(("entry", "sentence"), [
    ("halved.nothing", "halved: its entry point halved = 'halved.nothing' .* is not a package with "),
    ("absent.conf", r"cannot be imported \(No module named 'absent'\); uninstall halved or fix it"),
    ("halved:objective", "is not a package with files such as algorithm/NAME.yaml"),
])  # fmt: skip
def test_an_entry_point_that_leads_nowhere_is_one_sentence(installed, entry, sentence):
    package(installed, "halved", entry)
    with pytest.raises(ConfigError, match=sentence):
        compose_run(["experiment=quickstart"])


def test_an_algorithm_of_two_packages_is_refused_before_one_is_read(installed):
    package(installed, "halved")
    package(installed, "third", algorithm="halved")
    with pytest.raises(ConfigError, match=r"algorithm/halved\.yaml is in (halved|third) and in "):
        installed_folders()


@pytest.mark.slow
def test_a_wheel_is_installed_and_trained_with(tmp_path):
    project, site = tmp_path / "project", tmp_path / "site"
    package(project, "halved")
    (project / "halved" / "conf" / "__init__.py").touch()
    (project / "pyproject.toml").write_text(PROJECT)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "--target", site, project], check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])}
    command = [sys.executable, "-m", "bapo_lightning.cli.train", "experiment=quickstart", "algorithm=halved"]
    run = tmp_path / "run"
    subprocess.run(
        [*command, "debug=fast", f"run_folder={run}"], check=True, env=environment, capture_output=True
    )
    assert "halved.objective" in (run / "config.yaml").read_text()
    assert "train/clip_fraction" in (run / "metrics.jsonl").read_text()
    (site / "halved" / "conf" / "algorithm" / "bapo.yaml").write_text(ALGORITHM)
    clash = subprocess.run([*command, f"run_folder={run}"], env=environment, capture_output=True, text=True)
    assert clash.returncode == 1
    assert "1. algorithm/bapo.yaml is in bapo-lightning and in halved; rename one, or" in clash.stderr


def test_help_lists_every_choice_with_what_it_is():
    text = help_text()
    for group in ("algorithm", "regime", "experiment", "logger", "correction", "debug"):
        for name in names(group):
            line = next(line for line in text.splitlines() if line.strip().startswith(f"{name} "))
            assert len(line.split()) > 3, f"{group}/{name}.yaml needs a first line that says what it is"


def test_meanings_stand_in_one_column_whatever_the_names():
    lines = listed({"a": "short", "a_name_of_more_than_18": "long"})
    assert [line.index(word) for line, word in zip(lines, ("short", "long"), strict=True)] == [27, 27]
