"""The house in numbers: rooms, arrows, floors, and what a reader has to open; of one checkout, or of two side
by side.

    python -m tests.house CHECKOUT [OTHER] [--graph]

Counts what git would commit. It reads files and imports none, so that old checkouts can be counted, too.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PurePosixPath

from tests.import_graph import Graph, dotted_name, floors, imports_between, imports_of, reached

PACKAGE = "bapo_lightning"
SOURCE = f"src/{PACKAGE}/"
TREES = ("studies/", "tests/", "bench/", "conf/", "docs/")
# Features in folders that nothing imports, and the files that they were scattered over before, below SOURCE.
LEAVES = {
    "extras.ray": ("extras/ray/*", "ray/*", "rollout/ray/*", "ranks/ray/*"),
    "extras.simulation": ("extras/simulation/*", "simulation/*", "runs/simulate.py", "cli/simulate.py"),
    "extras.agent": ("extras/agent/*",),
    "extras.openenv": ("extras/openenv/*", "environments/openenv/*"),
    "extras.python": ("extras/python/*", "environments/python/*"),
    "extras.textarena": ("extras/textarena/*", "environments/textarena*", "data/problems/games.py"),
    "extras.verifiers": ("extras/verifiers/*", "environments/verifiers/*"),
    "extras.math": ("extras/math/*", "rewards/math/*"),
    "step critic": (
        "algorithms/direct_advantage/*", "cli/critic.py", "runs/critic.py", "modules/step_critic.py",
        "modules/critic_training.py", "data/rollouts/steps.py", "data/rollouts/completions.py",
        "objectives/advantages/steps.py", "objectives/methods/direct_advantage.py",
    ),
}  # fmt: skip
# What a reader of the core can skip: wings, rules of commands, and what a run with one engine does not need,
# on one rank, with one turn and finished answers.
WINGS = ("tools/*", "extras/*", "algorithms/*", "library.py", "losses.py", "plan/*")
OPTIONAL = (
    *("rollout/vllm/*", "rollout/child/*", "rollout/distributed.py", "rollout/weight_transport.py"),
    *("rollout/gathered.py", "system/ranks/*", "data/controller.py", "data/worker.py", "modules/fsdp.py"),
    *("modules/policy/lora.py", "modules/policy/for_objective.py", "modules/speculation.py"),
    *("modules/score_kernels.py", "modules/liger_head.py", "data/rollouts/async*", "data/rollouts/stream*"),
    *("data/rollouts/schedule*_*", "data/rollouts/schedule.py"),
    *("data/rollouts/conversations.py", "data/rollouts/feedback.py"),
    *("data/rollouts/turn_rules.py", "data/rollouts/control_tokens.py"),
    *("environments/*", "tiny_worlds/sums/*", "tiny_worlds/additions/*", "data/problems/overlap.py"),
    *("data/problems/countdown.py", "data/problems/reasoning_gym.py", "rewards/reasoning*"),
    *("callbacks/loggers/wandb.py", "callbacks/monitors/turns.py", "configuration/rank_rules.py"),
    *("configuration/evaluation_config.py", "configuration/machine*.py", "configuration/plan.py"),
    *("configuration/help.py", "configuration/early.py", "configuration/thirty_keys.py"),
)
NAMED = {
    "AEPO": "aepo", "AEPO or second sampling": "aepo|second.?sampling",
    "GHPO": "ghpo", "LUFFY": "luffy", "a critic": r"critic(?!al|i[sz])", "ESTR": r"\bestr\b",
    # One of each kind that is added to the package, besides rivals.
    "the reward final_value": "final_value", "the engine hf_child": "hf_child",
    "the environment textarena": "textarena", "the metric filtered_samples": "rollout/filtered_samples",
}  # fmt: skip
METRICS = ("bapo/positive_share", "train/reward", "policy/entropy")
KEY = "group_size"
READ = ("data", "rollout", "types", "modules")  # rooms that a rollout passes
SECTIONS = ("AlgorithmNodes", "Algorithm")  # names of the section of an algorithm, the newest first


class House:
    """What can be counted of a tree, given the text of its files by path."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self.source = {
            path.removeprefix(SOURCE): text for path, text in files.items() if path.startswith(SOURCE)
        }
        self.modules = {path: ast.parse(text) for path, text in self.source.items() if path.endswith(".py")}
        self.leaf_of = {
            path: leaf
            for path in self.source
            for leaf, patterns in LEAVES.items()
            if any(fnmatch(path, pattern) for pattern in patterns)
        }

    @classmethod
    def of(cls, checkout: Path) -> House:
        """Reads the text files of a checkout that git has or would add."""
        command = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        paths = [path for path in listed.split("\0") if (checkout / path).is_file()]
        contents = {path: (checkout / path).read_bytes() for path in paths}
        return cls({path: data.decode() for path, data in contents.items() if b"\0" not in data})

    @cached_property
    def imports(self) -> Graph:
        """Which module imports which; leaves are left out."""
        files = [PurePosixPath(PACKAGE, path) for path in self.modules if path not in self.leaf_of]
        found = {dotted_name(file): imports_of(file, self.files[f"src/{file}"]) for file in files}
        return imports_between(found)

    @cached_property
    def limited(self) -> dict[str, int]:
        """What tests/test_house.py holds: each number by its name."""
        core = {
            path: text
            for path, text in self.source.items()
            if not any(fnmatch(path, pattern) for pattern in (*WINGS, *OPTIONAL))
        }
        top = {path.partition("/")[0] for path in self.source if not path.startswith("__")}
        tests = (
            text for path, text in self.files.items() if path.startswith("tests/") and path.endswith(".py")
        )
        return {
            "lines of src": sum(text.count("\n") for text in self.source.values()),
            "lines of the core": sum(text.count("\n") for text in core.values()),
            "lines of tests": sum(text.count("\n") for text in tests),
            "folders at the top": sum("." not in name for name in top),
            "files at the top": sum(name.endswith(".py") for name in top),
            "class names in several files": len(self.shared_class_names),
        }

    @property
    def shared_class_names(self) -> list[str]:
        """Class names that two or more files of the package define."""
        return sorted(name for name, count in Counter(self.class_names).items() if count > 1)

    @property
    def folders(self) -> set[str]:
        """The rooms that are folders, leaves apart."""
        return {path.split("/")[0] for path in self.source if "/" in path and path not in self.leaf_of}

    @cached_property
    def rooms(self) -> Graph:
        """Which room imports which: folders and files at the top of the package; leaves are left out."""
        found: dict[str, set[str]] = {}
        for importer, imported in self.imports.items():
            here = room_of(importer)
            there = {room_of(name) for name in imported} - {here}
            if not here.startswith("__"):
                found.setdefault(here, set()).update(name for name in there if not name.startswith("__"))
        return found

    def size(self, belongs: Callable[[str], bool]) -> str | None:
        """Returns lines and files of those below SOURCE that belong."""
        return size_of([text for path, text in self.source.items() if belongs(path)])

    def naming(self, pattern: str, anywhere: bool = False) -> int:
        """Returns the number of files of the package, or of the whole tree, that name something."""
        files = {**self.files, "tests/house.py": ""} if anywhere else self.source
        return sum(bool(re.search(pattern, text, re.IGNORECASE)) for text in files.values())

    @cached_property
    def class_names(self) -> list[str]:
        """Names of the classes of the package, each once for every file that it stands in."""
        return [
            name
            for tree in self.modules.values()
            for name in {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        ]

    def parameters(self, path: str, *names: str) -> int | None:
        """Returns how many parameters or fields the first of these classes has; None: there is none."""
        found = {node.name: node for node in ast.walk(self.modules[path]) if isinstance(node, ast.ClassDef)}
        return next((parameters_of(found[name]) for name in names if name in found), None)


def room_of(module: str) -> str:
    """Returns the room of a module: the second part of its name, `__init__` for the package itself."""
    return (*module.split("."), "__init__")[1]


def size_of(texts: Collection[str]) -> str | None:
    """Returns the number of lines and of files; None: there are none."""
    lines = sum(text.count("\n") for text in texts)
    return f"{lines:,} {len(texts):>4}" if texts else None


def parameters_of(node: ast.ClassDef) -> int:
    """Returns the number of parameters of a class's `__init__`, or of its fields where it has none."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return len(each.args.args) + len(each.args.kwonlyargs) - 1
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    names = [each.target.id for each in fields if isinstance(each.target, ast.Name)]
    return sum(not name.startswith("_") for name in names)


def rows(house: House, folders: Collection[str]) -> dict[str, object]:
    """Returns what is counted of a house, by what it is; sizes by folder for these."""
    parameters = house.parameters
    floor = floors(house.rooms)
    read = reached(house.imports, f"{PACKAGE}.data.data_module", READ)
    found: dict[str, object] = {"lines and files of src": house.size(lambda path: True)}
    found["  without leaves"] = house.size(lambda path: path not in house.leaf_of)
    for room in sorted(folders):
        found[f"    {room}"] = house.size(
            lambda path, room=room: path.startswith(f"{room}/") and path not in house.leaf_of
        )
    found["    files at the top"] = house.size(lambda path: "/" not in path)
    for leaf in LEAVES:
        found[f"  leaf {leaf}"] = house.size(lambda path, leaf=leaf: house.leaf_of.get(path) == leaf)
    for tree in TREES:
        texts = [text for path, text in house.files.items() if path.startswith(tree)]
        found[f"lines and files of {tree}"] = size_of(texts)
    found |= {
        "rooms: folders": len(house.folders),
        "rooms: files at the top": len(house.rooms.keys() - house.folders),
        "arrows between rooms": sum(len(imported) for imported in house.rooms.values()),
        "floors: longest chain of rooms": max(floor.values(), default=0),
        "classes": len(house.class_names),
        **house.limited,
        "parameters of RolloutDataModule": parameters("data/data_module.py", "RolloutDataModule"),
        "fields of RolloutSampler": parameters("data/rollouts/sampler.py", "RolloutSampler"),
        "parameters of BapoModule": parameters("modules/bapo_module.py", "BapoModule"),
        "keys of the section algorithm": parameters("configuration/sections.py", *SECTIONS),
        "fields of TokenTable": parameters("objectives/token_table.py", "TokenTable"),
    }
    for name, pattern in NAMED.items():
        found[f"files that name {name}: src"] = house.naming(pattern)
        found[f"files that name {name}: whole tree"] = house.naming(pattern, anywhere=True)
    for name in (*METRICS, KEY):
        found[f"files of src that name {name}"] = house.naming(rf"(?<![\w/]){name}(?![\w/])")
    found[f"modules reached by imports from data_module within {', '.join(READ)}"] = len(read)
    found["modules that data_module imports itself"] = len(house.imports[f"{PACKAGE}.data.data_module"])
    return found


def graph(house: House) -> str:
    """Returns the floors from top to bottom, each room with the rooms that it imports."""
    on = floors(house.rooms)
    lines = []
    for number in range(max(on.values(), default=0), 0, -1):
        lines += [
            f"{number:>3}  {room:<16}"
            + (f"-> {' '.join(sorted(house.rooms[room]))}" * bool(house.rooms[room]))
            for room in sorted(name for name in on if on[name] == number)
        ]
    leaves = [leaf for leaf in LEAVES if leaf in house.leaf_of.values()]
    return "\n".join([*(line.rstrip() for line in lines), f"     leaves: {', '.join(leaves)}"])


def main() -> None:
    """Prints the table, or the graph."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="+", type=Path, help="one folder, or two")
    parser.add_argument("--graph", action="store_true", help="floors, rooms and arrows instead of the table")
    arguments = parser.parse_args()
    houses = [House.of(checkout) for checkout in arguments.checkouts]
    if arguments.graph:
        print("\n\n".join(graph(house) for house in houses))
        return
    folders = set().union(*(house.folders for house in houses))
    columns = [rows(house, folders) for house in houses]
    for name in columns[0]:
        cells = ["-" if column[name] is None else str(column[name]) for column in columns]
        print(f"{name:<72}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
