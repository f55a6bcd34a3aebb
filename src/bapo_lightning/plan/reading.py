"""Reads the arguments of the formulas from a run's resolved configuration."""

from __future__ import annotations

from typing import Any, Literal, cast

from bapo_lightning.plan.model_shape import ModelShape
from bapo_lightning.plan.planning import Assumptions
from bapo_lightning.plan.run_shape import EngineShape, LoraShape, Placement, RunShape

Config = dict[str, Any]
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LOCAL_VLLM = "bapo_lightning.rollout.vllm.local.VLLMLocalEngine"
SERVER = "bapo_lightning.rollout.vllm.server.VLLMServerEngine"
CHILD = "bapo_lightning.rollout.child.engine.ChildEngine"
NOT_MEMORY = ("gpu", "gpus", "ignore")


def num_ranks(config: Config) -> int:
    """Returns the number of ranks in the configuration; `plan.gpus` overrides it."""
    trainer = config["trainer"]
    return config["plan"]["gpus"] or trainer["devices"] * trainer["num_nodes"]


def assumptions(config: Config) -> Assumptions:
    """Returns the assumptions of the `plan` node."""
    return Assumptions(**{key: value for key, value in config["plan"].items() if key not in NOT_MEMORY})


def run_shape(config: Config, model: ModelShape) -> RunShape:
    """Returns the shape of the run that a checked configuration describes."""
    scale, regime, strategy, options = config["scale"], config["regime"], config["strategy"], config["model"]
    stored, ranks = BYTES[options["dtype"]], num_ranks(config)
    sharded = strategy["name"] == "fsdp"
    return RunShape(
        model=model,
        strategy=cast(Literal["single", "ddp", "fsdp"], strategy["name"]),
        num_gpus=ranks,
        stored_bytes=stored,
        compute_bytes=BYTES[strategy["compute_dtype"]] if sharded else stored,
        micro_batch_tokens=scale["micro_batch_tokens"],
        prompt_tokens=scale["max_prompt_tokens"],
        response_tokens=scale["max_new_tokens"],
        prompts_per_batch=scale["prompts_per_batch"],
        group_size=scale["group_size"],
        epochs=regime["epochs"],
        minibatches=regime["minibatches"],
        engine=engine_shape(config["rollout"]["engine"], ranks, stored),
        searches="target" in config["algorithm"]["bounds"],
        recomputes=config["correction"]["weights"] is not None,
        measure_entropy_every=config["callbacks"]["measure_entropy_every"],
        checkpointing=options["activation_checkpointing"],
        liger=options["liger"],
        packed_sdpa=options["packing"] == "padding_free" and options["attention"] in (None, "sdpa"),
        gathered_layers=2 if not sharded or strategy["reshard_after_forward"] else model.num_layers,
        whole_gradients=sharded and not strategy["reduce_every_micro_batch"],
        offload=sharded and strategy["cpu_offload"],
        fused_step=bool(config["optimizer"]["optimizer"].get("fused", False)),
        lora=_lora(options["lora"], model),
    )


def engine_shape(engine: Config, ranks: int, stored_bytes: int) -> EngineShape:
    """Returns where the engine is and how much memory it takes there."""
    inner = engine["make_engine"] if engine["_target_"] == CHILD else engine
    apart = engine["_target_"] == SERVER or engine.get("visible_gpus") is not None
    options = inner.get("options")
    if options is None:  # transformers
        return EngineShape(
            "apart" if apart else "beside", 1, ranks, BYTES[inner["dtype"]], None, inner["max_rows"]
        )
    parallel = options["tensor_parallel_size"]
    placement: Placement = "apart" if apart else "asleep" if engine["_target_"] == LOCAL_VLLM else "beside"
    if engine["_target_"] == SERVER:
        gpus = (len(engine["urls"]) or engine["num_servers"]) * parallel
    else:
        gpus = len(str(engine["visible_gpus"]).split(",")) if apart else ranks
    element = BYTES[options["dtype"] or "bfloat16"]
    return EngineShape(
        placement, parallel, gpus, element, options["gpu_memory_utilization"], options["max_num_seqs"]
    )


def _lora(options: Config | None, model: ModelShape) -> LoraShape | None:
    if options is None:
        return None
    targets, every = options["target_modules"], tuple(model.linear_shapes)
    return LoraShape(
        options["rank"],
        every if targets == "all-linear" else tuple(name for name in targets if name in every),
    )
