"""What each preset of conf/algorithm sets, next to what its authors' scripts set.

    python -m tests.zoo.presets     writes docs/results/presets.md and its data, as `make tables` does

presets.yaml, and comments in files of algorithms, were written by reading the scripts. `here` is checked with
the composed configuration; what is `there` is not. commands.yaml has all flags of the scripts, so that the
page shows those without a row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from scripts.doc_tables import ROOT, write
from tests.zoo.algorithms import FOLDER, composed

from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.system.run_folder.text_file import write_csv

FILE = Path(__file__).with_name("presets.yaml")
COMMANDS = Path(__file__).with_name("commands.yaml")
PAGE = "docs/results/presets.md"
FOLDER_OF_PAGE = (ROOT / PAGE).parent
NO_SETTINGS = {"name", "defaults", "_target_", "_partial_"}
KINDS = {
    "script": "authors' script", "config": "authors' configuration file", "example": "framework's example",
    "default": "default of the code", "paper": "paper", "unread": "another's reading", "ours": "ours",
}  # fmt: skip
WITH_COMMANDS = {"script", "config", "example"}
WITHOUT_FLAGS = {"flowrl_authors_code": "a file of code", "p3o": "a file of code"}
_FILE = re.compile(r"[\w.-]+\.(?:sh|ya?ml|md|py)\b")
_CITED = re.compile(r"([\w.-]*):([0-9]+)(?:-([0-9]+))?")


@dataclass(frozen=True)
class Row:
    """A setting here and there."""

    key: str  # of the configuration; in brackets: something that has no key here
    here: Any
    there: Any
    where: str  # file:line, section or :line of the preset's file
    reason: str = ""  # why they differ

    @property
    def is_equal(self) -> bool:
        return bool(self.here == self.there)


@dataclass(frozen=True)
class Preset:
    """The rows of a file of conf/algorithm."""

    name: str
    kind: str
    source: str
    rows: tuple[Row, ...]

    def cites(self, file: str, line: int) -> bool:
        """Whether the place of a row is this line of a file; "": of the file that `source` names first."""
        own = _FILE.search(self.source)
        first_file = own[0] if own else ""
        return any(
            (name or first_file) == (file or first_file) and int(first) <= line <= int(last or first)
            for row in self.rows
            for name, first, last in _CITED.findall(row.where)
        )


@dataclass(frozen=True)
class Flag:
    """A flag of a command, with its value unless it is about files, machines or logs."""

    text: str
    places: tuple[tuple[str, int], ...]  # file, "" for that of the command, and line; variables included

    @classmethod
    def read(cls, line: str) -> Flag:
        """Reads a line of commands.yaml."""
        places, _, text = line.partition(" ")
        parts = [place.rpartition(":") for place in places.split(",")]
        return cls(text, tuple((file, int(number)) for file, _, number in parts))


@cache
def commands() -> dict[str, tuple[Flag, ...]]:
    """Returns the flags of every preset that has a command."""
    read: Mapping[str, str] = yaml.safe_load(COMMANDS.read_text())
    return {
        name: tuple(map(Flag.read, text.splitlines()))
        for names, text in read.items()
        for name in names.split("/")
    }


def not_compared(preset: Preset) -> list[Flag]:
    """Returns the flags of a preset's command that no row speaks of."""
    flags = commands().get(preset.name, ())
    return [flag for flag in flags if not any(preset.cites(*place) for place in flag.places)]


def written() -> Mapping[str, Any]:
    """Returns presets.yaml."""
    return yaml.safe_load(FILE.read_text())


def presets() -> list[Preset]:
    """Returns the presets of presets.yaml, in its order, and those that an algorithm's own file has."""
    noted = {path.stem: entry for path in sorted(FOLDER.glob("*.yaml")) if (entry := in_comments(path))}
    return [
        Preset(name, each["is"], each["from"], tuple(Row(*row) for row in each.get("rows", ())))
        for name, each in {**written()["presets"], **noted}.items()
    ]


