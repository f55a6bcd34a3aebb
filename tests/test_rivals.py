"""A rival is a file that can be deleted, with its files of conf/algorithm/ and its test: nothing else imports
it or names it, and a copy of the tree without it imports and composes the rest.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.test_layers import FILES, PACKAGE, STUDIES, dotted_name, imports_of

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf" / "algorithm"
ROOM = "algorithms"
SHARED = {"base", "grpo", "dapo"}  # and BAPO's own
# Names of rivals that are words of the package for something else, too: a metric, and real numbers.
HOMONYMS = {"pass_at_k", "real"}
RIVALS = sorted(
    path.stem
    for path in (ROOT / "src" / PACKAGE / ROOM).iterdir()
    if path.stem not in ("__init__", "__pycache__")
)
YAML = {path.stem: path.read_text() for path in sorted(CONF.glob("*.yaml"))}

# Imports what is left of the algorithms in a copy of the tree without a rival, and checks the configurations
# of some, each time in a fork of this process, which has the heavy libraries; prints what fails.
LEFT = """
import json, os, sys, traceback
from importlib import import_module
from pathlib import Path
import lightning, peft, pydantic, rich, sympy, torch, transformers, hydra, torchmetrics.text
import transformers.models.llama.modeling_llama

def check(source, algorithms):
    sys.path.insert(0, str(source))
    for file in sorted((source / "bapo_lightning" / "algorithms").rglob("*.py")):
        name = ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        assert import_module(name).__file__ == str(file), name
    import bapo_lightning.cli.train, bapo_lightning.runs.train, bapo_lightning.library
    from bapo_lightning.configuration.compose import compose_run
    from bapo_lightning.configuration.validate import validate
    for name in algorithms:
        validate(compose_run([f"algorithm={name}", "run_folder=unused"]))

tree = Path(sys.argv[1])
for files in json.loads(sys.argv[2]):
    for file in files:
        (tree / file).rename(tree / "out" / file.replace("/", "|"))
    if os.fork() == 0:
        try:
            check(tree / "src", ["grpo", "dapo", "bapo"])
        except BaseException:
            print(f"without {files}:")
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    for file in files:
        (tree / "out" / file.replace("/", "|")).rename(tree / file)
"""


def parents(name: str) -> list[str]:
    """Files of conf/algorithm that one builds on."""
    return [each for each in yaml.safe_load(YAML[name])["defaults"] if isinstance(each, str)]


def files_of(rival: str) -> set[str]:
    """Files of conf/algorithm that go with a rival: those that name its module, and those built on them."""
    own = {name for name, text in YAML.items() if f".{ROOM}.{rival}." in text}
    while more := {name for name in YAML.keys() - own - {"base"} if own.intersection(parents(name))}:
        own |= more
    return own


def names_of(rival: str) -> set[str]:
    return {rival, *files_of(rival)} - HOMONYMS


def test_every_rival_has_a_configuration_and_a_test_of_its_own() -> None:
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / ROOM).iterdir()}
    assert [rival for rival in RIVALS if not files_of(rival) or rival not in tests] == []
    assert not any(SHARED & files_of(rival) for rival in RIVALS)


def test_nothing_imports_a_rival_but_itself_and_its_tests() -> None:
    others = [
        *FILES,
        *STUDIES,
        *(path for name in ("tests", "bench", "examples") for path in (ROOT / name).rglob("*.py")),
    ]
    found = []
    for file in others:
        here = file.relative_to(ROOT).as_posix()
        for line, module in imports_of(file):
            if module[:2] == (PACKAGE, ROOM) and len(module) > 2:
                own = rf"(src/{PACKAGE}/{ROOM}/{module[2]}\b|tests/{ROOM}/(test_)?{module[2]}\b)"
                if not re.match(own, here):
                    found.append(f"{here}:{line} imports {'.'.join(module)}")
    assert found == []


def test_the_package_names_no_rival() -> None:
    found = []
    words = re.compile(r"\b(" + "|".join(sorted(set().union(*map(names_of, RIVALS)))) + r")\b", re.IGNORECASE)
    for file in FILES:
        if dotted_name(file)[1:2] != (ROOM,):
            lines = enumerate(file.read_text().replace("-", "_").splitlines(), 1)
            found += [
                f"{file.relative_to(ROOT)}:{number} {line.strip()}"
                for number, line in lines
                if words.search(line)
            ]
    assert found == []


def test_no_shared_configuration_names_a_rival() -> None:
    kept = [path for path in sorted((ROOT / "conf").rglob("*.yaml")) if path.parent != CONF]
    assert [path for path in kept if f".{ROOM}." in path.read_text()] == []


def paths_of(rival: str) -> list[str]:
    """Paths of a rival in the tree, without its test."""
    module = f"src/{PACKAGE}/{ROOM}/{rival}"
    own = module if (ROOT / module).is_dir() else f"{module}.py"
    return [own, *(f"conf/algorithm/{name}.yaml" for name in sorted(files_of(rival)))]


def complaints(place: Path, removed: list[list[str]]) -> str:
    """What is printed of copies of the tree without some of its files."""
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (place / "out").mkdir()
    command = [sys.executable, "-I", "-c", LEFT, str(place), json.dumps(removed)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place)
    return done.stdout + (done.stderr if done.returncode else "")


@pytest.mark.slow
def test_a_copy_without_any_rival_imports_and_composes_the_rest(tmp_path: Path) -> None:
    assert complaints(tmp_path, [sorted({path for rival in RIVALS for path in paths_of(rival)})]) == ""


@pytest.mark.slow
def test_a_copy_without_one_rival_imports_and_composes_the_rest(tmp_path: Path) -> None:
    assert complaints(tmp_path, [paths_of(rival) for rival in RIVALS]) == ""


@pytest.mark.slow
def test_types_are_right_without_any_rival(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for rival in RIVALS:
        own = tmp_path / paths_of(rival)[0]
        shutil.rmtree(own) if own.is_dir() else own.unlink()
    done = subprocess.run([sys.executable, "-m", "mypy", "src"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
