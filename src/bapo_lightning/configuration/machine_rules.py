"""Rules about this machine: packages, kinds of devices, the model's folder, room for the run folder.
`configuration.machine` counts GPUs and memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from bapo_lightning.callbacks.loggers.wandb import RunWandbLogger, is_logged_in
from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.targets import TARGET, run_problems, targets_within
from bapo_lightning.modules.liger_head import has_liger_head, is_hopper
from bapo_lightning.modules.policy.folder import model_folder_problems
from bapo_lightning.modules.policy.options import FLASH_HUB, VARLEN
from bapo_lightning.modules.policy.packing import has_varlen
from bapo_lightning.rollout.engine import engine_class
from bapo_lightning.system.host import missing_to_build
from bapo_lightning.system.ranks.launch import place_of
from bapo_lightning.system.ranks.rank_group import uses_cuda

# Needs of a key besides a GPU: a package, its name for pip, and what to write if it cannot be installed.
KERNELS: dict[tuple[str, str | bool], tuple[str | None, str, str]] = {
    ("attention", "flash_attention_2"): (
        "flash_attn",
        '--no-build-isolation -e ".[flash]", which takes nvcc',
        f"model.attention={FLASH_HUB}, which is built already, or model.attention=sdpa",
    ),
    ("attention", FLASH_HUB): ("kernels", '"kernels>=0.17,<0.18"', "model.attention=sdpa"),
    ("attention", VARLEN): (VARLEN, '"torch>=2.13"', "model.attention=sdpa"),
    ("attention", "flex_attention"): (None, "", "model.attention=sdpa"),
    ("liger", True): ("liger_kernel", 'liger-kernel, or -e ".[gpu]" with vLLM', "model.liger=false"),
    ("head", "liger"): ("liger_head", '"liger-kernel[cutedsl]>=0.8.5"', "model.head=own"),
}

# Logger of Lightning -> packages, of which it needs one.
LOGGERS = {"TensorBoardLogger": ("tensorboard", "tensorboardX"), "MLFlowLogger": ("mlflow",)}


def machine_problems(config: RunConfig) -> Iterator[str]:
    """Yields what in a configuration cannot run on this machine."""
    yield from _logger_problems(config)
    yield from _kernel_problems(config)
    yield from _build_problems(config)
    yield from _device_problems(config)
    yield from _server_problems(config)
    yield from _child_problems(config)
    rollout = config.rollout
    is_child = engine_class(rollout.engine.object).runs_in == "child"
    engine = rollout.sampling_engine if is_child else rollout.engine
    yield from run_problems(engine, "rollout.engine", config.facts, "machine_problems")
    yield from run_folder_problems(config.run_folder)
    yield from model_folder_problems(config.model.path, config.model.made_by)
    for name, part in config.algorithm.parts.items():
        yield from run_problems(part, f"algorithm.{name}", config.facts, "machine_problems")
    if config.environment is not None:
        for key, part in targets_within(config.environment.answers.node, "environment.answers"):
            yield from run_problems(part, key, config.facts, "machine_problems")


def _kernel_problems(config: RunConfig) -> Iterator[str]:
    for (name, value), (package, wanted, instead) in KERNELS.items():
        if getattr(config.model, name) != value:
            continue
        key = f"model.{name}={str(value).lower() if value is True else value}"
        if not uses_cuda(config.accelerator):
            yield (
                f"{key} needs a GPU, and this machine offers none to trainer.accelerator="
                f"{config.accelerator}; write {instead}"
            )
        elif name == "head" and not is_hopper(torch.device("cuda")):
            yield f"{key} needs a GPU of compute capability 9.0 (H100, H200, H20); write {instead}"
        elif package is not None and not _is_here(package):
            yield (
                f"{key} needs a package that this machine does not have: pip install {wanted}; or write "
                f"{instead}"
            )


def _is_here(package: str) -> bool:
    if package == VARLEN:
        return has_varlen()
    return has_liger_head() if package == "liger_head" else find_spec(package) is not None


def _build_problems(config: RunConfig) -> Iterator[str]:
    """Compilers that are missed only minutes after the start: of torch.compile, and of Triton on GPUs."""
    model = config.model
    by_triton = missing_to_build("C") if uses_cuda(config.accelerator) else None
    for key, is_chosen, missing, instead in (
        ("compile=true", model.compile, missing_to_build("C++") or by_triton, "compile=false"),
        ("attention=flex_attention", model.attention == "flex_attention", by_triton, "attention=sdpa"),
        ("liger=true", model.liger is True, by_triton, "liger=false"),
    ):
        if is_chosen and missing:
            needs = f"model.{key} needs {missing}, which this machine does not have"
            yield f"{needs}; install it, or write model.{instead}"


def _logger_problems(config: RunConfig) -> Iterator[str]:
    for name, node in config.logger.items():
        made_by = str(node.node[TARGET]).rpartition(".")[2]
        if made_by == RunWandbLogger.__name__ and not node.options["offline"] and not is_logged_in():
            yield (
                f"logger.{name}.offline=false, and W&B is not logged in here; run .venv/bin/wandb login, or "
                f"write logger.{name}.offline=true, and `wandb sync` uploads the run later"
            )
        packages = LOGGERS.get(made_by, ())
        if packages and not any(map(find_spec, packages)):
            yield (
                f"logger={name} needs a package that this machine does not have: .venv/bin/python -m pip "
                f"install {packages[0]}; or write logger=csv"
            )


def _device_problems(config: RunConfig) -> Iterator[str]:
    devices, nodes = config.devices, config.num_nodes
    if config.accelerator == "mps":
        yield (
            "trainer.accelerator=mps: the sums behind bounds and metrics need float64, which Apple's GPUs do "
            "not have; write trainer.accelerator=cpu"
        )
    if nodes > 1 and place_of()[1] == 1:
        launchers = [f", or write ranks={name}" for name in choice_files("ranks") if name != "none"]
        yield (
            f"trainer.num_nodes={nodes}: a run starts ranks on its own machine only; start it on every node "
            f"by torchrun --nnodes={nodes} --nproc-per-node={devices}, or by srun{''.join(launchers)}, see "
            "docs/scale.md"
        )


def server_gpus(config: RunConfig) -> list[str]:
    """The GPUs of this machine that are given to servers which the run starts."""
    entries = config.rollout.engine.options["gpus"] if _starts_servers(config) else ()
    return [gpu for entry in entries for gpu in entry.split(",")]


def _starts_servers(config: RunConfig) -> bool:
    engine = config.rollout.engine
    return engine_class(engine.object).runs_in == "server" and not engine.options["urls"]


def _server_problems(config: RunConfig) -> Iterator[str]:
    engine, key, given = config.rollout.engine, "rollout.engine.gpus", server_gpus(config)
    if not _starts_servers(config) or not torch.cuda.is_available():
        return
    if not given:
        yield (
            f"{key}=[]: vLLM's servers would take the first GPUs, as the trainer does; write the GPUs of "
            f"each server, not the trainer's, e.g. {key}=['{config.devices}']"
        )
    trainer = trainer_gpus(config.devices) if uses_cuda(config.accelerator) else []
    if shared := [gpu for gpu in given if gpu in trainer]:
        yield (
            f"{key}={list(engine.options['gpus'])} names {', '.join(shared)} of the trainer's "
            f"(trainer.devices={config.devices} takes {', '.join(trainer)}); write others, or fewer "
            "trainer.devices"
        )
    if twice := sorted({gpu for gpu in given if given.count(gpu) > 1}):
        yield f"{key}={list(engine.options['gpus'])} names {', '.join(twice)} twice; write each number once"


def _child_problems(config: RunConfig) -> Iterator[str]:
    engine, key = config.rollout.engine, "rollout.engine.visible_gpus"
    if engine_class(engine.object).runs_in != "child" or not uses_cuda(config.accelerator):
        return
    size, visible = config.rollout.tensor_parallel_size, engine.options["visible_gpus"]
    named = [] if visible is None else [name.strip() for name in str(visible).split(",")]
    if size > max(len(named), 1):
        what = "is the GPU of its rank alone" if visible is None else f"has {len(named)}"
        trainer = trainer_gpus(config.devices)
        first = int(trainer[-1]) + 1 if trainer and trainer[-1].isdigit() else 0
        write = ",".join(str(first + number) for number in range(size))
        yield (
            f"{key}={'null' if visible is None else repr(visible)} {what}, and vLLM with "
            f"tensor_parallel_size={size} needs {size}; write e.g. {key}='{write}' with "
            "rollout.placement=controller"
        )
    # A child's own list uses the machine's numbers, whatever this process sees.
    last = torch.cuda.device_count() - 1
    absent = [name for name in named if name.isdigit() and int(name) > last]
    if absent and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        yield f"{key}={visible!r} names {', '.join(absent)}, and this machine's last GPU is {last}"


def trainer_gpus(devices: int) -> list[str]:
    """The GPUs of this machine that its ranks use, named as in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (visible.split(",") if visible else [str(number) for number in range(devices)])[:devices]


def run_folder_problems(run_folder: str) -> Iterator[str]:
    """Why the run folder cannot be created."""
    if "://" in run_folder:
        yield f"run_folder={run_folder} is not a path of a file system; write another output_root"
        return
    folder = Path(run_folder).absolute()
    try:
        parent = next(parent for parent in [folder, *folder.parents] if parent.exists())
    except OSError as error:  # such as a name that is too long
        yield f"run_folder={run_folder} cannot be made: {error.strerror}; write another output_root or name"
        return
    if not parent.is_dir():
        yield f"run_folder={run_folder} cannot be made: {parent} is a file; write another output_root"
    elif not os.access(parent, os.W_OK | os.X_OK):
        yield f"run_folder={run_folder} cannot be made: {parent} is not writable; write another output_root"
