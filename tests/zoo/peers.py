"""TRL's and verl's own code beside ours, on the same random tables.

    sample --> our gradient, weights or advantages -----------+--> difference
       |                                                      |
       +--> job --> the peer's script in its environment -----+--> its gradient over 2 and 5 micro-batches

Shapes: N tokens; B responses of up to T tokens; P groups of G responses.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tests.zoo import algorithms, updates
from tests.zoo.peer_cases import CASES, Case
from tests.zoo.reference import Columns, random_columns, table_from
from torch import Tensor

from bapo_lightning.objectives.advantages.reward_batch import RewardBatch
from bapo_lightning.objectives.weighting import weigh

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1, 2)
GAPS = (1e-4, 1e-2, 0.1, 0.5, 1.5)  # nats, of log pi_proximal / pi_behaviour within a response
PARTS = (1, 2, 5)
LIMIT = 1e-6  # verl adds 1e-8 to lengths, and our weights are float32
SAME, TOO_FAR, OUTDATED = "same", "too far", "not so any more"


def python(peer: str) -> Path:
    return ROOT / f".venv-{peer}" / "bin" / "python"


@dataclass(frozen=True)
class Row:
    """A case with the relative differences that were measured."""

    case: Case
    difference: float  # largest of the peer's from ours, on the whole update
    splits: dict[int, float]  # of the peer's over that many micro-batches from its own over one, of the norm

    @property
    def verdict(self) -> str:
        return _verdict(self.difference, self.case.reading)

    @property
    def split_verdict(self) -> str:
        return _verdict(max(self.splits.values()), self.case.split) if self.splits else ""

    @property
    def fails(self) -> bool:
        return bool({TOO_FAR, OUTDATED} & {self.verdict, self.split_verdict})


def _verdict(difference: float, known: str) -> str:
    if difference <= LIMIT:
        return OUTDATED if known else SAME
    return known or TOO_FAR


@dataclass(frozen=True)
class Sample:
    """What both sides are given: columns of a token table, and rewards."""

    columns: Columns
    rewards: RewardBatch

    @property
    def mask(self) -> Tensor:
        """Response tokens of the padded columns, [B, T] bool."""
        starts = np.flatnonzero(self.columns["position"] == 0)
        lengths = torch.from_numpy(np.diff([*starts, len(self.columns["position"])]))
        return torch.arange(int(lengths.max())) < lengths[:, None]

    def padded(self) -> dict[str, Tensor]:
        """Returns the columns that a peer is given, [B, T], 0 outside of the mask; and rewards, [P, G]."""
        mask = self.mask
        found = {"mask": mask.double()}
        for name in ("logp", "behaviour_logp", "proximal_logp", "entropy", "advantage"):
            found[name] = torch.zeros(mask.shape, dtype=torch.float64)
            found[name][mask] = torch.from_numpy(self.columns[name])
        return found | {"rewards": self.rewards.rewards, "lengths": self.rewards.lengths.double()}


def sample(seed: int) -> Sample:
    """Returns columns whose gap of engine and trainer is on both sides of all bounds, and 5 groups of 4
    rewards, those of one group equal, of responses of 1 to 14 tokens.
    """
    columns, generator = random_columns(seed), np.random.default_rng(seed)
    spread = generator.permutation(np.resize(GAPS, 20))[columns["sequence"]]
    gap = spread * generator.standard_normal(len(spread))
    columns["behaviour_logp"] = np.minimum(columns["proximal_logp"] - gap, 0.0)
    # TRL looks for the quantile of entropies in float32.
    columns["entropy"] = columns["entropy"].astype(np.float32).astype(float)
    rewards = torch.from_numpy(generator.uniform(0, 1, (5, 4)))
    rewards[2] = 1.0
    lengths = torch.from_numpy(generator.integers(1, 15, (5, 4)))
    return Sample(columns, RewardBatch(rewards, lengths, rewards, tuple("abcde"), (True,) * 5))


def compare(peer: str, cases: Sequence[Case], folder: Path) -> tuple[str, list[Row]]:
    """Returns the version of the peer, and a row for each case; both sides exchange files in a folder. Raises
    RuntimeError if the peer's script failed.
    """
    samples = [sample(seed) for seed in SEEDS]
    asked = [{"name": case.name, "kind": case.kind, "options": case.options} for case in cases]
    job = {"tables": [each.padded() for each in samples], "cases": asked, "parts": PARTS}
    torch.save(job, folder / "job.pt")
    script = Path(__file__).parent / "peer_jobs" / f"{peer}_answers.py"
    command = [str(python(peer)), str(script), str(folder / "job.pt"), str(folder / "answers.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip() or "it was killed"
        raise RuntimeError(f"{script.name} failed: {said.splitlines()[-1]}")
    told = torch.load(folder / "answers.pt")
    return told["version"], [row(case, told["answers"][case.name], samples) for case in cases]


def row(case: Case, answers: Sequence[Any], samples: Sequence[Sample]) -> Row:
    differences = []
    splits = dict.fromkeys(PARTS[1:], 0.0) if case.kind in ("loss", "entropy") else {}
    for found, given in zip(answers, samples, strict=True):
        if case.kind == "advantage":
            differences.append(_gap(found, our_advantages(case, given)))
        elif case.kind == "factor":
            differences.append(_gap(found[given.mask], our_factor(case, given)))
        else:
            differences.append(_gap(-found[1][given.mask], our_gradient(case, given)))
        for parts, most in splits.items():
            splits[parts] = max(most, updates.gap(found[parts], found[1]))
    return Row(case, max(differences), splits)


def _gap(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, relative to the expected number plus the mean size of all."""
    return float(((found - expected).abs() / (expected.abs() + expected.abs().mean())).max())


