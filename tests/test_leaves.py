"""What can be deleted, with its tests, its files of conf/ and its command: a leaf, which is a folder, and a
rival, which is a file of algorithms/. A copy of the tree without it imports, composes, and has no name of it.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import combinations, count, permutations
from math import comb
from pathlib import Path

import pytest
import yaml
from tests.rivals import declared
from tests.test_layers import FILES, LEAVES, PACKAGE, STUDIES, dotted_name, imported_modules, imports_of, room

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Leaf:
    """What goes with the folder, besides the tests in the folder of the same name."""

    conf: tuple[str, ...] = ()  # globs
    tests: tuple[str, ...] = ()  # files elsewhere
    command: str | None = None  # of `make`, and a script bapo-COMMAND


OWN = {
    "extras.agent": Leaf(conf=("environment/agent.yaml", "environment/feedback/agent.yaml",
                               "data/agent.yaml", "data/prompt/agent.yaml"),
                         tests=("rollout/vllm/test_openai_client.py",)),
    "extras.openenv": Leaf(conf=("environment/openenv.yaml", "environment/verifiers.yaml",
                                 "data/openenv.yaml", "data/verifiers.yaml")),
    "extras.python": Leaf(conf=("environment/python.yaml",)),
    "extras.textarena": Leaf(conf=("environment/textarena.yaml", "data/textarena_*.yaml")),
    "extras.verifiers": Leaf(conf=("environment/verifiers.yaml", "data/verifiers.yaml")),
    "extras.ray": Leaf(conf=(*("ranks/ray.yaml", "rollout/ray*.yaml", "rollout/engine/ray.yaml"),
                             *("reward/math_ray.yaml", "hydra/launcher/ray.yaml")),
                       tests=("rollout/vllm/test_vllm_fleet.py",)),
    "extras.math": Leaf(conf=("reward/math*.yaml",)),
    "extras.simulation": Leaf(conf=("simulate/*.yaml",), command="simulate"),
}  # fmt: skip

ROOM = "algorithms"
STAND_INS = "tests/zoo/others/"
SHARED = ("grpo", "dapo", "bapo")  # algorithms that are no rivals
RIVALS = sorted({path.stem for path in ROOT.glob(f"src/{PACKAGE}/{ROOM}/*")} - {"__init__", "__pycache__"})
YAML = {path.stem: path.read_text() for path in sorted((ROOT / "conf/algorithm").glob("*.yaml"))}
PARENTS = {
    name: {each for each in yaml.safe_load(text)["defaults"] if isinstance(each, str)}
    for name, text in YAML.items()
    if name != "base"
}

# Imports what is left of a copy of the tree and composes runs while some files are put aside, each time in a
# fork of this process, which has all libraries that the package imports. A fork may miss an optional one.
LEFT = """
import json, os, sys, traceback
from importlib import import_module
from pathlib import Path

root, folder, deletions = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
source = root / "src"
sys.path.insert(0, str(source))

def import_all():
    for file in sorted((source / folder).rglob("*.py")):
        name = ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        try:
            assert import_module(name).__file__ == str(file), name
        except ModuleNotFoundError as error:
            if error.name.startswith("bapo_lightning"):
                raise

def check(algorithms):
    import_all()
    from bapo_lightning.configuration.compose import compose_run
    from bapo_lightning.configuration.validate import validate
    for name in algorithms:
        validate(compose_run([f"algorithm={name}", "run_folder=unused"]))

import_all()
for name in list(sys.modules):
    if name.partition(".")[0] in ("bapo_lightning", "hydra_plugins"):
        del sys.modules[name]
for name, (paths, algorithms) in deletions.items():
    for number, path in enumerate(paths):
        (root / path).rename(root / str(number))
    if os.fork() == 0:
        try:
            check(algorithms)
        except BaseException:
            print(f"without {name}:")
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    for number, path in enumerate(paths):
        (root / str(number)).rename(root / path)
"""


def folder_of(leaf):
    return Path(*leaf.split("."))


def paths_of_leaf(leaf):
    """Its folder and its files of conf/, from the root."""
    files = (file for pattern in OWN[leaf].conf for file in ROOT.glob(f"conf/{pattern}"))
    return [f"src/{PACKAGE}/{folder_of(leaf)}", *(str(file.relative_to(ROOT)) for file in files)]


def algorithms_of(rival):
    """Files of conf/algorithm that go with it: those that name its module, and those built on them."""
    own = {name for name, text in YAML.items() if f".{ROOM}.{rival}." in text}
    while more := {name for name, parents in PARENTS.items() if name not in own and own & parents}:
        own |= more
    return own


def paths_of_rivals(rivals):
    found = set()
    for rival in rivals:
        module = f"src/{PACKAGE}/{ROOM}/{rival}"
        found.add(module if (ROOT / module).is_dir() else f"{module}.py")
        found |= {f"conf/algorithm/{name}.yaml" for name in algorithms_of(rival)}
    return sorted(found)


def parting(names):
    """Halves of the names, such that of every two names some half has the first and not the second."""
    width = next(size for size in count(2) if comb(size, size // 2) >= len(names))
    codes = list(zip(names, combinations(range(width), width // 2), strict=False))
    return [[name for name, code in codes if number in code] for number in range(width)]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package and its configuration."""
    place = tmp_path_factory.mktemp("copy")
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


