"""Several evaluations in one table: `python -m bapo_lightning.tools.commands.eval_table FOLDER [FOLDER...]`.

Differences are paired by problem. Writes evaluations.csv (every metric) and evaluations.md (the table).
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bapo_lightning.runs.command import command, end_with, table_parser
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.config_keys import value_of
from bapo_lightning.system.run_folder.find import common_folder
from bapo_lightning.system.run_folder.record import read_config
from bapo_lightning.tools.comparison.settings import choose_reference
from bapo_lightning.tools.evaluation.comparison import Evaluated, compare_evaluations, comparison_notes
from bapo_lightning.tools.evaluation.folder import outcomes, read_rows
from bapo_lightning.tools.evaluation.table import print_evaluations, write_markdown, write_values


@command(2)
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; its exit code is 2 if there is nothing to compare."""
    text, named = "folder of an evaluation, or a glob", ("NAME", "evaluation")
    parser = table_parser("eval-table", __doc__, "evaluations", named, metavar="FOLDER", help=text)
    parsed = parser.parse_args(arguments)
    folders = _find_evaluations(parsed.folders)
    evaluations, left_out = _collect(folders)
    if not evaluations:
        raise DataError("no evaluation is finished:\n  " + "\n  ".join(left_out))
    reference = choose_reference({item.name: item.name for item in evaluations}, parsed.reference)
    rows = compare_evaluations(evaluations, reference)
    notes = [*left_out, *comparison_notes(evaluations, reference)]
    print_evaluations(rows, reference, notes)
    target = parsed.output or common_folder(folders)
    target.mkdir(parents=True, exist_ok=True)
    print(f"  {write_values(rows, reference, target / 'evaluations.csv')}")
    print(f"  {write_markdown(rows, reference, notes, target / 'evaluations.md')}")


def _find_evaluations(patterns: Sequence[str]) -> list[Path]:
    evaluations: set[Path] = set()
    # A shell's * also names the table of an earlier call, which is next to them.
    for pattern in [name for name in patterns if not Path(name).is_file()] or patterns:
        with_config = [Path(path) for path in glob.glob(pattern) if Path(path, "config.yaml").is_file()]
        folders = [folder for folder in with_config if "evaluated" in read_config(folder)]
        if not folders:
            raise DataError(
                f"no evaluation is at {pattern!r}; make one: make eval CKPT=..., and give its folder, like "
                "outputs/eval/NAME"
            )
        evaluations.update(folders)
    return sorted(evaluations)


def _collect(folders: Sequence[Path]) -> tuple[list[Evaluated], list[str]]:
    # Finished evaluations, and the reasons why others are left out.
    finished, left_out = [], []
    configs = {folder: read_config(folder) for folder in folders}
    names = Counter(value_of(config, "name") for config in configs.values())
    for folder, config in configs.items():
        sets, rows = value_of(config, "evaluated.sets"), read_rows(folder)
        expected = value_of(config, "k") * sum(entry["num_problems"] for entry in sets.values())
        if len(rows) < expected:
            left_out.append(
                f"left out: {folder} has {len(rows)} of {expected} samples; the command that started it "
                "continues it"
            )
            continue
        name = value_of(config, "name")
        digests = {key: entry["problems"] for key, entry in sets.items()}
        unique, settings = name if names[name] == 1 else folder.name, _shared_settings(config)
        finished.append(Evaluated(unique, value_of(config, "k"), outcomes(rows), digests, settings))
    return finished, left_out


def _shared_settings(config: dict[str, Any]) -> dict[str, object]:
    engine = value_of(config, "rollout.engine")
    maker = "rollout.engine" if "make_engine" not in engine else "rollout.engine.make_engine"  # in a child
    prompt = value_of(config, "data.prompt")
    return {
        **{key: value_of(config, f"rollout.{key}") for key in ("temperature", "top_p", "top_k")},
        "max_new_tokens": value_of(config, "scale.max_new_tokens"),
        "engine": str(value_of(config, f"{maker}._target_")).rpartition(".")[2],
        "reward": value_of(config, "reward"),
        "prompt": {key: value for key, value in prompt.items() if value not in (None, {})},
    }


if __name__ == "__main__":
    end_with(main)
