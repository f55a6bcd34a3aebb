"""A fault for each check of `make gpu-check`, which it must find: what it was made to see, planted."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu import kernels, memory, models, train
from gpu.checks import Check, Machine
from gpu_check import checks_of

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.validate import validate
from bapo_lightning.modules.token_scores import token_scores
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.tools.rehearsal.steps import Rehearsal, RehearsedPart

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Pretended(Machine):
    """A CPU that is judged as a GPU, at a CPU's sizes."""

    on_gpu = True  # type: ignore[assignment]

    def size(self, on_gpu: Any, on_cpu: Any) -> Any:
        return on_cpu

    def wait(self) -> None:
        return

    def free_bytes(self) -> int:
        return 0

    def peak_bytes(self, work: Callable[[], object]) -> int:
        return 1


class Slow(Pretended):
    """Its token scores take a hundred times what anything else takes."""

    def seconds(self, work: Any, repeats: int = 3) -> float:
        return 100.0 if getattr(work, "args", [None])[0] is token_scores else 1.0


CPU, GPU = Machine("cpu"), Pretended("cpu")


def unlike_policies(patch: Patch, module: Any, factor: float = 0.3) -> None:
    """Gives every policy that a check makes other weights than the one before."""
    make, number = module.random_policy, count()

    def other(*given: Any, **options: Any) -> Any:
        options.pop("liger", None)
        policy, change = make(*given, **options), 1 + factor * next(number)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(change)
        return policy

    patch.setattr(module, "random_policy", other)


def wrong_scores(patch: Patch) -> None:
    def wrong(*given: Any, **how: Any) -> Any:
        return tuple(1.01 * each for each in token_scores(*given, **how))

    patch.setattr(kernels, "token_scores", wrong)


def other_bounds(patch: Patch) -> None:
    values = iter((1.0, 2.0))

    def fit(*overrides: str) -> Any:
        own = [next(values)] * 8
        return SimpleNamespace(series=lambda name: ([], own))

    patch.setattr(train, "fit", fit)


def stale_engine(patch: Patch) -> None:
    load, other = HFEngine.load_weights, models.random_policy(models.TINY, "cpu")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + torch.randn_like(parameter))
    patch.setattr(HFEngine, "load_weights", lambda self, source, version: load(self, other, version))


def unequal_ranks(patch: Patch) -> None:
    norms = iter((1.0, 1.2))
    patch.setattr(train.ranks, "train", lambda *given: None)
    patch.setattr(train, "read_rows", lambda folder: [{"train/grad_norm": next(norms)}])


def full_memory(patch: Patch) -> None:
    def update_peak(*given: Any) -> int:
        raise torch.OutOfMemoryError("out of memory")

    patch.setattr(memory, "update_peak", update_peak)
    patch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=80e9))


def fragments(patch: Patch) -> None:
    patch.setattr(torch.cuda, "max_memory_reserved", lambda: 2)
    patch.setattr(torch.cuda, "max_memory_allocated", lambda: 1)


def waiting_updates(patch: Patch) -> None:
    make, modes = models.ready_module, ["default"]

    def ready(*given: Any) -> Any:
        module = make(*given)
        step = module.training_step

        def training_step(*given: Any) -> Any:
            for number in range(5 * (modes[-1] == "warn")):
                warnings.warn(f"called a synchronizing CUDA operation {number}", stacklevel=1)
            return step(*given)

        module.training_step = training_step
        return module

    patch.setattr("gpu.speed.ready_module", ready)
    patch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)


def unreached_gpu(patch: Patch) -> None:
    patch.setattr("gpu.machine.has_nvidia_gpu", lambda: True)
    patch.setattr("gpu.machine.unused_gpu", lambda: "the driver is too old")


def full_disk(patch: Patch) -> None:
    patch.setattr("gpu.machine.shutil.disk_usage", lambda path: SimpleNamespace(free=64e6))


def locked_memory(patch: Patch) -> None:
    patch.setattr("gpu.machine.INFINIBAND", Path("/proc"))
    patch.setattr("gpu.machine.resource.getrlimit", lambda kind: (8 << 20, 8 << 20))


def closed_links(patch: Patch) -> None:
    here = torch.zeros(1024, dtype=torch.uint8)
    patch.setattr(torch, "empty", lambda *given, **options: here)
    patch.setattr(torch, "empty_like", lambda *given, **options: here.clone())
    patch.setattr("gpu.machine.has_nvlink", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: 2)
    patch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    patch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: False)


