"""The ranks of a run on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import GPU
from bapo_lightning.ranks.ray.packages import require_ray


def launch_ranks(config: RunConfig, arguments: Sequence[str]) -> int:
    """Trains in ranks that Ray starts with these arguments; returns the exit code of the run.

    Raises:
        ConfigError: Ray is not installed.
        EngineError: there is no cluster.
        RankError: its nodes do not suffice.
    """
    placement = config.ray.ranks
    assert placement is not None
    require_ray(f"ray.ranks={placement}", "ray.ranks=null")
    from bapo_lightning.ranks.ray.nodes import Shape, launch

    fleet = config.rollout.engine.options if config.rollout.engine.object.runs_in == "fleet" else {}
    actors = fleet.get("actors", 0)
    shape = Shape(
        num_nodes=config.num_nodes,
        ranks_per_node=config.devices,
        cpus=config.cpu_threads or 1,
        wants_gpus=config.accelerator in GPU,
        placement=placement,
        fleet_cpus=fleet.get("cpus", 0) * (1 if actors == "auto" else actors),
    )
    return launch(config.ray.address, shape, arguments)