def our_gradient(case: Case, given: Sample) -> Tensor:
    """Returns d(weighted sum of the objective) / d log-prob, or / d entropy, [N]."""
    method, mask = algorithms.method(case.ours, case.overrides), given.mask
    weight = weigh(method.weighting, mask, float(mask.sum()), float(len(mask)))[mask].double()
    table = table_from({**given.columns, "weight": weight.numpy()}, method)
    leaf = table.entropy.requires_grad_() if case.kind == "entropy" else table.logp
    if case.correction:
        table = table.corrected(correction(*case.correction)(table))
    (found,) = torch.autograd.grad((table.weight * method.objective(table)).sum(), leaf)
    return found


def our_factor(case: Case, given: Sample) -> Tensor:
    return correction(case.ours, *case.overrides)(table_from(given.columns, algorithms.method("grpo")))


def correction(name: str, *overrides: str) -> Any:
    """Returns the weights of a file in conf/correction: table -> factors."""
    return algorithms.made(algorithms.composed("correction", name, overrides)["weights"])


def our_advantages(case: Case, given: Sample) -> Tensor:
    parts = algorithms.composed("algorithm", case.ours, case.overrides)
    if stage := algorithms.made(parts["stages"].get("batch_advantages")):
        return stage.advantages(given.rewards)
    return algorithms.made(parts["advantages"])(given.rewards.rewards)


def show(names: Sequence[str], only: Sequence[str] | None = None) -> list[str]:
    """Compares our algorithms and corrections, or `only` some, with peers of these names, and prints a table
    for each; returns what failed.
    """
    failed = []
    for name in names:
        cases = [case for case in CASES[name] if only is None or case.ours in only]
        if not python(name).exists():
            print(f"{name}: not compared; first: make setup-{name}")
        elif cases:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    version, rows = compare(name, cases, Path(folder))
                except RuntimeError as error:
                    print(error)
                    failed.append(name)
                    continue
            Console(width=None if sys.stdout.isatty() else 160).print(_table(f"{name} {version}", rows))
            failed += [f"{name}'s {row.case.name}" for row in rows if row.fails]
    if failed:
        print(f"not as it is known to be: {', '.join(failed)}")
    return failed


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(
        title, "ours", "difference", "", *(f"in {parts}" for parts in PARTS[1:]), "of each micro-batch"
    )
    for row in rows:
        splits = [f"{value:.1e}" for value in row.splits.values()] or [""] * (len(PARTS) - 1)
        kept = row.split_verdict if row.splits else ""
        table.add_row(row.case.name, row.case.ours, f"{row.difference:.0e}", row.verdict, *splits, kept)
    return table
