"""A leaf is a folder that can be deleted, with its tests, its files of conf/ and its command: a copy of the
tree without it imports, composes the default run, and has no name of it left.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.test_layers import LEAVES, PACKAGE

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Leaf:
    """What goes with the folder, besides the tests in the folder of the same name."""

    conf: tuple[str, ...] = ()  # globs
    command: str | None = None  # of `make`, and a script bapo-COMMAND


OWN = {
    "environments.python": Leaf(conf=("environment/python.yaml",)),
    "environments.textarena": Leaf(conf=("environment/textarena.yaml", "data/textarena_*.yaml")),
    "rewards.math": Leaf(conf=("reward/math*.yaml",)),
    "simulation": Leaf(conf=("simulate/*.yaml",), command="simulate"),
}

# Imports all of the package that is left in a copy of the tree, each in a fork of this process, which has
# the heavy libraries; prints what fails. What needs an optional library may miss it.
IMPORTS = """
import os, sys, traceback
from importlib import import_module
from pathlib import Path
import lightning, matplotlib.pyplot, peft, pydantic, rich, scipy.stats, sympy, torch, transformers, wandb
import hydra, torchmetrics.text, transformers.models.llama.modeling_llama

def check(source):
    sys.path.insert(0, str(source))
    for file in sorted(source.rglob("*.py")):
        name = ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        try:
            assert import_module(name).__file__ == str(file), name
        except ModuleNotFoundError as error:
            if error.name.startswith("bapo_lightning"):
                raise
    from bapo_lightning.configuration.compose import resolve
    from bapo_lightning.configuration.conf_dir import conf_dir
    from bapo_lightning.configuration.validate import validate
    with hydra.initialize_config_dir(conf_dir(), version_base="1.3"):
        validate(resolve(hydra.compose("train")))

for copy in sys.argv[1:]:
    if os.fork() == 0:
        try:
            check(Path(copy, "src"))
        except BaseException:
            print(f"in {copy}:")
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def folder_of(leaf: str) -> Path:
    return Path(*leaf.split("."))


def copy_without(leaves: list[str], place: Path) -> Path:
    """A copy of the package and its configuration, without these leaves."""
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, place / name, ignore=skipped)
    for leaf in leaves:
        shutil.rmtree(place / "src" / PACKAGE / folder_of(leaf))
        for pattern in OWN[leaf].conf:
            for file in list(place.glob(f"conf/{pattern}")):
                file.unlink()
    return place


def test_every_leaf_is_listed() -> None:
    assert set(OWN) == set(LEAVES)
    for leaf, own in OWN.items():
        assert list((ROOT / "tests" / folder_of(leaf)).glob("test_*.py"))
        assert all(list(ROOT.glob(f"conf/{pattern}")) for pattern in own.conf)


@pytest.mark.parametrize("leaf", OWN)
def test_only_a_leaf_and_what_goes_with_it_name_it(leaf: str, tmp_path: Path) -> None:
    name = re.compile(rf"{PACKAGE}\.{re.escape(leaf)}\b")
    copy, command = copy_without([leaf], tmp_path), OWN[leaf].command
    left = [file for file in copy.rglob("*") if file.suffix in (".py", ".yaml")]
    naming = {str(file.relative_to(copy)) for file in left if name.search(file.read_text())}
    assert naming == set()
    lines = [
        line for file in ("Makefile", "pyproject.toml") for line in (ROOT / file).read_text().split("\n")
    ]
    assert [line for line in lines if name.search(line) and not (command and command in line)] == []


def test_a_copy_without_a_leaf_imports_and_composes_the_default_run(tmp_path: Path) -> None:
    copies = [str(copy_without([leaf], tmp_path / leaf)) for leaf in OWN]
    done = subprocess.run(
        [sys.executable, "-I", "-c", IMPORTS, *copies], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.slow
def test_types_are_right_without_any_leaf(tmp_path: Path) -> None:
    copy = copy_without(list(OWN), tmp_path)
    shutil.copy(ROOT / "pyproject.toml", copy)
    done = subprocess.run([sys.executable, "-m", "mypy", "src"], capture_output=True, text=True, cwd=copy)
    assert done.returncode == 0, done.stdout
