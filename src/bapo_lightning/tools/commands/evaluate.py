"""Samples and judges answers to held-out problems.

Heavy imports come after the configuration is composed, so that a misspelt option is reported immediately.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from bapo_lightning.configuration.compose import hydra_value, resolve
from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.configuration.early import refuse_early
from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import end_with, hydra_command
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.phases import phase
from bapo_lightning.tools.evaluation.subject import CHOICES_WITHOUT_RUN, belongs_to_run

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see cli.train
SETS, CHECKPOINT = "sets=", "checkpoint="
SETS_ELSEWHERE = ("data", "set", "problem_set")  # names that training, and people, use for them
USAGE = """\
usage: python -m bapo_lightning eval checkpoint=CHECKPOINT [sets=NAME,FILE] [GROUP=CHOICE ...] [KEY=VALUE ...]
       make eval CKPT=CHECKPOINT DATA=aime24,aime25 ARGS="k=16 rollout=vllm"

CHECKPOINT: a run folder, one of its checkpoints, a model folder, or a hub name. Sets, each a file of
    conf/problem_set:
"""


def hydra_overrides(arguments: Sequence[str]) -> list[str]:
    """Writes `sets=` as the choice of a file for each set; gives a model without a run a prompt and reward.
    Raises ConfigError for no checkpoint, a set that does not exist, or sets under another name.
    """
    given = [item.removeprefix(CHECKPOINT) for item in arguments if item.startswith(CHECKPOINT)]
    if not given or not given[-1]:
        raise ConfigError([
            "nothing to evaluate; write CKPT=FOLDER (checkpoint=FOLDER): a run folder, one of its "
            "checkpoints, a model folder, or a hub name"
        ])  # fmt: skip
    for name, _, value in (item.partition("=") for item in arguments):
        if name in SETS_ELSEWHERE:
            raise ConfigError([f"{name}={value}: problems to evaluate are sets; write {SETS}{value}"])
    lists = [item.removeprefix(SETS).split(",") for item in arguments if item.startswith(SETS)]
    names = dict.fromkeys(name for listed in lists for name in listed if name)
    files = [name for name in names if name not in _problem_sets() and Path(name).is_file()]
    if len(files) > 1:
        raise ConfigError([f"sets={','.join(files)}: write only one file at a time"])
    if unknown := [name for name in names if name not in (*_problem_sets(), *files)]:
        known = ", ".join(_problem_sets())
        raise ConfigError(
            [f"sets={','.join(unknown)}: no such problem set; write some of {known}, or a file"]
        )
    chosen = [f"+problem_set@data.validation.{name}={name}" for name in names if name not in files]
    for path in files:
        chosen += [
            "+problem_set@data.validation.table=table",
            f"data.validation.table.path={hydra_value(path)}",
        ]
    if not belongs_to_run(given[-1]):
        keys = [item.partition("=")[0] for item in arguments]
        chosen += [choice for choice in CHOICES_WITHOUT_RUN if choice.partition("=")[0] not in keys]
    others = [item for item in arguments if not item.startswith((SETS, CHECKPOINT))]
    return [*chosen, f"checkpoint={hydra_value(given[-1])}", *others]


def _problem_sets() -> list[str]:
    return sorted({*choice_files("problem_set")} - {"base"})


@hydra_command("eval", usage=lambda: USAGE + "  " + ", ".join(_problem_sets()), rewrite=hydra_overrides)
def main(config: DictConfig) -> int:
    """Samples, judges, reports; after an interruption the same command continues."""
    refuse_early(resolve(config), EvaluationConfig)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with displayed_phases(), phase("loading libraries"):
            from bapo_lightning.tools.evaluation.run import evaluate

        evaluate(config)
    except KeyboardInterrupt:
        print("interrupted; the same command continues it", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    end_with(main)
