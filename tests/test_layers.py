"""Imports point down only, and the light part of the package stays light."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests import import_graph
from tests.import_graph import circle, imported_modules, imports_between

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = "bapo_lightning"
LAYER_OF_ROOM = {
    "types": 0, "system": 1,
    "objectives": 2, "rewards": 2, "environments": 2, "plan": 2,
    "report": 3, "rollout": 3, "tiny_worlds": 3,
    "data": 4,
    "modules": 5,
    "callbacks": 6, "reference": 6,
    "configuration": 7,
    "runs": 8, "losses": 8,
    "tools": 9,
    "library": 10, "cli": 10,
    "algorithms": 11, "extras": 11, "__main__": 11,
}  # fmt: skip
# Rooms that may import anything and that nothing imports: tests/test_leaves.py.
LEAVES = (
    "extras.agent", "extras.math", "extras.openenv", "extras.python", "extras.ray", "extras.simulation",
    "extras.textarena", "extras.verifiers",
)  # fmt: skip
LAYER_OF_ROOM |= dict.fromkeys(LEAVES, 11)
FACE = "library"  # all that the package itself imports, when it is asked for it
TORCH_FREE = (
    "types", "rewards", "environments", "report", "plan",
    "system.errors", "system.phases", "system.run_folder", "system.peers",
    "extras.agent", "extras.math", "extras.openenv", "extras.python", "extras.textarena", "extras.verifiers",
)  # fmt: skip
BUILT_ON_TORCH = {"torch", "lightning", "transformers", "torchmetrics", "vllm"}
FILES = sorted((SOURCE / PACKAGE).rglob("*.py"))
STUDIES = sorted((ROOT / "studies").rglob("*.py"))


def from_where_imports_start(file):
    return file.relative_to(SOURCE if file.is_relative_to(SOURCE) else ROOT)


def dotted_name(file):
    return import_graph.dotted_name(from_where_imports_start(file))


def room(module):
    return ".".join(module[1:3] if module[1:2] == ("extras",) else module[1:2])


@cache
def imports_of(file):
    return import_graph.imports_of(from_where_imports_start(file), file.read_text())


@cache
def imports_between_files():
    return imports_between({dotted_name(file): imports_of(file) for file in (*FILES, *STUDIES)})


def imports_between_neighbours(files):
    """From one folder to another that stands next to it; a folder's name stands for all that is in it. Leaves
    are left out, which close no circle because nothing imports them.
    """
    found = {}
    for importer, imported in files.items():
        for other in imported if room(tuple(importer.split("."))) not in LEAVES else ():
            here, there = importer.split("."), other.split(".")
            common = next(n for n in range(len(here) + 1) if here[: n + 1] != there[: n + 1])
            if min(len(here), len(there)) > common + 1:
                one, two = (".".join(name[: common + 1]) for name in (here, there))
                found.setdefault(one, set()).add(two)
    return found


def test_every_room_has_a_layer():
    rooms = {room(dotted_name(file)) for file in FILES} - {""}
    assert rooms <= set(LAYER_OF_ROOM)


def test_contributing_lists_every_room_in_its_layer():
    lines = re.findall(r"^L(\d+) +((?:[\w.]+ )+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    listed = {name: int(layer) for layer, names in lines for name in names.split()}
    assert listed == {name: layer for name, layer in LAYER_OF_ROOM.items() if name != "__main__"}


def test_relative_imports_are_resolved():
    text = "from . import a\nfrom ..types import Group\ndef f():\n    import bapo_lightning.cli.train\n"
    found = imported_modules(ast.parse(text), (PACKAGE, "data", "batch"), is_package=False)
    expected = [(PACKAGE, "data", "a"), (PACKAGE, "types", "Group"), (PACKAGE, "cli", "train")]
    assert [name for _, name in found] == expected


def test_imports_point_down_only():
    upward = []
    for file in FILES:
        here = room(dotted_name(file))
        for line, module in imports_of(file):
            there = room(module)
            if module[0] != PACKAGE or there == here or there not in LAYER_OF_ROOM:
                continue
            if not (LAYER_OF_ROOM[there] < LAYER_OF_ROOM[here] if here else there == FACE):
                upward.append(f"{file.relative_to(SOURCE)}:{line} imports {'.'.join(module)}")
    assert upward == []


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}) == []
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def test_neighbours_are_folders_of_the_same_folder():
    files = {"p.a.x.one": {"p.a.y.two", "p.a.three", "p.b.four"}, "p.a.three": {"p.a.x.one"}}
    assert imports_between_neighbours(files) == {"p.a.x": {"p.a.y"}, "p.a": {"p.b"}}


def test_files_import_each_other_in_no_circle():
    assert circle(imports_between_files()) == []


def test_rooms_of_a_room_import_one_another_one_way():
    assert circle(imports_between_neighbours(imports_between_files())) == []


def test_nothing_imports_the_reference():
    assert {name for name, of in imports_between_files().items() if f"{PACKAGE}.reference" in of} == set()


def test_the_package_imports_nothing_that_is_not_shipped():
    imported = {module[0] for file in FILES for _, module in imports_of(file)}
    assert imported & {"studies", "tests", "bench", "scripts"} == set()


def test_rooms_without_torch_never_name_it():
    named = [
        f"{file.relative_to(SOURCE)}:{line} imports {'.'.join(module)}"
        for file in FILES
        if f"{'.'.join(dotted_name(file)[1:])}.".startswith(tuple(f"{part}." for part in TORCH_FREE))
        for line, module in imports_of(file)
        if module[0] in BUILT_ON_TORCH
    ]
    assert named == []


LIGHT = (
    *("", ".types", ".system.errors", ".extras.math", ".report", ".plan.console"),
    ".cli.train",
    *(f".tools.commands.{name}" for name in ("plan", "evaluate", "eval_table", "compare")),
)


def test_importing_what_is_light_imports_no_torch():
    modules = ", ".join([*(PACKAGE + part for part in LIGHT), "studies.map.__main__"])
    code = f"import sys, {modules}; print(sorted({BUILT_ON_TORCH} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_training_imports_no_reader_of_tables_and_no_http_client():
    unused = {"datasets", "pandas", "pyarrow", "aiohttp"}
    code = (
        f"import sys, {PACKAGE}.runs.train, {PACKAGE}.rollout.hf.engine; print({unused} & {{*sys.modules}})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
