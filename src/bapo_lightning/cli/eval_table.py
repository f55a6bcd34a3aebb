"""Several evaluations in one table: `python -m bapo_lightning.cli.eval_table FOLDER [FOLDER...] [--reference
NAME] [--output DIR]`.

Differences are paired by problem. Writes evaluations.csv (every metric) and evaluations.md (the table).
"""

from __future__ import annotations

import argparse
import glob
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.evaluation.comparison import Evaluated, compare, comparison_notes
from bapo_lightning.run_folder.record import read_config
from bapo_lightning.runs.evaluation.folder import outcomes, read_rows
from bapo_lightning.runs.evaluation.table import print_comparison, write_csv, write_markdown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, or 2 when there is nothing to compare."""
    parsed = _parser().parse_args(arguments)
    try:
        folders = find_evaluations(parsed.folders)
        evaluations, left_out = collect(folders)
        reference = choose_reference(evaluations, parsed.reference, left_out)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows, notes = compare(evaluations, reference), [*left_out, *comparison_notes(evaluations, reference)]
    print_comparison(rows, reference, notes)
    target = parsed.output or Path(os.path.commonpath([folder.resolve().parent for folder in folders]))
    target.mkdir(parents=True, exist_ok=True)
    for path in (
        write_csv(rows, reference, target / "evaluations.csv"),
        write_markdown(rows, reference, notes, target / "evaluations.md"),
    ):
        print(f"  {path}")
    return 0


def find_evaluations(patterns: Sequence[str]) -> list[Path]:
    """Evaluation folders meant by paths and globs; sorted, each once. Raises DataError when there is none, or
    a path is none.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = [Path(match) for match in sorted(glob.glob(pattern))]
        folders = [folder for folder in matches if _is_evaluation(folder)]
        if not folders:
            raise DataError(
                f"no evaluation is at {pattern!r}; make one: make eval CKPT=..., and give its folder, like "
                "outputs/eval/NAME"
            )
        found.update(folders)
    return sorted(found)


def collect(folders: Sequence[Path]) -> tuple[list[Evaluated], list[str]]:
    """Finished evaluations, and why others are left out."""
    finished, left_out = [], []
    configs = {folder: read_config(folder) for folder in folders}
    names = Counter(config["name"] for config in configs.values())
    for folder, config in configs.items():
        sets, rows = config["evaluated"]["sets"], read_rows(folder)
        expected = config["k"] * sum(entry["num_problems"] for entry in sets.values())
        if len(rows) < expected:
            left_out.append(
                f"left out: {folder} has {len(rows)} of {expected} samples; the command that began it goes "
                "on with it"
            )
            continue
        name = config["name"] if names[config["name"]] == 1 else folder.name
        digests = {key: entry["problems"] for key, entry in sets.items()}
        finished.append(Evaluated(name, config["k"], outcomes(rows), digests, _shared_settings(config)))
    return finished, left_out


def choose_reference(evaluations: Sequence[Evaluated], wanted: str | None, left_out: Sequence[str]) -> str:
    """Name of the evaluation that differences are taken to: the one wanted, or the first. Raises DataError
    when there is none.
    """
    if not evaluations:
        raise DataError("no evaluation is finished:\n  " + "\n  ".join(left_out))
    names = [item.name for item in evaluations]
    if wanted is not None and wanted not in names:
        raise DataError(f"--reference {wanted} is none of the evaluations; write one of {', '.join(names)}")
    return wanted or names[0]


def _shared_settings(config: dict[str, Any]) -> dict[str, object]:
    rollout = config["rollout"]
    prompt = {key: value for key, value in config["data"]["prompt"].items() if value not in (None, {})}
    return {
        **{key: rollout[key] for key in ("temperature", "top_p", "top_k")},
        "max_new_tokens": config["scale"]["max_new_tokens"],
        "engine": _engine(rollout["engine"]),
        "reward": config["reward"],
        "prompt": prompt,
    }


def _engine(node: dict[str, Any]) -> str:
    """Class of the engine that computes, in this process or a child."""
    return str(node.get("make_engine", node)["_target_"]).rpartition(".")[2]


def _is_evaluation(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and "evaluated" in read_config(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bapo_lightning.cli.eval_table", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folder of an evaluation, or a glob")
    parser.add_argument(
        "--reference", metavar="NAME", help="evaluation that differences are taken to (default: the first)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where to write (default: where the evaluations are)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
