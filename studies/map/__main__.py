"""Where clipping bounds matter: `python -m studies.map [map=locks] [KEY=VALUE ...]`.

studies/conf/maps/<name>.yaml -> missing cells are computed -> page, tables and pictures in its folder
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bapo_lightning.configuration.help import choices, usage
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import command
from bapo_lightning.system.phases import phase
from bapo_lightning.system.run_folder.text_file import write_csv, write_json, write_text
from studies import CONF
from studies.map.hypotheses import (
    collapse_row,
    draw_against_fresh,
    judge,
    labels_of,
    means,
    pair_table,
    plain,
    read_all,
)
from studies.map.hypotheses import draw as draw_hypotheses
from studies.map.hypotheses import render as render_hypotheses
from studies.map.law import draw_law, largest_rates, rate_table, render_law
from studies.map.leaderboard import read_boards
from studies.map.leaderboard_page import draw_ranks, duel_table, render_leaderboard, standing_table
from studies.map.page import cell_table, render
from studies.map.picture import MethodLook, draw_gap, draw_phases
from studies.map.verdicts import CellResult, read_results

if TYPE_CHECKING:
    from studies.map.plan import MapConfig, VerdictConfig


def help_text() -> str:
    files = sorted((CONF / "maps").glob("*.yaml"))
    shown = usage(
        "[map=NAME] [KEY=VALUE ...]",
        "map MAP=locks",
        "Computes where clipping bounds matter. Maps:",
        module="studies.map",
    )
    return "\n".join([shown, *choices(files)])


@command(2, usage=help_text)
def main(arguments: Sequence[str] | None = None) -> int:
    from studies.late.plan import LateConfig
    from studies.map.plan import MapConfig, read_settings

    config = read_settings(sys.argv[1:] if arguments is None else arguments)
    if isinstance(config, MapConfig):
        return compute(config) or draw(config)
    if isinstance(config, LateConfig):
        from studies.late.command import run_late

        return run_late(config)
    from studies.bias.command import run_atlas

    return run_atlas(config)


def compute(config: MapConfig) -> int:
    """Computes what is missing; returns the exit code of its training runs."""
    from studies.map.exact import fill
    from studies.map.jobs import all_jobs, composed, keep_settings
    from studies.map.language import make_runs

    folder = Path(config.output)
    with displayed_phases(), phase("checking methods"):
        methods = {name: composed(config, name) for name in config.methods}
    keep_settings(config, folder)
    all_of_map = all_jobs(config, folder)
    jobs = [job for job in all_of_map if not job.is_done]
    print(f"{len(jobs)} of {len(all_of_map)} to compute", flush=True)
    in_language = [job for job in jobs if config.worlds[job.cell.world].experiment is not None]
    fill(config, methods, [job for job in jobs if job not in in_language])
    return make_runs(config, methods, in_language) if in_language else 0


def draw(config: MapConfig) -> int:
    folder = Path(config.output)
    labels = {name: entry.label for name, entry in config.methods.items()}
    settings = (
        f"{config.seeds} seeds paired{_others(config)}; {config.num_updates} updates of {_batch(config)}, "
        "however stale they are."
    )
    with displayed_phases(), phase("drawing the map"):
        if config.verdict is not None:
            written = _verdict(config, config.verdict, labels, settings)
        elif config.is_leaderboard:
            written = _leaderboard(config, labels, settings)
        else:
            results = read_results(folder, config.cells, list(labels), config.gate, config.controls)
            written = _written(config, results, labels, settings)
            passed = sum(result.gate.is_passed for result in results)
            print(f"{passed} of {len(results)} cells pass the gate")
    print("written to  " + "\n            ".join(map(str, written)))
    return 0


def _others(config: MapConfig) -> str:
    if config.verdict is not None:
        return ""
    return f", {config.gate_seeds} others for {'the learning rates' if config.is_leaderboard else 'the gate'}"


def _batch(config: MapConfig) -> str:
    if any(cell.batch for cell in config.cells):
        return "`batch` answers to one problem"
    return f"{config.problems_per_update} problems x {config.group_size} answers"


def methods_of(config: MapConfig) -> dict[str, MethodLook]:
    return {
        name: MethodLook(entry.label, str((config.common | entry.set).get("algorithm", name)))
        for name, entry in config.methods.items()
    }


def _verdict(config: MapConfig, setup: VerdictConfig, labels: Mapping[str, str], settings: str) -> list[Path]:
    folder = Path(config.output)
    measured = read_all(config, folder)
    if setup.law:
        rates = {
            (world, name): largest_rates(setup, measured, world, name)
            for world in config.worlds
            for name in labels
        }
        return [
            write_text(folder / "verdict.md", render_law(config, setup, rates, settings)),
            write_csv(folder / "rates.csv", *rate_table(config, setup, rates)),
            draw_law(config, rates, folder / "verdict.png"),
        ]
    judged = judge(config, setup, measured)
    collapses = [collapse_row(config, claim, measured) for claim in setup.collapses]
    return [
        write_text(folder / "verdict.md", render_hypotheses(config, setup, judged, settings, collapses)),
        write_csv(folder / "pairs.csv", *pair_table(config, judged)),
        write_csv(folder / "means.csv", *means(config, setup, measured)),
        write_json(folder / "verdict.json", plain(judged)),
        draw_against_fresh(config, setup, measured, folder / "verdict.png")
        if all(cell.lag for cell in config.cells)
        else draw_hypotheses(judged, labels_of(config), folder / "verdict.png"),
    ]


def _leaderboard(config: MapConfig, labels: Mapping[str, str], settings: str) -> list[Path]:
    from studies.map.jobs import means_of

    folder, over = Path(config.output), means_of(config)
    boards = read_boards(folder, config.cells, list(labels), config.duels)
    return [
        write_text(folder / "leaderboard.md", render_leaderboard(boards, labels, over, settings)),
        write_csv(folder / "leaderboard.csv", *standing_table(boards, labels, over)),
        write_csv(folder / "duels.csv", *duel_table(boards, labels)),
        write_json(folder / "leaderboard.json", [asdict(board) for board in boards]),
        draw_ranks(boards, methods_of(config), folder / "ranks.png"),
    ]


def _written(
    config: MapConfig, results: Sequence[CellResult], labels: Mapping[str, str], settings: str
) -> list[Path]:
    folder, reference = Path(config.output), next(iter(labels))
    methods = methods_of(config)

    def others_than(drawn: str) -> list[str]:
        return [name for name in (reference, *config.controls) if name != drawn]

    return [
        write_text(folder / "map.md", render(results, labels, config.controls, settings)),
        write_csv(folder / "map.csv", *cell_table(results, labels)),
        write_json(folder / "map.json", [result.plain() for result in results]),
        draw_gap(results, methods, folder / "gap.png"),
        *(
            draw_phases(results, name, others_than(name), methods, folder / f"{name}.png")
            for name in config.drawn
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
