"""Commands in README and docs: what they start exists, make accepts them, and runs can be composed."""

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.group_names import expanded_overrides
from bapo_lightning.configuration.validate import validate
from bapo_lightning.system.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z0-9-]+):(?!=).*##", MAKEFILE, re.MULTILINE))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
SKILL = ".agents/skills/bapo-lightning/SKILL.md"
DOCUMENTS = [README, *(path.read_text() for path in (ROOT / SKILL, ROOT / "CONTRIBUTING.md", *PAGES))]
FOREIGN = {
    "git", "cd", "cp", "mkdir", "sleep", "ssh", "pip", "ray", "export", "source", "wandb", "tensorboard",
    "torchrun", "srun", "hf",
}  # fmt: skip
NEEDED = dict(re.findall(r"^NEEDS_([\w-]+) := (.*)$", MAKEFILE, re.MULTILINE))


def shown_commands(text):
    """Returns the command lines of the shell blocks, without prompts, comments and line continuations."""
    blocks = re.findall(r"^```(?:sh|bash|console|shell)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if words(line.removeprefix("$ "))]


def words(command):
    split = shlex.split(command, comments=True)
    while split and re.match(r"[A-Z_]+=", split[0]):
        split.pop(0)
    return split


# Environments count as ready, so that no test depends on what this machine has installed.
READY = [f"--old-file={mark}" for mark in re.findall(r"^READY\w* := (\.venv[\w./-]*)", MAKEFILE, re.M)]


def dry_run(*arguments):
    command = ["make", "--dry-run", *READY, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


COMMANDS = sorted({command for text in DOCUMENTS for command in shown_commands(text)})
MAKE_COMMANDS = [command for command in COMMANDS if words(command)[0] == "make"]
# Commands in running text as well: `make train ARGS="..."`.
QUOTED = [quote for text in DOCUMENTS for quote in re.findall(r"`([^`\n]+)`", text)]
MENTIONED = set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", "\n".join([*COMMANDS, *QUOTED])))


# `make setup` runs it in .venv.
INSTALLATION = "pip install -e ."


def test_the_commands_of_a_newcomer_are_shown():
    assert {"make train", "make test", INSTALLATION} <= set(shown_commands(README))
    assert '("-e", ".", ' in (ROOT / "scripts/make_venv.py").read_text()


def test_every_target_that_is_named_exists():
    assert sorted(MENTIONED - TARGETS) == []


def test_help_lists_every_target_with_its_explanation():
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = dict(re.findall(r"^  make ([a-z0-9-]+) +(\S.*)$", done.stdout, re.MULTILINE))
    assert set(listed) == TARGETS
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None and set(phony[1].replace("\\", "").split()) == TARGETS


def test_make_refuses_variables_that_its_target_does_not_read():
    recipes = (ROOT / "Makefile").read_text().partition(".DEFAULT_GOAL")[2]
    for target, recipe in re.findall(r"^([a-z0-9-]+):.*##.*\n((?:\t.*\n)*)", recipes, re.MULTILINE):
        reads = set(re.findall(r"\$\((?:if \$\(|or \$\()?([A-Z]+)\)", recipe)) - {"PARALLEL"}
        for variable in {"EXP", "ARGS", "CKPT", "seed"} | reads:
            needed = {f"{name}=x" for name in NEEDED.get(target, "").split()}
            done = dry_run(target, *{*needed, f"{variable}=x"})
            refused = f"make {target} does not read {variable}" in done.stderr
            assert refused == (variable not in reads), (target, variable)


def test_make_accepts_every_command_as_shown():
    answers = {command: dry_run(*words(command)[1:]) for command in MAKE_COMMANDS}
    refused = {command: done.stderr for command, done in answers.items() if done.returncode or done.stderr}
    assert answers and refused == {}


def test_what_another_command_runs_exists():
    others = [command for command in COMMANDS if command not in MAKE_COMMANDS]
    assert others and [command for command in others if not is_there(*words(command))] == []


def is_there(program, *arguments):
    """Returns whether a command finds its program, or the module or file (also a shown one) of Python."""
    if not program.endswith(("python", "python3")):
        return program in FOREIGN or (ROOT / program).is_file()
    if arguments[0] == "-m":
        # A look for pip with find_spec would switch off setuptools' own distutils in this process.
        return arguments[1] == "pip" or importlib.util.find_spec(arguments[1]) is not None
    return (ROOT / arguments[0]).is_file() or any(f"\n# {arguments[0]}\n" in text for text in DOCUMENTS)


# The other targets run a tool of the environment: pip, pytest, ruff, mypy, mkdocs, rm.
SETUPS = {"setup", "setup-vllm", "setup-trl", "setup-verl"}
TESTS = {"test", "test-all", "test-vllm", "test-hydra", "test-low", "matrix"}
TOOLS = SETUPS | TESTS | {"lint", "docs", "clean", "help"}


def started(command):
    program, *arguments = words(command)
    if program == "make":
        command = dry_run(*arguments).stdout
    return (
        set(re.findall(r"-m ((?:bapo_lightning|bench|studies|tests)[\w.]*)", command)),
        set(re.findall(r"\b((?:bench|scripts|tests/zoo)/\w+\.py)", command)),
    )


def test_make_says_what_a_target_lacks():
    done = subprocess.run(["make", "export", "CKPT=x"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "make export needs TO=..." in done.stderr


def test_every_target_runs_modules_and_files_that_exist():
    lacking = {}
    for target in sorted(TARGETS - TOOLS):
        needed = [f"{name}=x" for name in NEEDED.get(target, "").split()]
        modules, files = started(" ".join(["make", target, *needed]))
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        missing += [name for name in files if not (ROOT / name).is_file()]
        if missing or not modules | files:
            lacking[target] = missing or "starts nothing"
    assert lacking == {}


def test_every_command_of_the_readme_starts_what_a_test_runs():
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))

    def is_tested(module):
        room, _, name = module.rpartition(".")
        imported = rf"from {re.escape(room)} import [^\n]*\b{name}\b"
        return re.search(rf"{re.escape(module)}\b|{imported}", tests) is not None

    modules = {command: started(command)[0] for command in shown_commands(README)}
    del modules[INSTALLATION]
    idle = [command for command, found in modules.items() if not found]
    assert [command for command in idle if not TOOLS & set(re.findall(r"[a-z-]+", command))] == []
    assert [module for module in set().union(*modules.values()) if not is_tested(module)] == []


RUNS = re.compile(r"-m bapo_lightning(?: |\.cli\.|\.tools\.commands\.)(?:train|rehearse|data) ([^#\n]*)")
# tests/test_add_a_baseline.py and test_day_two.py follow these pages to the letter.
FOLLOWED = {"docs/add_a_baseline.md", "docs/day_two.md"}


def shown_runs(document):
    shown = shown_commands((ROOT / document).read_text())
    made = [dry_run(*words(line)[1:]).stdout for line in shown if line.startswith("make ")]
    made += [line for line in shown if line.startswith("python -m bapo_lightning ")]
    return {run for run in RUNS.findall("\n".join(made)) if "<" not in run and run.strip()}


def composed(arguments):
    """Returns the overrides of a run; of a multirun those of its first run."""
    arguments = arguments.replace("--config-dir conf", "hydra.searchpath=[file://conf]")
    asked = [word for word in shlex.split(arguments) if word not in ("-m", "--cfg", "job")]
    parsed = OverridesParser.create().parse_overrides(expanded_overrides(asked))
    return [
        f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"
        if override.is_sweep_override()
        else override.input_line
        for override in parsed
        if not override.get_key_element().startswith("+show")
    ]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """The folder of a reader of docs/tutorial.md, with its files."""
    page = (ROOT / "docs/tutorial.md").read_text()
    for name, text in re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "sums.csv").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


FAST = ["README.md", SKILL, "docs/tutorial.md"]
NAMES = sorted({path.relative_to(ROOT).as_posix() for path in PAGES} - {*FAST, *FOLLOWED})
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("document", [*FAST, *SLOW])
def test_every_run_that_is_shown_can_be_composed(document, lab):
    wrong = {}
    for arguments in shown_runs(document):
        try:
            validate(compose_run(composed(arguments)), "run")
        except ConfigError as error:
            wrong[arguments] = str(error)
    assert wrong == {}


def test_a_table_of_ones_own_is_shown_with_a_model_whose_prompts_it_fits():
    """The default experiment's tokenizer has the letters of a tiny world, and its prompts 8 tokens."""
    tables = [words(row) for text in DOCUMENTS for row in shown_commands(text) if "data.train.path=" in row]
    shown = [line for line in tables if line[:2] == ["make", "data"]]
    assert shown and all("model.path=" in " ".join(line) for line in shown)
