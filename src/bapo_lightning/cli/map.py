"""Where clipping bounds matter, in exact worlds: `python -m bapo_lightning.cli.map [KEY=VALUE ...]`.

conf/map.yaml -> cells that are missing are computed -> map.md, map.json and pictures in outputs/map
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.cli.command import command
from bapo_lightning.report.map.page import render
from bapo_lightning.report.map.picture import draw_gap, draw_phases
from bapo_lightning.report.map.verdicts import read_results
from bapo_lightning.run_folder.text_file import write_json, write_text
from bapo_lightning.runs.map.plan import read_map
from bapo_lightning.runs.map.run import fill


@command(2)
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; it exits with 2 when nothing could be started."""
    config = read_map(sys.argv[1:] if arguments is None else arguments)
    fill(config)
    folder = Path(config.output)
    labels = {name: entry.label for name, entry in config.methods.items()}
    reference = next(iter(labels))
    results = read_results(folder, config.cells, list(labels), config.gate, config.controls)
    settings = (
        f"{config.seeds} seeds paired, {config.gate_seeds} others for the gate; {config.num_updates} updates "
        f"of {config.problems_per_update} problems x {config.group_size} answers, however stale they are."
    )
    written = [
        write_text(folder / "map.md", render(results, labels, config.controls, settings)),
        write_json(folder / "map.json", [result.plain() for result in results]),
        draw_gap(results, labels, folder / "gap.png"),
        *(
            draw_phases(results, name, [reference, *config.controls], labels, folder / f"{name}.png")
            for name in config.drawn
        ),
    ]
    passed = sum(result.gate.is_passed for result in results)
    print(f"{passed} of {len(results)} cells pass the gate")
    print("written to  " + "\n            ".join(map(str, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
