"""Script of a rehearsal: the overrides that fit an experiment to this machine, and what they leave out.

On GPUs that hold it: its real model and lengths, in two small rollout batches.
Elsewhere: a small model of its family, short texts and a few ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from bapo_lightning.configuration.compose import compose_run, composed_run
from bapo_lightning.configuration.machine import check_machine
from bapo_lightning.configuration.machine_rules import KERNELS
from bapo_lightning.configuration.plan import architecture
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.validate import validate
from bapo_lightning.errors import MachineError
from bapo_lightning.modules.policy.folder import PACKAGE_PREFIX
from bapo_lightning.ranks.rank_group import uses_cuda
from bapo_lightning.run_folder.config_keys import differences
from bapo_lightning.runs.rehearsal.problems import shipped_problems, tables, write_small_model, write_table

PRESET = "debug=rehearsal"
# Of an experiment that leaves its model to the user.
ANY_FAMILY = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
LONGEST = {  # tokens; shorter ones of the experiment stay
    "max_prompt_tokens": 384,
    "max_new_tokens": 32,
    "partial_tokens": 8,
    "overlong_buffer": 8,
    "micro_batch_tokens": 768,  # an update has several micro-batches
}
GROUP_SIZE, ANSWERS = 4, 2  # responses to a problem, in training and in validation
MOST_PARALLEL = 2  # ranks of one tensor-parallel engine
KV_CACHE_BYTES = 64 << 20
SIZES = ("scale.", "trainer.", "rollout.", "callbacks.", "data.validation_samples.")  # beginnings of keys
MISSING = {"model.path": "rehearsal/model", "data.train.path": "rehearsal/train.jsonl"}


@dataclass(frozen=True)
class Script:
    """How one experiment is rehearsed here."""

    name: str
    config: RunConfig  # the experiment itself
    choices: Mapping[str, str]  # the file chosen in each group of the configuration
    overrides: Sequence[str]  # of the rehearsal, its experiment and preset among them
    sizes: Sequence[str]  # "key: before -> in the rehearsal"
    not_here: Sequence[str]  # what this machine cannot rehearse
    plain: dict[str, Any] = field(repr=False)  # resolved configuration of the rehearsal


def write_script(name: str, given: Sequence[str], folder: Path) -> Script:
    """Prepares a rehearsal in a folder that exists: model, tables, overrides. `given` are further overrides
    of the experiment itself.

    Raises:
        ConfigError: the experiment, or the rehearsal on this machine, breaks a rule.
    """
    asked = [f"experiment={name}", *given]
    composed = composed_run(asked, with_hydra=True)
    asked += [f"{key}={value}" for key, value in MISSING.items() if _is_missing(composed, key)]
    plain = compose_run(asked)
    config = validate(plain, "ranks") if _is_elsewhere(plain["model"]) else validate(plain)
    is_whole = _holds_it(config)
    overrides = [PRESET, *([] if is_whole else _in_small(config, folder))]
    rehearsed = validate(compose_run([*asked, *overrides])).plain
    changed = differences(config.plain, rehearsed)
    sizes = [f"{key}: {before} -> {now}" for key, before, now in changed if key.startswith(SIZES)]
    not_here = [] if is_whole else list(_left_out(config))
    choices = dict(composed.hydra.runtime.choices)
    return Script(name, config, choices, [*asked, *overrides], sizes, not_here, rehearsed)


def _is_missing(config: DictConfig, key: str) -> bool:
    above, _, name = key.rpartition(".")
    return OmegaConf.is_missing(OmegaConf.select(config, above), name)


def _is_elsewhere(model: Mapping[str, Any]) -> bool:
    path = model["path"]
    return not (path.startswith(PACKAGE_PREFIX) or Path(path).exists() or model.get("made_by"))


def _holds_it(config: RunConfig) -> bool:
    if not uses_cuda(config.accelerator) or config.num_nodes > 1:
        return False
    with suppress(MachineError):
        check_machine(config)
        return True
    return False


def _in_small(config: RunConfig, folder: Path) -> Iterator[str]:
    scale = config.scale
    for key, most in LONGEST.items():
        yield f"scale.{key}={min(getattr(scale, key), most)}"
    yield f"scale.group_size={min(scale.group_size, GROUP_SIZE)}"
    for name in config.data.validation_samples:
        yield f"data.validation_samples.{name}={ANSWERS}"
    yield from _devices(config)
    yield from _engine(config)
    yield from _model_and_data(config, folder)


def _devices(config: RunConfig) -> Iterator[str]:
    yield f"trainer.devices={_num_ranks(config)}"
    yield "trainer.num_nodes=1"
    yield f"trainer.precision={config.trainer.options['precision']}"
    yield from (
        f"model.{name}={'null' if isinstance(value, str) else 'false'}"
        for name, value in _gpu_kernels(config)
    )


def _gpu_kernels(config: RunConfig) -> list[tuple[str, Any]]:
    if uses_cuda(config.accelerator):
        return []
    return [(name, value) for name, value in KERNELS if getattr(config.model, name) == value]


def _num_ranks(config: RunConfig) -> int:
    parallel = min(config.rollout.tensor_parallel_size, MOST_PARALLEL)
    wanted = min(config.num_ranks, 2 * parallel)
    return min(wanted, torch.cuda.device_count()) if uses_cuda("auto") else wanted


def _vllm_options(config: RunConfig) -> tuple[str, Mapping[str, Any] | None]:
    rollout = config.rollout
    inner = "" if rollout.sampling_engine is rollout.engine else "make_engine."
    return f"rollout.engine.{inner}options", rollout.sampling_engine.options.get("options")


def _engine(config: RunConfig) -> Iterator[str]:
    key, options = _vllm_options(config)
    if options is None:
        return
    yield f"{key}.dtype={options['dtype']}"
    yield f"{key}.tensor_parallel_size={min(config.rollout.tensor_parallel_size, MOST_PARALLEL)}"
    yield f"{key}.kv_cache_bytes={KV_CACHE_BYTES}"


def _model_and_data(config: RunConfig, folder: Path) -> Iterator[str]:
    path = config.model.path
    if _is_elsewhere(config.plain["model"]):
        known = ANY_FAMILY if path == MISSING["model.path"] else architecture(config.model)
        write_small_model(known, _texts(config), folder / "model")
        yield f"model.path={folder / 'model'}"
        yield "model.architecture=null"
    data = config.plain["data"]
    for key, node in (*tables(data["train"], "data.train"), *tables(data["validation"], "data.validation")):
        if not Path(node["path"]).exists():
            file = folder / f"{key}.jsonl"
            is_training = key.startswith("data.train")
            yield from (f"{key}.{text}" for text in write_table(node, is_training, file))


def _texts(config: RunConfig) -> Iterator[str]:
    yield str(config.data.prompt.node)
    yield from (problem["problem"] for problem in shipped_problems())


def _left_out(config: RunConfig) -> Iterator[str]:
    ranks, path = _num_ranks(config), config.model.path
    if config.num_ranks > ranks:
        nodes = f" on {config.num_nodes} nodes" if config.num_nodes > 1 else ""
        yield f"{config.num_ranks} ranks{nodes}: {ranks} here"
    if (parallel := config.rollout.tensor_parallel_size) > MOST_PARALLEL:
        yield f"tensor_parallel_size={parallel}: {MOST_PARALLEL} here"
    if _is_elsewhere(config.plain["model"]) and path != MISSING["model.path"]:
        if not uses_cuda("auto"):
            yield "GPUs: their memory, CUDA's kernels, NCCL, the sleep of an engine that shares them"
        yield f"the weights of {path}: random ones of its family, two layers"
    yield from (f"model.{name}={value}: needs a GPU" for name, value in _gpu_kernels(config))
    for key, node in tables(config.plain["data"], "data"):
        if not Path(node["path"]).exists() and node["path"] != MISSING["data.train.path"]:
            yield f"{key}: shipped problems in the columns of {node['path']}"
