"""The doctor on logs of TRL's own script of GRPO: `python -m studies.doctor.trl_log`, where TRL is installed.

`trl/scripts/grpo.py` trains the model of the locks: as it should be, at ten times the rate, with answers cut
after three tokens. Its log of TensorBoard is read. The reward alone is of this package.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.runs.command import command
from bapo_lightning.tiny_worlds.locks.task import lock_problems
from bapo_lightning.tools.commands import doctor

COMMON = {
    "model_name_or_path": model_path("package://bapo_lightning/tiny_worlds/locks/model"),
    "reward_funcs": "studies.doctor.trl_log.opened",
    "use_cpu": True,
    "bf16": False,
    "dtype": "float32",
    "report_to": "tensorboard",
    "save_strategy": "no",
    "logging_steps": 1,
    "max_steps": 96,
    "learning_rate": 1.5e-3,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 10,
    "per_device_train_batch_size": 64,
    "steps_per_generation": 4,
    "num_generations": 8,
    "max_completion_length": 10,
    "disable_tqdm": True,
}
RUNS: dict[str, dict[str, object]] = {
    "as it should be": {},
    "ten times the rate": {"learning_rate": 1.5e-2},
    "answers cut": {"max_completion_length": 3},
}


def opened(completions: list[str], keys: list[str], **_: object) -> list[float]:
    """1 for a response that is a key that opens."""
    return [float(text in set(right)) for text, right in zip(completions, keys, strict=True)]


@command(2)
def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, and prints what the doctor finds."""
    parser = argparse.ArgumentParser(prog="python -m studies.doctor.trl_log", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/doctor-trl"), help="folder of the runs")
    output = parser.parse_args(arguments).output
    data = output / "data" / "train.jsonl"
    data.parent.mkdir(parents=True, exist_ok=True)
    rows = ({"prompt": each.prompt, "keys": each.answer} for each in lock_problems("train"))
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, settings in RUNS.items():
        folder = output / name.replace(" ", "_")
        if not folder.exists():
            options = COMMON | settings | {"dataset_name": data.parent, "output_dir": folder}
            flags = [str(each) for key, value in options.items() for each in (f"--{key}", value)]
            subprocess.run(
                [sys.executable, "-m", "trl.scripts.grpo", *flags], check=True, env=_environment(folder)
            )
        print(f"TRL, {name}:")
        doctor.main([str(folder), "--staleness"])


def _environment(folder: Path) -> dict[str, str]:
    added = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TENSORBOARD_LOGGING_DIR": str(folder)}
    return {**os.environ, **added}


if __name__ == "__main__":
    sys.exit(main())
