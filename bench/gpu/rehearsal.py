"""Stage `rehearsal`: experiments as a whole, and the flagships' layouts with random weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.machine import check_machine
from bapo_lightning.configuration.validate import validate
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.system.errors import BapoLightningError, ConfigError
from bapo_lightning.system.run_folder.record import read_rows
from bapo_lightning.tools.rehearsal.script import write_script
from bapo_lightning.tools.rehearsal.steps import Rehearsal, table
from gpu.checks import Check, Finding, Machine, at_least, at_most, empty_folder, holds, skipped
from gpu.models import SHAPES, TINY

Experiment = Sequence[str]  # EXP=NAME and overrides
LONGEST = 3000.0  # seconds of a real model: two rollout batches, with four starts of vLLM
MISMATCH = 0.05  # nats, mean over fresh tokens; logits of 16 bits alone make it 0.03
NOTE = 400  # characters of an error
LORA_KEPT = 0.9  # of an update of adapters, in what the engine samples from
# A random model of 7B, whose texts nobody can judge: what takes the place of the hub's files.
WITHOUT_HUB = (
    *("model.architecture=null", "data=locks", "scale.max_new_tokens=2048", "scale.overlong_buffer=512"),
    *("reward=functions", "reward.functions=[gpu.rehearsal.every_other]"),
)


def every_other(completions: Sequence[str], **columns: Any) -> list[float]:
    """Rewards every second completion."""
    return [float(number % 2) for number in range(len(completions))]


def rehearsals(like: Sequence[Experiment], num_gpus: int) -> tuple[Check, ...]:
    """Returns the checks of experiments that were asked for, or else of those of 7B for so many GPUs."""
    several = [["EXP=bapo_7b", f"trainer.devices={num_gpus}"]] if num_gpus > 1 else []
    return tuple(
        Check(partial(experiment, words=words, is_named=bool(like)), title=title_of(words), seconds=LONGEST)
        for words in like or [["EXP=bapo_7b_lora"], *several]
    )


def title_of(words: Experiment) -> str:
    """Returns the experiment's name with its overrides."""
    return " ".join((words[0].removeprefix("EXP="), *words[1:]))


def experiment(machine: Machine, words: Experiment, is_named: bool) -> Iterator[Finding]:
    """An experiment, with its real model where this machine holds that."""
    overrides = [f"experiment={words[0].removeprefix('EXP=')}", *words[1:]]
    if machine.on_gpu:
        problem = does_not_fit(overrides)
        if problem and not is_named:
            yield skipped(title_of(words), problem)
            return
        yield holds(f"{title_of(words)}: fits", not problem, problem)
    yield from rehearse(title_of(words), *overrides)


def does_not_fit(overrides: Sequence[str]) -> str:
    """Returns why this machine cannot run an experiment; empty if it can."""
    try:
        check_machine(validate(compose_run(overrides)))
    except ConfigError as error:
        return str(error)
    return ""


def rehearse(title: str, *overrides: str, in_small: bool = False) -> Iterator[Finding]:
    """Every part of an experiment, from the first batch to the evaluation of its export.

    Args:
        title: of its findings.
        overrides: `experiment=NAME` first.
        in_small: with a small random model even if this machine holds the real one.
    """
    name, *given = overrides
    with empty_folder() as temporary:
        folder = Path(temporary)
        try:
            script = write_script(name.removeprefix("experiment="), given, folder, in_small)
            rehearsal = Rehearsal(script, folder)
            is_whole, rows = rehearsal.perform(), read_rows(rehearsal.run_folder)
        except BapoLightningError as error:
            yield holds(f"{title}: whole", False, f"error: {error}"[-NOTE:])
            return
    for part in rehearsal.parts:
        note = "; ".join(filter(None, (f"{part.seconds:.0f} s", part.note)))
        yield holds(f"{title}: {part.part}", part.ran, note)
    text = table(rehearsal.parts)
    problem = "" if is_whole else text[max(text.rfind("error: "), 0) :][-NOTE:]
    yield holds(f"{title}: whole", is_whole, problem)
    for metric, limit, judge, unit in (
        ("mismatch/abs_logp_diff_mean", MISMATCH, at_most, "nats"),
        ("mismatch/lora_update_kept", LORA_KEPT, at_least, ""),
    ):
        if fresh := [row[metric] for row in rows if row.get("staleness/age_max") == 0 and metric in row]:
            yield judge(f"{title}: {metric}", fmean(fresh), limit, unit)


def in_small(
    title: str,
    *overrides: str,
    gpus: int = 1,
    packages: tuple[str, ...] = ("vllm",),
    on_cpu: Sequence[str] = (),
) -> Check:
    """Returns the check of an experiment with a small random model.

    Args:
        title: of the check.
        overrides: `experiment=NAME` first.
        gpus: that it needs; as many ranks do on a CPU.
        packages: that it needs.
        on_cpu: further overrides there.
    """

    def check(machine: Machine) -> Iterator[Finding]:
        return rehearse(title, *overrides, *machine.size((), on_cpu), in_small=True)

    return Check(check, packages, gpus, title, on_cpu=True, seconds=1200.0)


def random_7b(machine: Machine) -> Iterator[Finding]:
    """What `bapo_7b_lora` trains on one GPU, with random weights of the real size."""
    title = "bapo_7b_lora, random weights"
    with empty_folder() as folder:
        with torch.device(machine.device):
            config = AutoConfig.for_model(**machine.size(SHAPES["Qwen2.5-7B"], TINY))
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
        del model
        for file in Path(model_path("package://bapo_lightning/tiny_worlds/locks/model")).glob("token*"):
            shutil.copy(file, folder)
        overrides = ["experiment=bapo_7b_lora", f"model.path={folder}", *WITHOUT_HUB]
        if machine.on_gpu and (problem := does_not_fit(overrides)):
            yield skipped(title, problem)
        else:
            yield from rehearse(title, *overrides)


# The trainers of these experiments with engines that need no package.
HF, CHILD = (
    (f"rollout={name}", "~rollout.engine.options", "trainer.devices=1") for name in ("hf", "hf_child")
)
PACKED = ("model.packing=padding_free", "model.activation_checkpointing=true")
FLEX, LIGER = ("model.attention=flex_attention",), ("model.liger=true",)
SDPA, PLAIN = ("model.attention=sdpa",), ("model.liger=false",)
CHECKS = (
    in_small("FSDP2 and vLLM", "experiment=bapo_7b", "trainer.devices=2", gpus=2),
    Check(random_7b, ("vllm",), gpus=1, on_cpu=True, seconds=LONGEST),
    in_small("FSDP2, offloaded", "experiment=bapo_7b", *HF, "strategy.cpu_offload=true", packages=()),
    in_small("adapters, asynchronous child", "experiment=bapo_7b_lora", *CHILD, "regime=async", packages=()),
    in_small("packed, compiled", "experiment=bapo_7b", *HF, *PACKED, "model.compile=true", packages=()),
    in_small("packed, flex attention", "experiment=bapo_7b", *HF, *PACKED, *FLEX, packages=(), on_cpu=SDPA),
    in_small("partial, Liger", "experiment=bapo_7b_partial", *HF, *LIGER, packages=(), on_cpu=PLAIN),
)
