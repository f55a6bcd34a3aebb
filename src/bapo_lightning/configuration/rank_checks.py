"""Rules about ranks and strategies, checked before anything is started. Needs no process group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from bapo_lightning.configuration.model_checks import compute_dtype
from bapo_lightning.configuration.regime_checks import IN_PROCESS_VLLM

Config = dict[str, Any]
VLLM_SERVER = "bapo_lightning.rollout.vllm.server.VLLMServerEngine"
STRATEGIES = ("single", "ddp", "fsdp")
PLACEMENTS = ("each", "controller")
COMPUTE_DTYPES = ("bfloat16", "float16", "float32")
ROUNDING = 0.01  # nats by which a pass in 16 bits differs from one in 32, and more on larger models
SWITCHES = ("reshard_after_forward", "cpu_offload", "sharded_checkpoints", "reduce_every_micro_batch")


def rank_complaints(config: Config) -> Iterator[str]:
    """What is wrong with `strategy`, with the number of ranks, and with the engines that they share."""
    trainer = config["trainer"]
    for name in ("devices", "num_nodes"):
        if not (
            isinstance(trainer[name], int) and not isinstance(trainer[name], bool) and trainer[name] >= 1
        ):
            yield f"trainer.{name}={trainer[name]} must be a whole number of at least 1"
            return
    minutes = trainer["rank_wait_minutes"]
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)) or not minutes > 0:
        yield f"trainer.rank_wait_minutes={minutes} must be a positive number"
    yield from _strategy_complaints(config["strategy"], trainer)
    if (
        config["model"]["lora"]
        and config["strategy"]["name"] == "fsdp"
        and config["strategy"]["sharded_checkpoints"] is False
    ):
        yield (
            "strategy.sharded_checkpoints=false with model.lora: such a file cannot be read back; write "
            "strategy.sharded_checkpoints=true"
        )
    yield from _precision_complaints(config)
    yield from _device_complaints(trainer)
    yield from _placement_complaints(config["rollout"], trainer["devices"] * trainer["num_nodes"])


def _strategy_complaints(strategy: Config, trainer: Config) -> Iterator[str]:
    name, ranks = strategy["name"], trainer["devices"] * trainer["num_nodes"]
    if name not in STRATEGIES:
        yield f"strategy.name={name} is none of its values; write one of {', '.join(STRATEGIES)}"
    if name == "single" and ranks > 1:
        yield (
            f"strategy=single with trainer.devices={trainer['devices']} and "
            f"trainer.num_nodes={trainer['num_nodes']}: one process has one device; write strategy=ddp, or "
            "strategy=fsdp where the policy and its optimizer do not fit on one device"
        )
    if name != "fsdp":
        return
    if strategy["compute_dtype"] not in COMPUTE_DTYPES:
        yield (
            f"strategy.compute_dtype={strategy['compute_dtype']} is none of its values; write one of "
            f"{', '.join(COMPUTE_DTYPES)}"
        )
    for key in SWITCHES:
        if not isinstance(strategy[key], bool):
            yield f"strategy.{key}={strategy[key]} must be true or false"


def _precision_complaints(config: Config) -> Iterator[str]:
    """A sync's proof that allows for less than the trainer's own rounding would fail on the first one."""
    tolerance = config["rollout"]["weight_sync"]["tolerance"]
    key = "strategy.compute_dtype" if config["strategy"]["name"] == "fsdp" else "model.dtype"
    dtype = compute_dtype(config)
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if dtype in ("bfloat16", "float16") and is_number and tolerance <= ROUNDING:
        yield (
            f"{key}={dtype} with rollout.weight_sync.tolerance={tolerance}: the trainer's rounding alone "
            f"puts engine and trainer about {ROUNDING} nats apart; write rollout.weight_sync.tolerance=0.2, "
            f"or {key}=float32"
        )


def _device_complaints(trainer: Config) -> Iterator[str]:
    import torch

    devices, accelerator = trainer["devices"], trainer["accelerator"]
    available = torch.cuda.device_count()
    if (
        accelerator in ("gpu", "cuda")
        and not torch.cuda.is_available()
        and not torch.backends.mps.is_available()
    ):
        yield (
            f"trainer.accelerator={accelerator}: no GPU is to be seen; write trainer.accelerator=cpu, or "
            "look at CUDA_VISIBLE_DEVICES"
        )
    elif accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available() and devices > available:
        yield (
            f"trainer.devices={devices}: {available} GPUs are to be seen; write trainer.devices={available}, "
            "or trainer.accelerator=cpu"
        )
    elif accelerator == "mps" and devices > 1:
        yield (
            f"trainer.devices={devices} with trainer.accelerator=mps: it has one device; write "
            "trainer.devices=1"
        )
    nodes = trainer["num_nodes"]
    if nodes > 1 and not {"TORCHELASTIC_RUN_ID", "SLURM_PROCID", "LOCAL_RANK"} & set(os.environ):
        yield (
            f"trainer.num_nodes={nodes}: a run starts ranks on its own machine only; start it on every node "
            f"by torchrun --nnodes={nodes} --nproc-per-node={devices}, or by srun, see docs/scale.md"
        )


def _placement_complaints(rollout: Config, ranks: int) -> Iterator[str]:
    placement, target = rollout["placement"], rollout["engine"]["_target_"]
    if placement not in PLACEMENTS:
        yield f"rollout.placement={placement} is none of its values; write one of {', '.join(PLACEMENTS)}"
        return
    if ranks == 1:
        return
    if target == VLLM_SERVER and placement == "each":
        yield (
            f"rollout.placement=each with rollout=vllm_server: each of {ranks} ranks would have servers; "
            "write rollout.placement=controller"
        )
    if target == IN_PROCESS_VLLM and placement == "controller":
        yield (
            "rollout.placement=controller with rollout=vllm: vLLM inside the training processes runs in all of "
            "them together; write rollout.placement=each, or rollout=vllm_child or rollout=vllm_server"
        )
    size = rollout["engine"].get("options", {}).get("tensor_parallel_size", 1)
    if target == IN_PROCESS_VLLM and ranks % size:
        yield (
            f"rollout.engine.options.tensor_parallel_size={size} does not divide {ranks} ranks, whose GPUs "
            "vLLM shares; write a number that does"
        )
    gpus = rollout["engine"].get("visible_gpus")
    if gpus is not None and placement == "each":
        yield (
            f"rollout.engine.visible_gpus={gpus} with rollout.placement=each is the same for the engines of "
            f"all {ranks} ranks; write null, so that each takes its rank's, or rollout.placement=controller"
        )
