"""Weights & Biases with the grouping that makes runs comparable."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch.loggers import WandbLogger

from bapo_lightning.callbacks.run_manifest import git_commit


def make_wandb_logger(project: str, offline: bool, group: str, job_type: str, name: str, seed: int, folder: str) -> WandbLogger:
    """A run whose group is the protocol (scale/regime), whose job type is the algorithm, tagged with seed and commit."""
    tags = [f"seed-{seed}", f"commit-{git_commit() or 'unknown'}"]
    Path(folder).mkdir(parents=True, exist_ok=True)
    return WandbLogger(project=project, offline=offline, group=group, job_type=job_type, name=name, tags=tags, save_dir=folder)
