"""The plan of a run: memory, work and time together, and whether it fits."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bapo_lightning.plan.gpus import Gpu
from bapo_lightning.plan.memory import Amount, Moment, gradients, moments, product, state
from bapo_lightning.plan.run_shape import RunShape
from bapo_lightning.plan.work import (
    GenerationTimes,
    Work,
    cache_tokens,
    engine_memory,
    generation,
    work_of_update,
)
from bapo_lightning.system.chunks import chunk_elements
from bapo_lightning.system.values import NonNegative, Share

# Parameters of a model, and the share of an H100's peak that its updates reached (docs/results/gpu.md);
# the last one is assumed.
UPDATE_SHARES = (0.494e9, 0.16), (1.54e9, 0.24), (7e9, 0.4)


def share_of_updates(num_parameters: int) -> float:
    """Returns the share of the peak that updates reach, linear in log size, constant beyond both ends."""
    sizes, shares = zip(*UPDATE_SHARES, strict=True)
    return round(float(np.interp(math.log(num_parameters), [math.log(size) for size in sizes], shares)), 2)


@dataclass(frozen=True)
class Assumptions:
    """Numbers that no formula gives. `conf/plan/default.yaml` explains them."""

    usable_share: Share
    overhead_gigabytes: NonNegative
    engine_gigabytes: NonNegative
    asleep_gigabytes: NonNegative
    mean_response_share: Share
    update_share: Share
    scoring_share: Share
    bandwidth_share: Share


@dataclass(frozen=True)
class Plan:
    """Memory, work and time that a run would need."""

    run: RunShape
    gpu: Gpu
    assumed: Assumptions
    moments: tuple[Moment, ...]  # of an update
    generating: Moment
    engine: tuple[Amount, ...]  # of one GPU of the engine, wherever it is
    cache_tokens: int
    work: Work  # of one update
    generation: GenerationTimes  # of one rollout batch

    @property
    def usable_bytes(self) -> float:
        """Memory of one GPU that a run may use."""
        return self.assumed.usable_share * self.gpu.memory_bytes

    @property
    def fullest(self) -> Moment:
        """Moment of an update that takes the most memory."""
        return max(self.moments, key=lambda moment: moment.bytes)

    @property
    def seconds(self) -> dict[str, float]:
        """Time of each part of one rollout batch and its updates."""
        peak = self.run.num_gpus * self.gpu.flops_per_second
        scoring, updates = peak * self.assumed.scoring_share, self.run.updates_per_batch
        return {
            "generation": self.generation.seconds,
            "scoring for the search": updates * self.work.search / scoring,
            "trainer's own log-probs": updates * self.work.proximal / scoring,
            "reference's log-probs": updates * self.work.reference / scoring,
            "measured entropy": updates * self.work.entropy / scoring,
            "updates": updates * self.work.update / (peak * self.assumed.update_share),
        }

    @property
    def problems(self) -> list[str]:
        """Reasons why the run does not fit, each with a remedy; empty if it fits."""
        reasons, held = [], sum(amount.bytes for amount in (*state(self.run), *gradients(self.run)))
        if held > self.usable_bytes:
            shards = "" if self.run.strategy == "fsdp" else "strategy=fsdp and "
            return [
                f"weights, gradients and the optimizer's state take {_gb(held)}, a GPU has "
                f"{_gb(self.usable_bytes)} to use; write {shards}more trainer.devices or trainer.num_nodes, "
                "or strategy.cpu_offload=true"
            ]
        if self.fullest.bytes > self.usable_bytes:
            reasons.append(
                f"an update needs {_gb(self.fullest.bytes)}, a GPU has {_gb(self.usable_bytes)} to use; "
                f"{self._smaller_update()}"
            )
        if self.generating.bytes > self.usable_bytes:
            reasons.append(
                f"generation next to the training state needs {_gb(self.generating.bytes)}, a GPU has "
                f"{_gb(self.usable_bytes)} to use; write a smaller "
                "rollout.engine.options.gpu_memory_utilization, or rollout=vllm_server on other GPUs"
            )
        if self.cache_tokens < self.run.longest:
            reasons.append(
                f"the engine's cache holds {self.cache_tokens:,} tokens, a sample has up to "
                f"{self.run.longest:,}; write a larger rollout.engine.options.gpu_memory_utilization or "
                "rollout.engine.options.tensor_parallel_size"
            )
        return reasons

    def limits(self) -> dict[str, int]:
        """Returns the longest sample, in tokens, that each part could process alone in its micro-batch."""

        def needed(length: int) -> float:
            prompt = min(self.run.prompt_tokens, length - 1)
            run = replace(self.run, prompt_tokens=prompt, response_tokens=length - prompt)
            run = replace(run, micro_batch_tokens=1)  # so that the sample is alone
            return max(moment.bytes for moment in training_moments(run, self.gpu, self.assumed))

        longest = bisect_right(range(2, (1 << 24) + 1), self.usable_bytes, key=needed) + 1
        lengths = {"update": longest, "engine's cache": self.cache_tokens}
        positions = self.run.model.max_positions
        return lengths | ({"model's positions": positions} if positions else {})

    def _smaller_update(self) -> str:
        run = self.run

        def needed_with(checkpointing: Literal["selective", True]) -> float:
            least = replace(run, checkpointing=checkpointing, micro_batch_tokens=run.longest)
            return max(moment.bytes for moment in training_moments(least, self.gpu, self.assumed))

        if not run.checkpointing and needed_with("selective") <= self.usable_bytes:
            return "write model.activation_checkpointing=selective"
        needed = needed_with(True)
        if needed <= self.usable_bytes and run.checkpointing is not True:
            return "write model.activation_checkpointing=true"
        if needed <= self.usable_bytes and run.micro_batch_tokens > run.longest:
            return f"write scale.micro_batch_tokens={run.longest}"
        if run.strategy != "fsdp":
            return "write strategy=fsdp and more trainer.devices"
        return (
            "write more trainer.devices or trainer.num_nodes, strategy.cpu_offload=true, or a smaller "
            "scale.max_new_tokens"
        )


def make_plan(run: RunShape, gpu: Gpu, assumed: Assumptions) -> Plan:
    """Returns the plan of one run on GPUs of one model."""
    run = replace(run, chunk_elements=chunk_elements(gpu.memory_bytes))
    working = assumed.engine_gigabytes * 1e9
    mean_response = assumed.mean_response_share * run.response_tokens
    engine = tuple(engine_memory(run, gpu, working))
    return Plan(
        run=run,
        gpu=gpu,
        assumed=assumed,
        moments=training_moments(run, gpu, assumed),
        generating=generating_moment(run, assumed, engine),
        engine=engine,
        cache_tokens=cache_tokens(run, gpu, working),
        work=work_of_update(run, mean_response),
        generation=generation(run, gpu, working, mean_response, assumed.bandwidth_share),
    )


def training_moments(run: RunShape, gpu: Gpu, assumed: Assumptions) -> tuple[Moment, ...]:
    """Returns the moments of an update, including everything else that the device holds."""
    besides = [_overhead(assumed)]
    if run.engine.placement == "beside":
        besides += engine_memory(run, gpu, assumed.engine_gigabytes * 1e9)
    elif run.engine.placement == "asleep":
        besides.append(Amount("graphs of the sleeping engine", assumed.asleep_gigabytes * 1e9, "assumed"))
    mean = run.prompt_tokens + assumed.mean_response_share * run.response_tokens
    return tuple(
        replace(moment, amounts=(*besides, *moment.amounts))
        for moment in moments(run, run.micro_batches(mean))
    )


def generating_moment(run: RunShape, assumed: Assumptions, engine: tuple[Amount, ...]) -> Moment:
    """Returns the memory during generation: training state, last gradients, and an engine on the same GPU."""
    held = [_overhead(assumed), *state(run), *gradients(run)]
    if run.engine.placement == "apart":
        return Moment("generation", tuple(held))
    if run.shards > 1:
        largest = run.model.largest_parameter
        held.append(product("one weight on its way", B=run.stored_bytes, parameters=largest))
    return Moment("generation", (*held, *engine))


def _overhead(assumed: Assumptions) -> Amount:
    return Amount("context and libraries", assumed.overhead_gigabytes * 1e9, "assumed")


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
