"""`python -m studies.map map=late`: missing runs are made, then tables, picture and page are written.

outputs/map-late/runs/<world>-<bound>-<rule>.npz   all seeds of a rule
"""

from __future__ import annotations

from pathlib import Path

import torch

from bapo_lightning.configuration.compose import compose_run, hydra_overrides
from bapo_lightning.configuration.validate import validate
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.system.phases import phase
from studies.commands import counted, keep_plain_settings, read_arrays, write_arrays
from studies.late.claims import Place, values_of
from studies.late.measure import Measured, measure
from studies.late.plan import LateConfig

DISPLAYED = {
    "output",
    "publish",
    "claims",
    "matters",
    "bounds",
    "worlds",
    "rules",
}  # change no number of a run


def run_late(config: LateConfig) -> int:
    """Makes the missing runs and writes everything; returns the exit code."""
    from studies.late.page import write_pages

    torch.set_num_threads(1)
    folder = Path(config.output)
    plain = config.model_dump(mode="json", exclude=DISPLAYED)
    worlds = {f"worlds.{name}": entry.model_dump(mode="json") for name, entry in config.worlds.items()}
    keep_plain_settings(plain | worlds, folder)
    parts = [(place, name, file_of(folder, place, name)) for place in config.places for name in config.rules]
    lacking = [each for each in parts if not each[2].exists()]
    print(f"{len(lacking)} of {len(parts)} to compute", flush=True)
    if lacking:
        with displayed_phases(), phase("checking the method"):
            run = validate(compose_run(["run_folder=unused", *hydra_overrides(config.common)]), "run")
        with counted("runs", len(lacking)) as count:
            for place, name, path in lacking:
                write_arrays(path, measure(config, run, place, config.rules[name].action))
                count(path.stem)
    runs: dict[Place, dict[str, Measured]] = {}
    for place, name, path in parts:
        runs.setdefault(place, {})[name] = read_arrays(path)
    tables = {place: values_of(rules, config.worlds[place[0]].throughput) for place, rules in runs.items()}
    print("written to  " + "\n            ".join(map(str, write_pages(config, tables))))
    return 0


def file_of(folder: Path, place: Place, rule: str) -> Path:
    return folder / "runs" / f"{place[0]}-{place[1]}-{rule}.npz"
