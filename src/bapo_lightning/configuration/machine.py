"""Whether this machine has the GPUs, the memory and the model that a run needs, before anything is started.

Each need is a line, and whether it is missing. A run that has everything prints what it found; otherwise
everything that is missing is reported at once, with what to do instead.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

import torch

from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.configuration.machine_rules import server_gpus
from bapo_lightning.configuration.plan import plan_of
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.validate import validate
from bapo_lightning.modules.policy.folder import hub_problem
from bapo_lightning.plan.gpus import GPUS, Gpu
from bapo_lightning.plan.memory import gradients, state
from bapo_lightning.plan.planning import Plan
from bapo_lightning.system.errors import ConfigError, DataError, MachineError
from bapo_lightning.system.host import unused_gpu
from bapo_lightning.system.ranks.rank_group import uses_cuda

Need = tuple[str, bool]  # a line, and whether it is missing


def check_machine(config: RunConfig) -> list[str]:
    """Lists what a run on GPUs needs and finds here, a line each; on a CPU memory is not planned: no lines.
    Raises MachineError if GPUs, memory or the model are missing.
    """
    gpus = _gpus_here(config)
    model = hub_problem(config.model.path) if config.model.made_by is None else None
    on_gpus = gpus or config.accelerator in ("gpu", "cuda") or _wants_unused(config)
    hardware = list(_of_gpus(config, gpus, model is None) if on_gpus else _of_host(config))
    lines = [text for text, _ in hardware] + [f"model: {model}"] * (model is not None)
    lacks_hardware = any(is_lacking for _, is_lacking in hardware)
    if lacks_hardware or model is not None:
        advice = list(_advice(config, gpus, lacks_hardware))
        raise MachineError(config.name, lines, advice, _planned_bytes(config, gpus))
    return lines


def _gpus_here(config: RunConfig) -> list[Gpu]:
    """The GPUs that this process may use, with the speed of `plan.gpu`."""
    if not uses_cuda(config.accelerator):
        return []
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    table = GPUS[config.plan.gpu]
    return [replace(table, name=gpu.name, memory_bytes=float(gpu.total_memory)) for gpu in devices]


def _wants_unused(config: RunConfig) -> str | None:
    """Why the GPUs of this machine cannot be used, which `auto` would treat as a machine without GPUs."""
    return None if config.trainer.options["accelerator"] == "cpu" else unused_gpu()


def _of_gpus(config: RunConfig, gpus: Sequence[Gpu], is_model_here: bool) -> Iterator[Need]:
    yield _count(config, gpus)
    if config.plan.ignore:
        return
    try:
        plan, fewer = _plan(config, gpus), _plan(config, gpus, len(gpus) * config.num_nodes)
    except DataError as error:
        reason = error if is_model_here else "the model's sizes are not known (model.architecture)"
        yield f"memory: not planned: {reason}", False
        return
    planned = f"memory: {_gigabytes(plan)} planned for each"
    usable = f"{plan.usable_bytes / 1e9:.1f} of {plan.gpu.memory_bytes / 1e9:.1f} GB to use"
    if not gpus:
        yield f"{planned} GPU", False
    elif len(gpus) < config.devices:
        wanted, here = plan.run.num_gpus, fewer.run.num_gpus
        each = f"{planned} of {wanted} GPUs, {_gigabytes(fewer)} for each of {here}"
        yield f"{each}; a GPU here has {usable}", False
    elif plan.problems:
        yield from ((f"memory: {problem}", True) for problem in plan.problems)
    else:
        yield f"{planned} GPU, which has {usable}: it fits", False


def _count(config: RunConfig, gpus: Sequence[Gpu]) -> Need:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # A server may use a GPU that is not visible here.
    servers = [gpu for gpu in server_gpus(config) if not visible or gpu in visible.split(",")]
    wanted = config.devices + len(servers)
    of_servers = f", and {len(servers)} in rollout.engine.gpus" if servers else ""
    needed = f"GPUs: {wanted} needed (trainer.devices={config.devices}{of_servers})"
    if not gpus:
        unused = _wants_unused(config)
        none = f"none that can be used: {unused};" if unused else "none found; check CUDA_VISIBLE_DEVICES,"
        return f"{needed}, {none} or write trainer.accelerator=cpu", True
    kinds = Counter(f"{gpu.name}, {gpu.memory_bytes / 1e9:.1f} GB" for gpu in gpus)
    names = "; ".join(f"{count} x {kind}" if len(kinds) > 1 else kind for kind, count in kinds.items())
    limit = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    counted = f"{needed}, {len(gpus)} found{limit}: {names}"
    absent = [gpu for gpu in servers if not visible and gpu.isdigit() and int(gpu) >= len(gpus)]
    if absent:
        last = len(gpus) - 1
        return f"{counted}; rollout.engine.gpus names {', '.join(absent)}, the last one is {last}", True
    return counted, len(gpus) < wanted


def _of_host(config: RunConfig) -> Iterator[Need]:
    if config.plan.ignore:
        return
    try:
        plan = plan_of(config)
    except DataError:  # for a model whose sizes only the hub knows
        return
    held = replace(plan.run, offload=False)
    needed = plan.run.num_gpus * sum(amount.bytes for amount in (*state(held), *gradients(held)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        yield f"GPUs: {plan.run.num_gpus} needed, none found", True
        yield (
            f"memory: {_gigabytes(plan)} planned for each GPU; on the CPU the training state alone takes "
            f"{needed / 1e9:.0f} GB, and this machine has {memory / 1e9:.0f} GB",
            True,
        )


def _advice(config: RunConfig, gpus: Sequence[Gpu], lacks_hardware: bool) -> Iterator[str]:
    run = f"EXP={config.name}"
    if config.name not in choice_files("experiment"):
        yield "what it needs, in numbers: make plan, with the EXP and ARGS of this run"
        return
    yield f"what it needs, in numbers: make plan {run}"
    if gpus and lacks_hardware:
        if (devices := _fewer_that_fit(config, gpus)) is not None:
            yield f"the same run fits the GPUs found: make train {run} ARGS=trainer.devices={devices}"
            return
        if len(gpus) >= config.devices:
            yield f"to start although it does not fit: make train {run} ARGS=plan.ignore=true"
    yield f"every part of it on this machine, with a small model, in minutes: make rehearse {run}"


def _fewer_that_fit(config: RunConfig, gpus: Sequence[Gpu]) -> int | None:
    plain = deepcopy(dict(config.plain))
    for devices in range(min(len(gpus), config.devices - 1), 0, -1):
        plain["trainer"]["devices"] = devices
        try:
            if not _plan(validate(plain, "ranks"), gpus).problems:
                return devices
        except ConfigError:  # such as a batch that cannot be divided among so many ranks
            continue
        except DataError:  # for a model whose sizes only the hub knows
            return None
    return None


def _plan(config: RunConfig, gpus: Sequence[Gpu], num_gpus: int | None = None) -> Plan:
    """The plan on the GPUs found, for the smallest GPU in use; without any, on the GPU of the table."""
    here = config.model_copy(update={"plan": config.plan.model_copy(update={"gpus": num_gpus or None})})
    return plan_of(here, min(gpus[: config.devices], key=lambda gpu: gpu.memory_bytes, default=None))


def _planned_bytes(config: RunConfig, gpus: Sequence[Gpu]) -> float:
    try:
        return _peak(_plan(config, gpus))
    except DataError:  # for a model whose sizes only the hub knows
        return 0


def _peak(plan: Plan) -> float:
    return max(plan.fullest.bytes, plan.generating.bytes)


def _gigabytes(plan: Plan) -> str:
    return f"{_peak(plan) / 1e9:.1f} GB"