def slow_ranks(patch: Patch) -> None:
    patch.setattr("gpu.machine.all_reduce", lambda *given: 0.001)


def no_models(patch: Patch) -> None:
    patch.setattr("gpu.machine.stay_offline_without_hub", lambda: "cannot be reached")
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "no/such/folder")


def rehearsed(patch: Patch, parts: dict[str, bool], note: str = "", **metrics: float) -> list[str]:
    """Ends every rehearsal at once with these parts and metrics; returns a list of the newest overrides."""
    given: list[str] = []

    def write_script(name: str, overrides: Sequence[str], *others: Any) -> None:
        given[:] = f"experiment={name}", *overrides

    def perform(self: Rehearsal) -> bool:
        self.run_folder.mkdir(parents=True)
        row = {"step": 0, "staleness/age_max": 0.0, **metrics}
        (self.run_folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        self.parts += [RehearsedPart(part, ran, 1.0, note) for part, ran in parts.items()]
        return all(parts.values())

    patch.setattr("gpu.rehearsal.write_script", write_script)
    patch.setattr(Rehearsal, "perform", perform)
    return given


def read_rehearsal(check: Check, machine: Machine, patch: Patch) -> None:
    """Reads the configuration that a check would rehearse on a machine; raises ConfigError if it is none."""
    given = rehearsed(patch, {"resume": True})
    patch.setattr("gpu.rehearsal.does_not_fit", lambda overrides: "")
    list(check.run(machine))
    validate(compose_run(given), "ranks")


def failed_part(patch: Patch) -> None:
    rehearsed(patch, {"resume": False}, "error: it did not")


def failed_checkpoint(patch: Patch) -> None:
    failed_part(patch)
    patch.setattr("gpu.vllm.Path.is_dir", lambda path: True)


def failed_ranks(patch: Patch) -> None:
    done = subprocess.CompletedProcess([], 1, "fsdp 2  DIFFERENT", "")
    patch.setattr("gpu.vllm.subprocess.run", lambda *given, **options: done)


FAULTS: list[tuple[str, Machine, Callable[[Patch], None]]] = [
    ("machine.driver", CPU, unreached_gpu),
    ("machine.host", CPU, full_disk),
    ("machine.host", CPU, locked_memory),
    ("machine.host", CPU, lambda patch: patch.setattr("gpu.machine.missing_to_build", lambda name: name)),
    ("machine.links", CPU, closed_links),
    ("machine.nccl", CPU, slow_ranks),
    ("machine.gloo", CPU, slow_ranks),
    ("machine.disk", CPU, full_disk),
    ("machine.hub", GPU, no_models),
    *((f"rehearsal.{check.name}", CPU, failed_part) for check in checks_of("rehearsal")),
    ("vllm.tensor parallelism", CPU, failed_part),
    ("vllm.vLLM in a child", CPU, failed_part),
    ("vllm.vLLM's server", CPU, failed_part),
    ("vllm.compiled layers, checkpointing, FSDP2", CPU, failed_part),
    ("vllm.real_checkpoint", CPU, failed_checkpoint),
    ("vllm.several_ranks", CPU, failed_ranks),
    ("memory.prediction", CPU, lambda patch: patch.setattr(memory, "update_peak", lambda *given: 1)),
    ("memory.fragmentation", CPU, fragments),
    ("memory.largest", CPU, full_memory),
    ("kernels.scores_accuracy", CPU, wrong_scores),
    ("kernels.scores_speed", Slow("cpu"), lambda patch: None),
    ("kernels.liger_head", CPU, wrong_scores),
    ("kernels.packing", CPU, lambda patch: unlike_policies(patch, kernels)),
    ("kernels.checkpointing", CPU, lambda patch: unlike_policies(patch, kernels)),
    ("kernels.search", CPU, lambda patch: patch.setattr(kernels, "host_syncs", lambda work: 1)),
    ("kernels.deterministic", CPU, lambda patch: unlike_policies(patch, kernels)),
    ("train.quickstart", CPU, other_bounds),
    ("train.real_shapes", CPU, lambda patch: unlike_policies(patch, train, float("nan"))),
    ("train.engine_mismatch", CPU, stale_engine),
    ("train.ranks_in_bfloat16", CPU, unequal_ranks),
    ("speed.waits", GPU, waiting_updates),
]