def complaints(copy, folder, deletions):
    """What is printed of a copied folder's modules, and of some algorithms' runs, without each deletion."""
    command = [sys.executable, "-I", "-c", LEFT, str(copy), folder, json.dumps(deletions)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=copy)
    return done.stdout + (done.stderr if done.returncode else "")


def test_every_leaf_is_listed():
    assert set(OWN) == set(LEAVES)
    for leaf, own in OWN.items():
        assert list((ROOT / "tests" / folder_of(leaf)).glob("test_*.py"))
        assert all(list(ROOT.glob(f"conf/{pattern}")) for pattern in own.conf)


@pytest.mark.parametrize("leaf", OWN)
def test_only_a_leaf_and_what_goes_with_it_name_it(leaf):
    name, own = re.compile(rf"{PACKAGE}\.{re.escape(leaf)}\b"), {ROOT / path for path in paths_of_leaf(leaf)}
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


def test_tests_of_the_rest_import_no_leaf():
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


def test_every_rival_has_a_configuration_and_a_test_of_its_own():
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / ROOM).iterdir()}
    assert [rival for rival in RIVALS if not algorithms_of(rival) or rival not in tests] == []
    assert not any({"base", *SHARED} & algorithms_of(rival) for rival in RIVALS)


def test_nothing_imports_a_rival_but_itself_and_its_tests():
    """Stand-ins for others' modules, which their tests of the same methods import, are such tests."""
    others = (path for name in ("tests", "bench", "examples") for path in (ROOT / name).rglob("*.py"))
    found = []
    for file in (*FILES, *STUDIES, *others):
        here = file.relative_to(ROOT).as_posix()
        for line, module in imports_of(file):
            if module[:2] == (PACKAGE, ROOM) and len(module) > 2:
                own = rf"(src/{PACKAGE}/{ROOM}/{module[2]}\b|tests/{ROOM}/(test_)?{module[2]}\b|{STAND_INS})"
                if not re.match(own, here):
                    found.append(f"{here}:{line} imports {'.'.join(module)}")
    assert found == []


def test_the_package_names_no_rival():
    names = {name for rival in RIVALS for name in (rival, *algorithms_of(rival))}
    names -= declared("HOMONYMS").keys()
    words = re.compile(rf"\b({'|'.join(sorted(names))})\b", re.IGNORECASE)
    assert [
        f"{file.relative_to(ROOT)}:{number} {line.strip()}"
        for file in FILES
        if dotted_name(file)[1:2] != (ROOM,)
        for number, line in enumerate(file.read_text().replace("-", "_").splitlines(), 1)
        if words.search(line)
    ] == []


def test_no_shared_configuration_names_a_rival():
    kept = [path for path in sorted((ROOT / "conf").rglob("*.yaml")) if path.parent.name != "algorithm"]
    assert [path for path in kept if f".{ROOM}." in path.read_text()] == []


@pytest.mark.slow
def test_without_a_leaf_or_any_rival_the_rest_is_imported_and_runs_composed(copy):
    deletions = {leaf: (paths_of_leaf(leaf), ["grpo"]) for leaf in OWN}
    deletions["any rival"] = (paths_of_rivals(RIVALS), SHARED)
    assert complaints(copy, ".", deletions) == ""


@pytest.mark.slow
def test_without_one_rival_the_others_are_imported(copy):
    """Without half of them in turn, so that every one is missed by every other."""
    halves = parting(RIVALS)
    pairs = permutations(RIVALS, 2)
    assert all(any(one in half and other not in half for half in halves) for one, other in pairs)
    deletions = {", ".join(half): (paths_of_rivals(half), []) for half in halves}
    assert complaints(copy, f"{PACKAGE}/{ROOM}", deletions) == ""


@pytest.mark.slow
@pytest.mark.drill
def test_types_are_right_without_leaves_and_rivals(copy):
    """Nothing imports either, see above, so that to delete one shows nothing that to delete all does not."""
    for leaf in OWN:
        shutil.rmtree(copy / paths_of_leaf(leaf)[0])
    for path in paths_of_rivals(RIVALS):
        own = copy / path
        shutil.rmtree(own) if own.is_dir() else own.unlink()
    cache = ROOT / ".mypy_cache"  # what it knows of libraries and of files that are the same
    if cache.exists():
        shutil.copytree(cache, copy / cache.name)
    done = subprocess.run([sys.executable, "-m", "mypy", "src"], capture_output=True, text=True, cwd=copy)
    assert done.returncode == 0, done.stdout
