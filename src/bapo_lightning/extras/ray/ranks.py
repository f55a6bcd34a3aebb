"""The ranks of a run on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import GPU
from bapo_lightning.extras.ray import require_ray
from bapo_lightning.extras.ray.engine import RayEngine


@dataclass(frozen=True)
class RanksOnRay:
    """Starts the ranks of a run on the nodes of a cluster."""

    address: str | None = None  # of the cluster, as in `joining.join`
    # apart: on devices that nothing else on the cluster gets; together: on the fleet's.
    placement: Literal["apart", "together"] = "apart"

    def run_problems(self, config: RunConfig) -> Iterator[str]:
        """Yields that a fleet which samples during training cannot take turns with it."""
        if self.placement == "together" and config.staleness.async_generation:
            yield (
                "ranks.placement=together with regime.async_generation=true: trainer and fleet take turns on "
                "the same devices, and generation must run during training; write ranks.placement=apart"
            )

    def launch(self, config: RunConfig, arguments: Sequence[str]) -> int:
        """Trains in ranks that Ray starts; returns the exit code. Raises RankError for too few nodes."""
        require_ray("ranks=ray", "ranks=none")
        from bapo_lightning.extras.ray.nodes import Shape, launch

        engine = config.rollout.engine
        fleet = engine.options if engine.is_a(RayEngine) else {"actors": 0, "cpus": 0}
        shape = Shape(
            num_nodes=config.num_nodes,
            ranks_per_node=config.devices,
            cpus=config.cpu_threads or 1,
            wants_gpus=config.accelerator in GPU,
            is_apart=self.placement == "apart",
            fleet_cpus=fleet["cpus"] * (1 if fleet["actors"] == "auto" else fleet["actors"]),
        )
        return launch(self.address, shape, arguments)
