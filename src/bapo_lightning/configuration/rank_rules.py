"""Rules about ranks: how many there are, and what they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.modules.policy.options import FLASH

ROUNDING = 0.01  # nats by which a pass in 16 bits differs from one in 32, and more on larger models

# Where one rank's engine is several already: what every rank would have.
SEVERAL = {"server": "servers", "fleet": "a fleet"}


class RankLauncher(Protocol):
    """Starts the ranks of a run elsewhere than on this machine."""

    def run_problems(self, config: RunConfig) -> Iterator[str]:
        """Yields what of the run cannot be with these ranks."""
        ...

    def launch(self, config: RunConfig, arguments: Sequence[str]) -> int:
        """Trains in ranks with these arguments of the command; returns the exit code of the run."""
        ...


def rank_launcher(config: RunConfig) -> RankLauncher | None:
    """What starts the ranks; None: the run itself, or what started this process."""
    made: RankLauncher | None = config.ranks.make() if config.ranks is not None else None
    return made


def rank_problems(config: RunConfig) -> Iterator[str]:
    """Yields what is wrong with `strategy`, the number of ranks, and the engines that they share."""
    if not config.is_distributed and config.num_ranks > 1:
        yield (
            f"strategy=single with trainer.devices={config.devices} and trainer.num_nodes="
            f"{config.num_nodes}: one process has one device; write strategy=ddp, or strategy=fsdp where "
            "the policy and its optimizer do not fit on one device"
        )
    if config.is_sharded and config.model.lora and not config.strategy.options["sharded_checkpoints"]:
        yield (
            "strategy.sharded_checkpoints=false with model.lora: such a file cannot be read back; write "
            "strategy.sharded_checkpoints=true"
        )
    yield from _precision_problems(config)
    yield from _parallel_problems(config)
    if config.num_ranks > 1:
        yield from _placement_problems(config)
    if (launcher := rank_launcher(config)) is not None:
        yield from launcher.run_problems(config)


def _precision_problems(config: RunConfig) -> Iterator[str]:
    """A proof of a sync that allows for less than the trainer's own rounding would fail on the first one."""
    tolerance = config.rollout.weight_sync.options.get("tolerance")
    dtype, chosen = config.compute_dtype, f"model.dtype={config.model.dtype}"
    if dtype != config.model.dtype:
        chosen = "trainer.precision=bf16-mixed"
    full = "trainer.precision=32-true" if dtype != config.model.dtype else "model.dtype=float32"
    if dtype != "float32" and isinstance(tolerance, float | int) and tolerance <= ROUNDING:
        yield (
            f"{chosen} with rollout.weight_sync.tolerance={tolerance}: the trainer's rounding alone "
            f"puts engine and trainer about {ROUNDING} nats apart; write "
            f"rollout.weight_sync.tolerance=null, which follows the precision, or {full}"
        )
    if config.model.attention in FLASH and dtype == "float32":
        yield (
            f"model.attention={config.model.attention} computes in 16 bits, the update in float32; write "
            "trainer.precision=bf16-mixed, which keeps float32 weights"
        )


def _parallel_problems(config: RunConfig) -> Iterator[str]:
    """vLLM inside the training processes has their GPUs and no others."""
    ranks, size = config.num_ranks, config.rollout.tensor_parallel_size
    if getattr(config.rollout.engine.object, "shares_gpu", False) and ranks % size:
        yield (
            f"rollout.engine.options.tensor_parallel_size={size} does not divide {ranks} "
            f"rank{'s' * (ranks > 1)}, whose GPUs vLLM shares; write a number that does, strategy=fsdp with "
            f"trainer.devices={size}, or rollout=vllm_child with GPUs of its own in "
            "rollout.engine.visible_gpus"
        )


def _placement_problems(config: RunConfig) -> Iterator[str]:
    placement, engine, ranks = config.rollout.placement, config.rollout.engine, config.num_ranks
    shares_gpu = getattr(engine.object, "shares_gpu", False)
    own = SEVERAL.get(getattr(engine.object, "runs_in", ""))
    if own and placement == "each":
        yield (
            f"rollout.placement=each with {engine.name}: each of {ranks} ranks would have {own}; write "
            "rollout.placement=controller"
        )
    if shares_gpu and placement == "controller":
        yield (
            "rollout.placement=controller with rollout=vllm: vLLM inside the training processes runs in all "
            "of them together; write rollout.placement=each, or rollout=vllm_child or rollout=vllm_server"
        )
    gpus = engine.options.get("visible_gpus")
    if gpus is not None and placement == "each":
        yield (
            f"rollout.engine.visible_gpus={gpus} with rollout.placement=each is the same for the engines of "
            f"all {ranks} ranks; write null, so that each takes its rank's, or rollout.placement=controller"
        )
