"""Compares finished runs: `python -m bapo_lightning compare RUNS [RUNS...] [--reference SETTING]`.

RUNS are run folders, globs, folders of runs such as sweeps, wandb:ENTITY/PROJECT/GROUP, or logs of
other trainers as NAME:SEED=PATH, such as grpo:0=trl-output. Prints a table and writes compare.html (a single
self-contained file), compare.csv and compare.json. For a single run, redraws its summary and plots.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.report.run.console import print_summary
from bapo_lightning.report.run.plots import plot_run
from bapo_lightning.report.run.summary import write_summary
from bapo_lightning.runs.command import command, end_with, table_parser
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.run_folder.find import common_folder, find_runs, swept_folder
from bapo_lightning.system.run_folder.text_file import write_text
from bapo_lightning.tools.comparison.console import print_comparison
from bapo_lightning.tools.comparison.files import write_numbers, write_table
from bapo_lightning.tools.comparison.imported import foreign_run, import_run
from bapo_lightning.tools.comparison.page import render_page
from bapo_lightning.tools.comparison.settings import collect
from bapo_lightning.tools.comparison.table import compare

if TYPE_CHECKING:
    from bapo_lightning.tools.comparison.wandb_group import WandbGroup

WANDB = "wandb:"


@command(2)
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; its exit code is 2 if there is nothing to compare."""
    text = "run folder, glob, folder of runs, wandb:ENTITY/PROJECT/GROUP, or a log as NAME:SEED=PATH"
    things = ("runs", ("SETTING", "algorithm or setting"))
    parser = table_parser("compare", __doc__, *things, metavar="RUNS", help=text)
    parser.add_argument("--title", help="of the page (default: the name of the folder)")
    text = "also make a report at W&B, of RUNS=wandb:ENTITY/PROJECT/GROUP"
    parser.add_argument("--wandb-report", action="store_true", help=text)
    parsed = parser.parse_args(arguments)
    named, groups = _fetched(_imported(parsed.folders, parsed.output), parsed.output, parsed.wandb_report)
    folders = find_runs(named)
    if len(folders) == 1 and not parsed.wandb_report:
        with displayed_phases(), phase("drawing plots"):
            summary = write_summary(folders[0], parsed.output)
            plot_run(folders[0], parsed.output)
        print_summary(summary, parsed.output or folders[0])
        return
    with displayed_phases(), phase("reading runs", len(folders)):
        comparison = compare(collect(folders), parsed.reference)
    print_comparison(comparison)
    target = parsed.output or swept_folder(parsed.folders) or common_folder(folders)
    target.mkdir(parents=True, exist_ok=True)
    title = parsed.title or f"Comparison: {target.resolve().name}"
    options = f" ARGS=\"--reference '{parsed.reference}'\"" if parsed.reference else ""
    typed = f'make compare RUNS="{" ".join(parsed.folders)}"{options}'
    created_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    with displayed_phases(), phase("drawing the comparison"):
        page = render_page(comparison, title, typed, created_at)
        written = (
            write_text(target / "compare.html", page),
            write_table(comparison, target / "compare.csv"),
            write_numbers(comparison, target / "compare.json"),
        )
    print("\n".join(f"  {path}" for path in written))
    if parsed.wandb_report:
        from bapo_lightning.tools.comparison.wandb_report import make_report, publish

        print(f"  {publish(make_report(comparison, groups, title))}")


def _imported(named: Sequence[str], output: Path | None) -> list[str]:
    """The names of runs, with each log of another trainer replaced by the folder that it was written to."""
    target = output or Path("outputs", "imported")
    logs = {name: run for name in named if not Path(name).exists() and (run := foreign_run(name))}
    folders = {name: str(import_run(run, target)) for name, run in logs.items()}
    if len({*folders.values()}) < len(folders):
        raise ConfigError(
            ["two logs have the same NAME:SEED; write a different seed for each, such as grpo:1=..."]
        )
    return [folders.get(name, name) for name in named]


def _fetched(
    named: Sequence[str], output: Path | None, for_report: bool
) -> tuple[list[str], list[WandbGroup]]:
    # The names of runs, each group of W&B replaced by the folder that it was downloaded to; and the groups.
    chosen = [name for name in named if name.startswith(WANDB)]
    if not chosen and not for_report:
        return [*named], []  # avoids a library that takes seconds to import
    from bapo_lightning.tools.comparison.wandb_group import fetch_group, group_of

    groups = {name: group_of(name.removeprefix(WANDB)) for name in chosen}
    if for_report and len({(group.entity, group.project) for group in groups.values()}) != 1:
        raise ConfigError(["--wandb-report needs groups of one project: RUNS=wandb:ENTITY/PROJECT/GROUP"])
    if for_report and find_spec("wandb_workspaces") is None:
        remedy = '.venv/bin/python -m pip install -e ".[wandb-report]"'
        raise ConfigError([f"--wandb-report needs a package that is not installed: {remedy}"])
    target = output or Path("outputs", "wandb")
    folders = {name: str(fetch_group(group, target)) for name, group in groups.items()}
    return [folders.get(name, name) for name in named], [*groups.values()]


if __name__ == "__main__":
    end_with(main)
