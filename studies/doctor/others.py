"""Doctors of the package index on the kept runs: `PYTHON studies/doctor/others.py KEPT OUT`.

    studies/kept/doctor.jsonl -> curves under each doctor's names -> its defaults -> findings, a line a run

PYTHON is an interpreter that has them, `pip install rldoctor==0.2.0 rlprobe==0.1.0 rlwatch==0.5.1`, and needs
nothing of this package. Each gets all updates of a run, and each quantity that it knows and the run has.
OUT is studies/kept/doctor_others.json, from which `python -m studies.doctor` makes the table.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

Row = dict[str, float]
# Names of the package -> TRL's, and the KL to the data's policy under verl's; `rldoctor` reads both.
TRL = {
    "train/reward": "reward",
    "policy/entropy": "entropy",
    "train/grad_norm": "grad_norm",
    "train/learning_rate": "learning_rate",
    "train/loss": "loss",
    "train/clip_fraction": "clip_ratio/region_mean",
    "train/response_length": "completions/mean_length",
    "share/cut": "completions/clipped_ratio",
    "share/uniform": "frac_reward_zero_std",
    "mismatch/abs_logp_diff_mean": "sampling/sampling_logp_difference/mean",
    "policy/approx_kl": "actor/ppo_kl",
}
RLPROBE = {
    "reward": "reward_mean",
    "reward_std": "reward_std",
    "entropy": "entropy_mean",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "loss": "loss",
    "clip_ratio/region_mean": "clip_fraction",
    "completions/mean_length": "completion_len_mean",
    "completions/clipped_ratio": "truncation_rate",
    "frac_reward_zero_std": "zero_variance_group_frac",
    "actor/ppo_kl": "kl_mean",
}
RLWATCH = {
    "reward": "reward_mean",
    "reward_std": "reward_std",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "loss": "loss",
    "clip_ratio/region_mean": "clip_fraction",
    "actor/ppo_kl": "kl_divergence",
}


def rows_of(curves: Mapping[str, list[float | None]]) -> list[Row]:
    """Rows of a run's log. Rewards are 0 or 1, so their deviation follows from their mean. A skipped update
    has the gradient that other trainers log for it, NaN.
    """
    length, skipped = max(map(len, curves.values())), 0.0
    rows = []
    for step in range(length):
        renamed_row = {
            theirs: values[step] for ours, theirs in TRL.items() if step < len(values := curves.get(ours, []))
        }
        row = {name: value for name, value in renamed_row.items() if value is not None}
        if "reward" in row:
            row["reward_std"] = math.sqrt(max(0.0, row["reward"] * (1 - row["reward"])))
        if (count := (curves.get("train/skipped_updates") or [None] * length)[step]) is not None:
            row |= {"grad_norm": math.nan} if count > skipped else {}
            skipped = count
        rows.append(row)
    return rows


def renamed(row: Row, names: Mapping[str, str]) -> Row:
    return {theirs: row[ours] for ours, theirs in names.items() if ours in row}


def rldoctor(rows: list[Row]) -> list[str]:
    """Its warnings and worse on a log in TRL's form."""
    from rl_doctor import diagnose
    from rl_doctor.ingest import load_run

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "log.jsonl")
        file.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows)))
        diagnosis = diagnose(load_run(str(file)))
    return [
        finding.detector for finding in diagnosis.problems if finding.severity.name in ("WARNING", "CRITICAL")
    ]


def rlprobe(rows: list[Row]) -> list[str]:
    """Its findings in a recording."""
    from rlprobe.doctor.engine import diagnose
    from rlprobe.recorder.core import Recorder

    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(folder, algorithm="grpo", install_handlers=False, capture_env=False)
        for step, row in enumerate(rows):
            numbers = renamed(row, RLPROBE)
            numbers |= {"nan_count": int(math.isnan(row.get("grad_norm", 0.0)))}
            recorder.log_step(step, **numbers)
        recorder.close()
        signatures = diagnose(folder)
    return [finding.signature_id for finding in signatures if finding.severity != "info"]


def rlwatch(rows: list[Row]) -> list[str]:
    """Its alerts, in the order in which it sends them."""
    from rlwatch.config import RLWatchConfig
    from rlwatch.core import RLWatch

    with tempfile.TemporaryDirectory() as folder:
        config = RLWatchConfig(framework="manual")
        config.storage.log_dir = folder
        monitor = RLWatch(config)
        monitor.start()
        sent = [
            alert
            for step, row in enumerate(rows)
            for alert in monitor.log_step(step, **renamed(row, RLWATCH))
        ]
        monitor.stop()
    return list(dict.fromkeys(alert.detector for alert in sent))


DOCTORS: dict[str, Callable[[list[Row]], list[str]]] = {
    "rldoctor": rldoctor,
    "rlprobe": rlprobe,
    "rlwatch": rlwatch,
}


def findings(kept: Path) -> Iterator[dict[str, object]]:
    """Yields for each run what each doctor finds."""
    for line in kept.open(encoding="utf-8"):
        run = json.loads(line)
        rows = rows_of(run["curves"])
        yield {"run": run["run"], **{name: doctor(rows) for name, doctor in DOCTORS.items()}}


def main() -> None:
    kept, out = map(Path, sys.argv[1:])
    with contextlib.redirect_stdout(io.StringIO()):
        lines = list(findings(kept))
    head = {"versions": {name: version(name) for name in DOCTORS}}
    out.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))


if __name__ == "__main__":
    main()
