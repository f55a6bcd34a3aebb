"""Plugins of this package, which Hydra takes from `hydra_plugins` only. Every program that uses Hydra imports
this file once it is installed, so that it imports the package itself only when a plugin is used.
"""

from __future__ import annotations

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class RunsSweeper(Sweeper):
    """Runs every case with every combination of the parameters; conf/hydra/sweeper/runs.yaml."""

    hydra_context: HydraContext
    config: DictConfig

    def __init__(self, **options: Any) -> None:
        """Takes the options, which are read unresolved from the configuration."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keeps what a launcher is made of."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> None:
        """Ends the process when all runs have ended."""
        from bapo_lightning.tools.commands.multirun import sweep

        sweep(self.hydra_context, self.task_function, self.config, arguments)
