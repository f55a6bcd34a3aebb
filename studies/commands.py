"""Parts that studies share: a bar of things that are done, settings, tables and arrays on disk."""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from rich.console import Console, ConsoleOptions, RenderResult

from bapo_lightning.configuration.parse import distinct, parse
from bapo_lightning.configuration.sections import Section
from bapo_lightning.report.progress.display import Pace, Place, bar_line, on_terminal, shown
from bapo_lightning.system.errors import ConfigError, DataError, first_line
from bapo_lightning.system.run_folder.config_keys import ABSENT, differences
from bapo_lightning.system.run_folder.record import read_mapping
from bapo_lightning.system.run_folder.shapes import Plain
from bapo_lightning.system.run_folder.text_file import write_csv, write_text

T = TypeVar("T", bound=Section)
_ANOTHER = "write output=ANOTHER/FOLDER"


def keep_plain_settings(plain: dict[str, Any], folder: Path) -> None:
    """Writes settings next to the map. Raises ConfigError if others are there, except for added methods."""
    file = folder / "map.yaml"
    if file.exists():
        differing = [
            f"{key}={now}: {folder} began with {before}"
            for key, before, now in differences(read_mapping(file, Plain, _ANOTHER), plain)
            if not (before == ABSENT and key.startswith("methods."))
        ]
        if differing:
            raise ConfigError([*differing, f"{_ANOTHER} for another map"])
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, yaml.safe_dump(plain, sort_keys=False))


def typed(kind: type[T], plain: Mapping[str, Any], chosen: Callable[[T], T] = lambda config: config) -> T:
    """Returns the settings of a study as their type, those that `chosen` makes of them. Raises ConfigError
    with all faults.
    """
    config, problems = parse(kind, plain)
    if config is None:
        raise ConfigError(problems)
    config = chosen(config)
    if faults := list(config.problems()):
        raise ConfigError(distinct(faults))
    return config


def with_parts(page: str, command: str, parts: Mapping[str, str]) -> str:
    """Returns a page with its parts between `<!-- NAME: COMMAND -->` and `<!-- end -->` written again."""
    part = re.compile(rf"(<!-- (\w+): {re.escape(command)} -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
    return part.sub(lambda match: match[1] + parts[match[2]] + match[3], page)


def write_results(
    name: str,
    output: str,
    publish: str | None,
    tables: Mapping[str, tuple[list[str], list[list[str]]]],
    draw: Callable[[Path], Path],
    parts: Callable[[Path], Mapping[str, str]],
) -> list[Path]:
    """Writes the tables and the picture of `make map MAP=NAME` into its output, and if `publish` names the
    result pages also next to NAME.md there, whose `parts`, made of the tables in a folder, are written again.
    `draw` draws the picture into a folder. Returns the files.
    """
    folders = [Path(output), *([Path(publish) / name] if publish is not None else [])]
    written = []
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        written += [write_csv(folder / f"{table}.csv", *rows) for table, rows in tables.items()]
        written.append(draw(folder))
    if publish is not None:
        page = Path(publish) / f"{name}.md"
        text = with_parts(page.read_text(), f"make map MAP={name}", parts(folders[-1]))
        written.append(write_text(page, text))
    return written


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name; the file is whole, or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **arrays)  # type: ignore[arg-type]
    os.replace(partial, path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns what `write_arrays` wrote. Raises DataError for a damaged file."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except Exception as fault:  # zipfile and numpy have types of their own
        reason = f"{path} is damaged ({first_line(fault)}); remove it, and the same command computes it"
        raise DataError(reason) from None


def read_csv(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a table that a command wrote."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def claim_lines(rows: Iterable[Mapping[str, str]]) -> str:
    """Returns a line for each claim of a table: cells in which it came true, and largest difference."""
    lines = []
    for claim, group in groupby(rows, key=lambda row: row["in words"]):
        part = list(group)
        largest = max((row["difference"] for row in part), key=lambda one: abs(float(one.partition(" ")[0])))
        lines.append(f"- {claim} {sum(row['came true'] == 'yes' for row in part)} of {len(part)}; {largest}")
    return "\n".join(lines)


class CountBar:
    """A bar of things that are done, and the time left."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0
        self._start = time.monotonic()
        self._pace = Pace(0, max(1, total // 20), self._start)  # mean of many: they differ

    def count(self) -> None:
        self.done += 1
        self._pace.note(self.done, time.monotonic())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.monotonic()
        label = f"{self.title} {self.done}/{self.total}"
        yield bar_line(label, self.done, self.total, now - self._start, self._pace.left(self.total, now))


@contextmanager
def counted(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Context that shows how many of `total` things are done; gives what to call with the name of each."""
    bar = CountBar(title, total)

    def count(name: str) -> None:
        bar.count()
        if not on_terminal():
            width = len(str(total))
            print(f"[{bar.done:{width}}/{total}] {name}", flush=True)

    with shown(Place.RUN, bar):
        yield count
