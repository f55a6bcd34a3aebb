"""`python -m studies.map map=bias`: missing paths are measured, then tables, picture and page are written.

outputs/map-bias/paths/<world>-rate=<rate>-<moment>.npz   every method at every age, [ages, starts]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from bapo_lightning.configuration.compose import compose_run, hydra_overrides
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.validate import validate
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.build import build_algorithm
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.phases import phase
from studies.bias.measure import Table, measure, path_table
from studies.bias.plan import AtlasConfig, AtlasMethod, Place
from studies.bias.population import Method
from studies.commands import counted, keep_plain_settings, read_arrays, write_arrays

PATH = "path"  # name of the table of the path itself, which is none of a method
DISPLAYED = {"output", "publish", "only", "claims", "matters", "families", "left_out"}  # change no number
Tables = Mapping[Place, Mapping[str, Table]]


def run_atlas(config: AtlasConfig) -> int:
    """Measures what is missing and writes everything; returns the exit code."""
    from studies.bias.page import write_pages

    torch.set_num_threads(1)
    folder = Path(config.output)
    keep_plain_settings(config.model_dump(mode="json", exclude=DISPLAYED), folder)
    entries = config.methods | config.own
    tables: dict[Place, dict[str, Table]] = {place: read_tables(folder, place) for place in config.places}
    lacking = {place: [name for name in entries if name not in tables[place]] for place in config.places}
    total = sum(map(len, lacking.values()))
    print(f"{total} of {len(entries) * len(config.places)} to compute", flush=True)
    if total:
        with displayed_phases(), phase("checking methods"):
            methods = {name: composed_method(config, name, entry) for name, entry in entries.items()}
        with counted("methods", total) as count:
            for place, names in lacking.items():
                if names:
                    tables[place] |= measure(config, place, {name: methods[name] for name in names}, count)
                    write_tables(folder, place, tables[place])
    for place, known in tables.items():
        if PATH not in known:
            known[PATH] = path_table(config, place)
            write_tables(folder, place, known)
    print("written to  " + "\n            ".join(map(str, write_pages(config, tables))))
    return 0


def composed_method(config: AtlasConfig, name: str, entry: AtlasMethod) -> Method:
    """The algorithm and correction that `conf/` composes. Raises ConfigError for faults of `set`."""
    overrides = hydra_overrides({"scale.group_size": config.group_size} | entry.set)
    try:
        run_config = validate(compose_run(["run_folder=unused", *overrides]), "run")
    except ConfigError as fault:
        raise ConfigError([f"methods.{name}.set: {text}" for text in fault.problems]) from None
    return method_of(run_config, entry.entry)


def method_of(run: RunConfig, entry: float = 1.0) -> Method:
    """The algorithm and correction of a run."""
    weights, proximal = run.correction.weights, run.correction.proximal
    return Method(
        algorithm=build_algorithm(run.algorithm),
        correction=weights.make(1) if weights else None,
        proximal=proximal.make(1) if proximal else None,
        entry=entry,
    )


def _file(folder: Path, place: Place) -> Path:
    return folder / "paths" / f"{place.name}.npz"


def read_tables(folder: Path, place: Place) -> dict[str, Table]:
    """Tables by method; none if the file is not there. Raises DataError for a damaged one."""
    path, tables = _file(folder, place), dict[str, Table]()
    for key, values in (read_arrays(path) if path.exists() else {}).items():
        name, _, quantity = key.partition("/")
        tables.setdefault(name, {})[quantity] = values
    return tables


def write_tables(folder: Path, place: Place, tables: Mapping[str, Table]) -> None:
    """Writes what `read_tables` reads."""
    flat = {f"{name}/{key}": values for name, table in tables.items() for key, values in table.items()}
    write_arrays(_file(folder, place), flat)
