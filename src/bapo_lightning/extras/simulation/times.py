"""Service times: how long an engine, a trainer and the hand-over of weights take."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np

from bapo_lightning.extras.simulation.fleet import EngineTimes
from bapo_lightning.plan.gpus import Gpu
from bapo_lightning.plan.planning import Assumptions
from bapo_lightning.plan.run_shape import RunShape
from bapo_lightning.plan.work import blocks_flops, cache_tokens, forward_flops, work_of_update
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.config_keys import leaves, value_of
from bapo_lightning.system.run_folder.record import RunRecord, finite

SLOT_KEYS = (".max_rows", ".max_num_seqs")  # of engines
SHARDED_PASSES = 3  # of the weights over the network in a micro-batch: gathered twice, gradients scattered


@dataclass(frozen=True)
class ServiceTimes:
    """Durations of calls, in seconds."""

    copies: int  # of the model in the fleet
    engine: EngineTimes
    update: Callable[[Sequence[int]], float]  # on responses of these lengths
    sync_seconds: float = 0.0  # of a hand-over of weights; the trainer stands still
    reward_seconds: float = 0.0  # of a response; in its pass
    load_seconds: float | None = None  # of a hand-over, at its start: the fleet stands still; None: all


def planned_update(
    run: RunShape, gpu: Gpu, assumed: Assumptions, link_bytes: float, responses: Sequence[int]
) -> float:
    """Returns the seconds of an update as `make plan` computes it; at least the time of the longest sample on
    one rank, or of the weights' transfer to and fro if they are sharded.
    """
    mean = fmean(responses)
    work = work_of_update(run, mean)
    peak = gpu.flops_per_second
    update, scoring = peak * assumed.update_share, peak * assumed.scoring_share
    scored = work.search + work.entropy + work.proximal + work.reference
    each = (work.update / update + scored / scoring) / run.samples_per_update  # of a mean sample, on one
    largest = forward_flops(run, max(responses)) / forward_flops(run, mean)
    computing = each * max(run.samples_per_update / run.num_gpus, largest)
    if run.strategy != "fsdp":
        return computing
    rounds = SHARDED_PASSES + bool(work.search)
    sent = rounds * run.micro_batches(run.prompt_tokens + mean) * run.model.num_parameters
    return max(computing, sent * run.compute_bytes / link_bytes)


def planned_engine(run: RunShape, gpu: Gpu, assumed: Assumptions) -> EngineTimes:
    """Returns a copy's times by the plan's formulas: decoding reads weights and cache, prompts compute."""
    engine, model = run.engine, run.model
    bandwidth = engine.tensor_parallel * gpu.bytes_per_second * assumed.bandwidth_share
    computing = engine.tensor_parallel * gpu.flops_per_second * assumed.scoring_share
    mean = assumed.mean_response_share * run.response_tokens
    fitting = cache_tokens(run, gpu, assumed.engine_gigabytes * 1e9) // (run.prompt_tokens + mean / 2)
    return EngineTimes(
        step=model.num_parameters * engine.element_bytes / bandwidth,
        context=model.kv_bytes_per_token(engine.element_bytes) / bandwidth,
        prefill=blocks_flops(run, run.prompt_tokens) / run.prompt_tokens / computing,
        slots=int(max(1, min(engine.max_sequences, fitting))),
    )


def planned_times(
    run: RunShape, gpu: Gpu, assumed: Assumptions, link_bytes: float, sync_seconds: float
) -> ServiceTimes:
    """Returns all times by the plan's formulas. `link_bytes`: bandwidth of each GPU's link, bytes/s;
    `sync_seconds`: duration of a weight sync without the transfer.
    """
    sync_seconds += run.model.num_parameters * run.engine.element_bytes / link_bytes
    update = partial(planned_update, run, gpu, assumed, link_bytes)
    return ServiceTimes(run.engine.num_copies, planned_engine(run, gpu, assumed), update, sync_seconds)


def measured_times(record: RunRecord, seed: int = 0) -> ServiceTimes:
    """Returns the times of a finished run with one engine, without its first update.

    A pass, or a decoding step of a stream, takes a fixed time and one per token, fitted by least squares.
    The time between two calls of a stream that is not a wait belongs to a call. Passes and updates vary as
    in the run.

    Raises:
        DataError: it has too few updates, or did not measure.
    """
    rows = record.rows[1:]
    in_turns = not value_of(record.config, "regime.async_generation")

    def values(name: str) -> np.ndarray:
        return np.array([finite(row.get(name)) or 0.0 for row in rows])

    passes, tokens = values("rollout/passes"), values("rollout/num_tokens")
    sampling, syncs, rewards = (values(f"time/{part}_seconds") for part in ("rollout", "sync", "reward"))
    measured = (sampling > 0) & (tokens > 0)
    if measured.sum() < 2:
        raise DataError(f"{record.path} has not measured what a simulation needs; give a run of more updates")
    # In turns the rest of the wait is work of the trainer's process.
    others = sampling + rewards if in_turns else values("time/wait_seconds")
    updates = np.maximum(values("time/step_seconds") - syncs - others, 0.0)
    seconds, generator = updates.tolist(), random.Random(seed)
    is_stream = value_of(record.config, "regime.stream") is not None
    units = values("rollout/decoding_steps") if is_stream else passes
    begin, each = _fitted(units[measured], tokens[measured], sampling[measured])
    jitter = sampling[measured] / (begin * units[measured] + each * tokens[measured])
    step, load = 0.0, None
    if is_stream:
        known = slice(int(measured.nonzero()[0][-1]) + 1)  # its wait for the end of the run is not measured
        spent = values("time/step_seconds") - sampling - values("time/engine_idle_seconds")
        step, begin = begin, max(0.0, spent[known].sum() / passes[known].sum())
        load = float(values("sync/transfer_seconds").sum() / max(1, (syncs > 0).sum()))
    scatter = tuple((jitter / jitter.mean()).tolist())
    options = leaves(record.config.get("rollout", {}))
    slots = min((int(value) for key, value in options if key.endswith(SLOT_KEYS)), default=EngineTimes.slots)
    return ServiceTimes(
        copies=1,
        engine=EngineTimes(step, each, begin=begin, slots=slots, jitter=scatter),
        update=lambda responses: generator.choice(seconds),
        sync_seconds=float(syncs[syncs > 0].mean()) if syncs.any() else 0.0,
        load_seconds=load,
        reward_seconds=float(rewards.sum() / max(1.0, values("rollout/num_samples").sum())),
    )


def _fitted(units: np.ndarray, tokens: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    # Neither is negative; their sum is exact.
    begin, each = np.linalg.lstsq(np.stack([units, tokens], 1), seconds, rcond=None)[0].clip(0.0)
    if not begin + each:
        each = 1.0
    scale = seconds.sum() / (begin * units + each * tokens).sum()
    return float(scale * begin), float(scale * each)
