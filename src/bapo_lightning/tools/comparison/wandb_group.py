"""A group of runs on W&B's server, read back as run folders."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bapo_lightning.callbacks.loggers.wandb import MANIFEST, ROLLOUTS, SAMPLES, STALENESS, STEP
from bapo_lightning.system.errors import DataError, first_line
from bapo_lightning.system.run_folder.text_file import write_json, write_text

MOST_ROWS = 2_000_000  # of one run
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_OURS = ("_", "media/", "trainer/")  # columns that W&B adds to the rows


class WandbGroup(NamedTuple):
    """A group of runs on W&B's server."""

    entity: str
    project: str
    name: str  # may contain slashes: our groups are sweeps, or scale/regime


def group_of(name: str) -> WandbGroup:
    """The group that ENTITY/PROJECT/GROUP names. Raises DataError if a part is missing."""
    entity, _, rest = name.partition("/")
    project, _, group = rest.partition("/")
    if not (entity and project and group):
        raise DataError(
            f"wandb:{name} names no group; write wandb:ENTITY/PROJECT/GROUP, such as "
            "wandb:me/bapo-lightning/tiny/replay"
        )
    return WandbGroup(entity, project, group)


def fetch_group(group: WandbGroup, target: Path, api: Any = None) -> Path:
    """Downloads every run of a group as a run folder into a new folder below `target`, which it returns.
    Raises DataError if the server cannot be reached, or the group is empty.
    """
    name = "/".join(group)
    try:
        if api is None:
            import wandb

            api = wandb.Api()
        runs = list(api.runs(f"{group.entity}/{group.project}", filters={"group": group.name}))
    except Exception as error:  # W&B has a type for each of network, account, project; requests adds its own
        raise DataError(
            f"wandb:{name} could not be read ({first_line(error)}); log in with `wandb login`, or give the "
            "run folders instead"
        ) from error
    if not runs:
        raise DataError(
            f"wandb:{name}: the project {group.entity}/{group.project} has no run in the group "
            f"{group.name!r}; look at its page for the name"
        )
    folder = target / name.replace("/", "-")
    for number, run in enumerate(runs):
        try:
            # A server's name of a run may not be a file name.
            is_file_name = isinstance(run.id, str) and _FILE_NAME.fullmatch(run.id)
            write_run(run, folder / (run.id if is_file_name else f"run+{number}"))
        except Exception as error:  # of the network, or from the server's data
            raise DataError(
                f"wandb:{name}: the run {str(run.id)[:40]!r} cannot be read back ({first_line(error)}); give "
                "its run folder instead"
            ) from error
    return folder


def write_run(run: Any, folder: Path) -> None:
    """Writes one run of W&B's API as a run folder; without a manifest, if it is from another package."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in run.config.items() if not key.startswith("_")}
    manifest = config.pop(MANIFEST, {})
    config.pop(STALENESS, None)
    write_json(folder / "manifest.json", {**manifest, "status": run.summary.get("status") or run.state})
    write_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    rows = [
        {"step": row[STEP]}
        | {key: value for key, value in row.items() if not key.startswith(_OURS) and value is not None}
        for row in islice(run.scan_history(), MOST_ROWS)
        if row.get(STEP) is not None and not {ROLLOUTS, SAMPLES} & row.keys()
    ]
    if len(rows) == MOST_ROWS:
        raise ValueError(f"it has more than {MOST_ROWS} rows")
    write_text(folder / "metrics.jsonl", "".join(json.dumps(row, default=str) + "\n" for row in rows))
