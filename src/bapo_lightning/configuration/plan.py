"""The plan of a configuration: its run in the form that the formulas take, and the sizes of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import Lora, Model, RolloutSection
from bapo_lightning.configuration.targets import Target
from bapo_lightning.modules.policy.folder import model_config, model_path
from bapo_lightning.objectives.objective import needs_of
from bapo_lightning.plan.gpus import GPUS, Gpu
from bapo_lightning.plan.model_shape import ModelShape, model_shape
from bapo_lightning.plan.planning import Assumptions, Plan, make_plan, share_of_updates
from bapo_lightning.plan.run_shape import EngineShape, LoraShape, Placement, RunShape
from bapo_lightning.rollout.engine import engine_class
from bapo_lightning.system.errors import ConfigError, DataError, first_line
from bapo_lightning.system.pretrained import refuse_quantized
from bapo_lightning.system.values import MIXED


def plan_of(config: RunConfig, gpu: Gpu | None = None) -> Plan:
    """The plan, on `plan.gpu` unless another GPU is given. Raises DataError for a model of unknown sizes."""
    shape = model_shape(architecture(config.model))
    return make_plan(run_shape(config, shape), gpu or GPUS[config.plan.gpu], assumptions(config, shape))


def architecture(model: Model) -> dict[str, Any]:
    """The model's config.json: `model.architecture`, the folder's, or the hub's. Raises DataError."""
    if model.architecture is None:
        return _architecture_of_files(model.path)
    refuse_quantized(model.architecture, "model.architecture")
    return dict(model.architecture)


def check_architecture(model: Model) -> None:
    """Raises ConfigError if the model's sizes differ from the planned ones of `model.architecture`."""
    if model.architecture is None:
        return
    remedy = f"write model.path=FOLDER, or fetch it first: hf download {model.path}"
    files = _architecture_of_files(model.path, remedy)
    claimed, actual = model_shape(model.architecture), model_shape(files)
    real = asdict(actual)
    differing = [
        f"{key} {said} instead of {real[key]}" for key, said in asdict(claimed).items() if said != real[key]
    ]
    if differing:
        problem = f"model.architecture differs from {model.path}: {', '.join(differing)}"
        raise ConfigError([f"{problem}; write architecture: null"])


def _architecture_of_files(
    path: str, remedy: str = "write model.architecture, or a folder"
) -> dict[str, Any]:
    file = Path(model_path(path), "config.json")
    if Path(path).exists() and not file.is_file():  # not a name of the hub
        raise DataError(f"model.path={path} is not a model folder: config.json is missing; {remedy}")
    if not file.is_file():
        file = _from_hub(model_path(path), remedy)
    return model_config(str(file.parent))


def _from_hub(path: str, remedy: str) -> Path:
    from transformers.utils.hub import cached_file

    try:
        file = cached_file(path, "config.json")
    except OSError as error:
        reason = first_line(error)
        raise DataError(
            f"model.path={path}: its config.json could not be loaded ({reason}); {remedy}"
        ) from None
    if file is None:
        raise DataError(f"model.path={path}: its folder has no config.json; {remedy}")
    return Path(file)


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, MIXED: 2}


def assumptions(config: RunConfig, model: ModelShape) -> Assumptions:
    """The shares and sizes of `plan`, for a model of this shape."""
    given = config.plan.model_dump(exclude={"gpu", "gpus", "ignore"})
    share = config.plan.update_share or share_of_updates(model.num_parameters)
    return Assumptions(**given | {"update_share": share})


def run_shape(config: RunConfig, model: ModelShape) -> RunShape:
    """The run of a valid configuration; `plan.gpus` replaces its ranks if it is given."""
    scale, regime, options = config.scale, config.staleness, config.model
    sharded, strategy = config.is_sharded, config.strategy.options
    stored, ranks = BYTES[options.dtype], config.plan.gpus or config.num_ranks
    entropy_rule, gradient = map(config.callbacks.nodes.get, ("entropy_rule", "gradient"))
    return RunShape(
        model=model,
        strategy="fsdp" if sharded else "ddp" if config.is_distributed else "single",
        num_gpus=ranks,
        stored_bytes=stored,
        compute_bytes=BYTES[config.compute_dtype],
        autocast=not sharded and BYTES[config.compute_dtype] < stored,
        micro_batch_tokens=scale.micro_batch_tokens,
        prompt_tokens=scale.max_prompt_tokens + scale.max_feedback_tokens,  # read, but not scored
        response_tokens=scale.max_new_tokens,
        prompts_per_batch=scale.prompts_per_batch,
        group_size=scale.group_size,
        epochs=regime.epochs,
        minibatches=regime.minibatches,
        engine=engine_shape(config.rollout, ranks),
        searches=config.algorithm.searches_before_gradients,
        recomputes=bool(config.entry_scores),
        reference=config.scores_by_reference,
        log_z="log_z" in needs_of(config.algorithm.objective.object),
        measure_entropy_every=entropy_rule.options.get("every", 0) if entropy_rule else 0,
        keeps_gradient=bool(gradient and gradient.options.get("cosine")),
        checkpointing=options.activation_checkpointing,
        liger=bool(options.liger),
        liger_head=options.head == "liger",
        packed_sdpa=options.packing == "padding_free" and options.attention in (None, "sdpa"),
        gathered_layers=2 if not sharded or strategy["reshard_after_forward"] else model.num_layers,
        whole_gradients=sharded and not strategy["reduce_every_micro_batch"],
        offload=sharded and strategy["cpu_offload"],
        fused_step=bool(config.optimizer.optimizer.options.get("fused", False)),
        lora=_lora(options.lora, model),
    )


def engine_shape(rollout: RolloutSection, ranks: int) -> EngineShape:
    """Placement of the engine, and its needs there."""
    options, runs_in = rollout.engine.options, engine_class(rollout.engine.object).runs_in
    inner = rollout.sampling_engine.options
    takes_turns = runs_in == "trainer" or options.get("ranks") == "together"
    apart = (runs_in in ("server", "fleet") and not takes_turns) or options.get("visible_gpus") is not None
    vllm = inner.get("options")
    if vllm is None:  # transformers
        placement: Placement = "apart" if apart else "beside"
        gpus = _fleet_gpus(options, ranks, 1) if runs_in == "fleet" else ranks
        return EngineShape(placement, 1, gpus, BYTES[inner["dtype"]], None, inner["max_rows"])
    vllm = Target(vllm).options
    parallel = vllm["tensor_parallel_size"]
    placement = "apart" if apart else "asleep" if takes_turns else "beside"
    if runs_in == "server":
        gpus = (len(options["urls"]) or options["num_servers"]) * parallel
    elif runs_in == "fleet":
        gpus = _fleet_gpus(options, ranks, parallel)
    else:
        gpus = len(str(options["visible_gpus"]).split(",")) if apart else ranks
    element = BYTES[vllm["dtype"]]
    return EngineShape(
        placement, parallel, gpus, element, vllm["gpu_memory_utilization"], vllm["max_num_seqs"]
    )


def _fleet_gpus(options: Mapping[str, Any], ranks: int, parallel: int) -> int:
    return ranks if options["actors"] == "auto" else int(options["actors"]) * parallel


def _lora(options: Lora | None, model: ModelShape) -> LoraShape | None:
    if options is None:
        return None
    names = tuple(model.linear_shapes)
    targets = names if options.target_modules == "all-linear" else options.target_modules
    return LoraShape(options.rank, tuple(name for name in targets if name in names))
