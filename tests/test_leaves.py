"""A leaf is a folder that can be deleted, with its tests, its files of conf/ and its command: a copy of the
tree without it imports, composes the default run, and has no name of it left.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.test_layers import LEAVES, PACKAGE, imported_modules, room

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Leaf:
    """What goes with the folder, besides the tests in the folder of the same name."""

    conf: tuple[str, ...] = ()  # globs
    tests: tuple[str, ...] = ()  # files elsewhere
    command: str | None = None  # of `make`, and a script bapo-COMMAND


OWN = {
    "environments.python": Leaf(conf=("environment/python.yaml",)),
    "environments.textarena": Leaf(conf=("environment/textarena.yaml", "data/textarena_*.yaml")),
    "ray": Leaf(
        conf=(
            *("ranks/ray.yaml", "rollout/ray*.yaml", "rollout/engine/ray.yaml"),
            *("reward/math_ray.yaml", "hydra/launcher/ray.yaml"),
        ),
        tests=("rollout/vllm/test_vllm_fleet.py",),
    ),
    "rewards.math": Leaf(conf=("reward/math*.yaml",)),
    "simulation": Leaf(conf=("simulate/*.yaml",), command="simulate"),
}

# Imports what is left of a copy of the tree while the files of one leaf are put aside, each time in a fork of
# this process, which has the heavy libraries. What needs an optional library may miss it.
IMPORTS = """
import json, os, sys, traceback
from importlib import import_module
from pathlib import Path
import lightning, matplotlib.pyplot, peft, pydantic, rich, scipy.stats, sympy, torch, transformers, wandb
import hydra, torchmetrics.text, transformers.models.llama.modeling_llama

root, leaves = Path(sys.argv[1]), json.loads(sys.argv[2])
source = root / "src"
sys.path.insert(0, str(source))

def check():
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

for leaf, paths in leaves.items():
    for number, path in enumerate(paths):
        Path(path).rename(root / str(number))
    if os.fork() == 0:
        try:
            check()
        except BaseException:
            print(f"without {leaf}:")
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    for number, path in enumerate(paths):
        (root / str(number)).rename(path)
"""


def folder_of(leaf: str) -> Path:
    return Path(*leaf.split("."))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its configuration."""
    place = tmp_path_factory.mktemp("copy")
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


def paths_of(leaf: str, copy: Path) -> list[Path]:
    """The folder of a leaf and its files of conf/."""
    files = [file for pattern in OWN[leaf].conf for file in copy.glob(f"conf/{pattern}")]
    return [copy / "src" / PACKAGE / folder_of(leaf), *files]


def test_every_leaf_is_listed() -> None:
    assert set(OWN) == set(LEAVES)
    for leaf, own in OWN.items():
        assert list((ROOT / "tests" / folder_of(leaf)).glob("test_*.py"))
        assert all(list(ROOT.glob(f"conf/{pattern}")) for pattern in own.conf)


@pytest.mark.parametrize("leaf", OWN)
def test_only_a_leaf_and_what_goes_with_it_name_it(leaf: str) -> None:
    name, own = re.compile(rf"{PACKAGE}\.{re.escape(leaf)}\b"), set(paths_of(leaf, ROOT))
    command, commands = OWN[leaf].command, (ROOT / "Makefile", ROOT / "pyproject.toml")
    texts = [*ROOT.glob("src/**/*.py"), *ROOT.glob("conf/**/*.yaml"), *commands]
    naming = [
        f"{file}: {line}"
        for file in texts
        if not own & {file, *file.parents}
        for line in file.read_text().split("\n")
        if name.search(line) and not (command and command in line)
    ]
    assert naming == []


def test_tests_of_the_rest_import_no_leaf() -> None:
    """Those of a leaf may use another one: `reward=math_ray` is made of two."""
    tests = ROOT / "tests"
    own = {tests / place for leaf, each in OWN.items() for place in (folder_of(leaf), *each.tests)}
    importing = []
    for file in tests.rglob("*.py"):
        if not own & {file, *file.parents}:
            names = imported_modules(ast.parse(file.read_text()), (), is_package=False)
            leaves = ((line, room(name)) for line, name in names if name[0] == PACKAGE)
            importing += [f"{file}:{line} imports {leaf}" for line, leaf in leaves if leaf in OWN]
    assert importing == []


@pytest.mark.slow
def test_without_a_leaf_the_rest_is_imported_and_the_default_run_composed(copy: Path) -> None:
    paths = {leaf: [str(path) for path in paths_of(leaf, copy)] for leaf in OWN}
    command = [sys.executable, "-I", "-c", IMPORTS, str(copy), json.dumps(paths)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=copy)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.slow
def test_types_are_right_without_any_leaf(copy: Path) -> None:
    for leaf in OWN:
        shutil.rmtree(paths_of(leaf, copy)[0])
    done = subprocess.run([sys.executable, "-m", "mypy", "src"], capture_output=True, text=True, cwd=copy)
    assert done.returncode == 0, done.stdout
