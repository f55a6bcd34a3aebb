"""`python -m bapo_lightning.cli.evaluate checkpoint=outputs/... sets=aime24,aime25 k=16`: samples and judges
answers to held-out problems.

Heavy imports come after the configuration is composed, so that a misspelt option answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import hydra
from omegaconf import DictConfig

from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.errors import BapoLightningError, ConfigError
from bapo_lightning.runs.evaluation.subject import CHOICES_WITHOUT_RUN, belongs_to_run

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see cli.train
SETS, CHECKPOINT = "sets=", "checkpoint="
USAGE = """\
usage: python -m bapo_lightning.cli.evaluate checkpoint=CHECKPOINT [sets=NAME,NAME] [GROUP=CHOICE ...]
    [KEY=VALUE ...]
       make eval CKPT=CHECKPOINT DATA=aime24,aime25 ARGS="k=16 rollout=vllm"

CHECKPOINT: a run folder, one of its checkpoints, a model folder, or a hub name. Sets, each a file of
    conf/problem_set:
"""


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="eval")
def compose_and_evaluate(config: DictConfig) -> None:
    """Compose, check, sample, report."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        from bapo_lightning.runs.evaluation.run import evaluate

        evaluate(config)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with it", file=sys.stderr)
        sys.exit(130)
    except BapoLightningError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def main() -> int:
    """Run the command."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(USAGE + "  " + ", ".join(problem_sets()))
        return 0
    try:
        sys.argv[1:] = hydra_overrides(sys.argv[1:])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    compose_and_evaluate()
    return 0


def hydra_overrides(arguments: Sequence[str]) -> list[str]:
    """The arguments in Hydra's own words: `sets=a,b` chooses a file for each set; a model without a run gets
    prompt and reward.

    Raises:
        ConfigError: no checkpoint, or a set that does not exist.
    """
    given = [item.removeprefix(CHECKPOINT) for item in arguments if item.startswith(CHECKPOINT)]
    if not given or not given[-1]:
        raise ConfigError([
            "nothing to evaluate; write CKPT=FOLDER (checkpoint=FOLDER): a run folder, one of its "
            "checkpoints, a model folder, or a hub name"
        ])  # fmt: skip
    names = [
        name
        for item in arguments
        if item.startswith(SETS)
        for name in item.removeprefix(SETS).split(",")
        if name
    ]
    unknown = [name for name in names if name not in problem_sets()]
    if unknown:
        raise ConfigError(
            [f"sets={','.join(unknown)}: no such problem set; write some of {', '.join(problem_sets())}"]
        )
    chosen = [f"+problem_set@data.validation.{name}={name}" for name in dict.fromkeys(names)]
    if not belongs_to_run(given[-1]):
        keys = [item.partition("=")[0] for item in arguments]
        chosen += [choice for choice in CHOICES_WITHOUT_RUN if choice.partition("=")[0] not in keys]
    # Quoted: names of runs hold characters that mean something to Hydra.
    return [
        *chosen,
        f"checkpoint={quoted(given[-1])}",
        *(item for item in arguments if not item.startswith((SETS, CHECKPOINT))),
    ]


def problem_sets() -> list[str]:
    """Names of the problem sets."""
    return sorted(path.stem for path in Path(conf_dir(), "problem_set").glob("*.yaml") if path.stem != "base")


def quoted(text: str) -> str:
    """`text` as one value in Hydra's grammar."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


if __name__ == "__main__":
    sys.exit(main())
