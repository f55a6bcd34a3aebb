"""What each preset of conf/algorithm sets, beside what its authors' scripts set.

    python -m tests.zoo.presets     writes docs/results/presets.md from presets.yaml and the configuration

presets.yaml was written by reading the scripts. `here` is checked against the composed configuration; what is
`there` is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from tests.zoo.algorithms import FOLDER, composed

FILE = Path(__file__).with_name("presets.yaml")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "presets.md"
NO_SETTINGS = {"name", "defaults", "_target_", "_partial_"}
KINDS = {
    "script": "a script of the authors",
    "config": "a configuration file of the authors, as it is",
    "example": "an example script of a framework, by others than the authors",
    "default": "a default of the code, which no script sets",
    "paper": "the paper; no script was found",
    "unread": "another's reading; the repository could not be fetched",
    "ours": "no one else's",
}


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


def written() -> Mapping[str, Any]:
    """Returns presets.yaml."""
    return yaml.safe_load(FILE.read_text())


def presets() -> list[Preset]:
    """Returns the presets of presets.yaml, in its order."""
    return [
        Preset(name, each["is"], each["from"], tuple(Row(*row) for row in each.get("rows", ())))
        for name, each in written()["presets"].items()
    ]


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


INTRODUCTION = """\
# Presets against the authors' own scripts

{presets} presets of `conf/algorithm` with {settings} settings; {differing} differ from their source, each for a reason.
A default of a function is often not what its authors run, so scripts were read first; the second table says what each source is.
A test compares the values here with the configuration; those of others were read by hand in November 2026.
Settings in brackets have no key here, and a line without a file is of the preset's source.

`python -m tests.zoo.presets` writes this page from `tests/zoo/presets.yaml`.
"""  # noqa: E501
DIFFERING, EQUAL, SOURCES = (
    "## What differs\n\n| preset | setting | here | there | where | reason |\n|---|---|---|---|---|---|",
    "## What is the same\n\n| preset | source | which is | settings |\n|---|---|---|---|",
    "## Sources\n\n| name | repository and commit |\n|---|---|",
)


def page() -> str:
    """Returns docs/results/presets.md."""
    known = presets()
    differing = [(each.name, row) for each in known for row in each.rows if not row.is_equal]
    counts = {"presets": len(known), "settings": sum(len(each.rows) for each in known)}
    return "\n".join(
        [
            INTRODUCTION.format(**counts, differing=len(differing)),
            DIFFERING,
            *(
                _cells(f"`{name}`", row.key, shown(row.here), shown(row.there), row.where, row.reason)
                for name, row in differing
            ),
            "",
            EQUAL,
            *(_cells(f"`{each.name}`", each.source, KINDS[each.kind], _equal(each)) for each in known),
            "",
            SOURCES,
            *(_cells(name, place) for name, place in written()["sources"].items()),
            "",
        ]
    )


def _equal(preset: Preset) -> str:
    return "; ".join(f"{row.key} {shown(row.here)} ({row.where})" for row in preset.rows if row.is_equal)


def _cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def shown(value: Any) -> str:
    """Returns a value as it is written in YAML, in a cell of a table."""
    if value is None:
        return "none"
    if isinstance(value, float) and value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page())