def in_comments(path: Path) -> dict[str, Any]:
    """Returns the entry of a preset that stands in the comments of its file; empty: there is none."""
    found = re.findall(r"^# (is|from|row): (.*)$", path.read_text(), re.MULTILINE)
    rows = [yaml.safe_load(text) for label, text in found if label == "row"]
    return {**dict(found), "rows": rows} if found else {}


def names() -> list[str]:
    """Returns the presets of conf/algorithm by their paths, those of bounds included."""
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml"))


@cache
def settings(name: str) -> Mapping[str, Any]:
    """Returns a preset as composed, with references to other parts of the configuration as written."""
    node = (
        OmegaConf.load(FOLDER / f"{name}.yaml")
        if "/" in name or name == "base"
        else composed("algorithm", name)
    )
    return OmegaConf.to_container(node, resolve=False)


def setting(name: str, key: str) -> Any:
    """Returns a setting of a preset; of a part the name of what it makes, and None for what it lacks."""
    value: Any = settings(name)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    made = isinstance(value, Mapping) and "_target_" in value
    return value["_target_"].rpartition(".")[2] if made else value


def own_keys(name: str) -> list[str]:
    """Returns the keys of the settings that a preset's own file has."""
    return list(_leaves(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()), ""))


def _leaves(node: Mapping[str, Any], above: str) -> Iterator[str]:
    for key, value in node.items():
        if key in NO_SETTINGS:
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def tables() -> dict[str, str]:
    """Returns the tables of docs/results/presets.md by their names."""
    rows = [(each.name, row) for each in presets() for row in each.rows]
    differing = [(name, row) for name, row in rows if not row.is_equal]
    reasons = Counter(row.reason for _, row in differing)
    common = [(reason, _presets(reason, differing)) for reason, count in reasons.most_common() if count > 2]
    kinds = Counter(KINDS[each.kind] for each in presets())
    counts = len(presets()), len(rows), len(differing), len({name for name, _ in differing})
    return {
        "counts": markdown_table(["presets", "settings", "that differ", "presets that differ"], [counts]),
        "kinds": markdown_table(["source", "presets"], kinds.most_common()),
        "reasons": markdown_table(["reason", "presets and settings"], common),
    }


def _presets(reason: str, differing: Sequence[tuple[str, Row]]) -> str:
    return ", ".join(f"`{name}` {row.key}" for name, row in differing if row.reason == reason)


def files() -> dict[str, list[Sequence[Any]]]:
    """Returns the data files of docs/results by their names, each with its head."""
    none = Row("", "", "", "")
    compared = [
        (each.name, KINDS[each.kind], each.source, row.key, shown(row.here), shown(row.there),
         row.where, "" if row.is_equal else "yes", row.reason)
        for each in presets() for row in each.rows or (none,)
    ]  # fmt: skip
    head = "preset", "which is", "source", "setting", "here", "there", "where", "differs", "reason"
    flags = [_flags(each) for each in presets() if each.name in commands()]
    return {
        "presets.csv": [head, *compared],
        "presets_flags.csv": [("preset", "flags", "about the run"), *flags],
        "presets_sources.csv": [("name", "repository and commit"), *written()["sources"].items()],
    }


def _flags(preset: Preset) -> Sequence[Any]:
    texts = [flag.text for flag in not_compared(preset)]
    valued = [text for text in texts if "=" in text or " " in text]
    names = {text.rpartition(".")[2] for text in texts if text not in valued}
    return preset.name, "\n".join(valued), len(names)


def shown(value: Any) -> str:
    """Returns a value as it is written in YAML, in a cell of a table."""
    if value is None:
        return "none"
    if isinstance(value, float) and value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    for name, table in tables().items():
        write(PAGE, name, table)
    for name, rows in files().items():
        write_csv(FOLDER_OF_PAGE / name, rows[0], rows[1:])
