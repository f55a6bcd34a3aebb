"""Prints a plan with its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bapo_lightning.plan.memory import Amount
from bapo_lightning.plan.planning import Plan

WIDTH = 34


def plan_text(plan: Plan, title: str) -> str:
    """Returns the whole plan as text."""
    parts = [_head(plan, title), _memory(plan), _work(plan), _time(plan), _limits(plan), verdict(plan)]
    return "\n\n".join("\n".join(part) for part in parts)


def verdict(plan: Plan) -> list[str]:
    """Returns whether the run fits, and if not, why and what would help."""
    usable = (
        f"{plan.usable_bytes / 1e9:.1f} GB of a {plan.gpu.name} ({plan.assumed.usable_share} of "
        f"{plan.gpu.memory_bytes / 1e9:.1f} GB)"
    )
    if not plan.problems:
        most = max(plan.fullest.bytes, plan.generating.bytes)
        return [f"It fits: the fullest moment takes {most / 1e9:.1f} GB of the usable {usable}."]
    return [
        f"It does not fit into {usable}:",
        *(f"  {number}. {problem}" for number, problem in enumerate(plan.problems, 1)),
    ]


def _head(plan: Plan, title: str) -> Iterator[str]:
    run, model = plan.run, plan.run.model
    yield (
        f"{title}: {model.family}, {model.num_parameters:,} parameters, {run.num_gpus} x {plan.gpu.name}, "
        f"strategy {run.strategy}"
    )
    yield (
        f"{run.prompts_per_batch} problems x {run.group_size} responses of up to {run.response_tokens:,} "
        f"tokens, {run.updates_per_batch} updates on each rollout batch, {run.tokens_at_once:,} tokens at "
        "once"
    )


def _memory(plan: Plan) -> Iterator[str]:
    yield "Memory of one GPU, GB"
    fullest = plan.fullest
    yield from _table(f"update, fullest at: {fullest.name}", fullest.amounts)
    others = (f"{moment.name} {moment.bytes / 1e9:.2f}" for moment in plan.moments if moment is not fullest)
    yield f"  (its other moments: {', '.join(others)})"
    yield from _table("generation, with the training state", plan.generating.amounts)
    if plan.run.engine.placement == "apart":
        yield from _table(f"engine, on each of {plan.run.engine.num_gpus} separate GPUs", plan.engine)


def _table(title: str, amounts: Sequence[Amount]) -> Iterator[str]:
    yield f"  {title}"
    for amount in amounts:
        yield f"    {amount.label:<{WIDTH}}{amount.bytes / 1e9:>9.2f}   {amount.arithmetic}"
    yield f"    {'together':<{WIDTH}}{sum(amount.bytes for amount in amounts) / 1e9:>9.2f}"


def _work(plan: Plan) -> Iterator[str]:
    work, mean = plan.work, plan.assumed.mean_response_share * plan.run.response_tokens
    length = plan.run.prompt_tokens + mean
    yield (
        f"Work of one update, all GPUs (mean response {mean:,.0f} tokens: {plan.assumed.mean_response_share} "
        "of the limit, assumed)"
    )
    yield (
        f"  {'tokens':<{WIDTH}}{work.tokens:>17,.0f}   {plan.run.samples_per_update:,} samples x "
        f"{length:,.0f}"
    )
    yield f"  {'micro-batches of a rank':<{WIDTH}}{plan.run.micro_batches(length):>17}"
    for label, flops in (
        ("update", work.update),
        ("scoring for the search", work.search),
        ("trainer's own log-probs", work.proximal),
        ("measured entropy", work.entropy),
    ):
        if flops:
            count = f"{flops / 1e15:,.1f} PFLOP" if flops >= 1e14 else f"{flops / 1e9:,.3g} GFLOP"
            yield f"  {label:<{WIDTH}}{count:>17}"


def _time(plan: Plan) -> Iterator[str]:
    total = sum(plan.seconds.values())
    phase, engine, assumed = plan.generation, plan.run.engine, plan.assumed
    yield (
        f"Time of a rollout batch and its updates: {_span(total)} (GPUs at {assumed.update_share} of "
        f"{plan.gpu.flops_per_second / 1e12:g} TFLOP/s in updates, {assumed.scoring_share} in scoring; their "
        f"memory at {assumed.bandwidth_share} of {plan.gpu.bytes_per_second / 1e12:g} TB/s in decoding; all "
        "assumed)"
    )
    for label, seconds in plan.seconds.items():
        if seconds:
            yield f"  {label:<{WIDTH}}{_span(seconds):>13}   {seconds / total:>4.0%}"
    yield (
        f"  generation: {engine.num_copies} copies, {phase.num_samples} samples each, {phase.concurrent} at "
        f"once, {phase.steps:,.0f} steps of {phase.step_seconds * 1e3:.1f} ms; the cache holds "
        f"{plan.cache_tokens:,} tokens"
    )


def _limits(plan: Plan) -> Iterator[str]:
    limits = plan.limits()
    name = min(limits, key=lambda key: limits[key])
    yield (
        f"Longest sample that fits: {limits[name]:,} tokens "
        f"({', '.join(f'{key} {value:,}' for key, value in limits.items())})"
    )


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
