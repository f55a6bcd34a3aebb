"""Rules about staleness: what a regime needs, and what does not go together, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from bapo_lightning.data.rollouts.regime import Regime, ReusePriority, StaleAction

Config = dict[str, Any]
OPTIONAL_COUNTS = ("max_age", "partial_tokens", "max_segments")
IN_PROCESS_VLLM = "bapo_lightning.rollout.vllm.local.VLLMLocalEngine"


def regime_complaints(config: Config) -> Iterator[str]:
    """What is wrong with `regime`; `regime.epochs` and `regime.minibatches` are counts already."""
    regime = config["regime"]
    wrong = list(_type_complaints(regime))
    if wrong:
        yield from wrong
        return
    made = Regime(**{key: value for key, value in regime.items() if key != "_target_"})
    yield from _age_complaints(made)
    yield from _partial_complaints(made)
    yield from _reuse_complaints(made, config["scale"]["prompts_per_batch"])
    if made.async_generation and config["rollout"]["engine"]["_target_"] == IN_PROCESS_VLLM:
        yield (
            "regime.async_generation=true with rollout=vllm: inside the training process vLLM shares the "
            "random state, the environment and on a GPU the memory with the update, so the two cannot run "
            "at once; write rollout=vllm_child or rollout=vllm_server"
        )


def _type_complaints(regime: Config) -> Iterator[str]:
    for name in OPTIONAL_COUNTS:
        value, least = regime[name], 0 if name == "max_age" else 1
        if value is not None and not (
            isinstance(value, int) and not isinstance(value, bool) and value >= least
        ):
            yield f"regime.{name}={value} must be a whole number of at least {least}, or null"
    if not (isinstance(regime["max_reuses"], int) and regime["max_reuses"] >= 0):
        yield f"regime.max_reuses={regime['max_reuses']} must be a whole number of at least 0"
    for name in ("reuse_share", "wait_warning_seconds"):
        if isinstance(regime[name], bool) or not isinstance(regime[name], (int, float)):
            yield f"regime.{name}={regime[name]} must be a number"
        elif name == "wait_warning_seconds" and not regime[name] > 0:
            yield f"regime.{name}={regime[name]} must be a positive number of seconds"
    if not isinstance(regime["async_generation"], bool):
        yield f"regime.async_generation={regime['overlap']} must be true or false"
    for name, values in (("stale_action", StaleAction), ("reuse_priority", ReusePriority)):
        if regime[name] not in get_args(values):
            yield (
                f"regime.{name}={regime[name]} is none of its values; write one of "
                f"{', '.join(get_args(values))}"
            )


def _age_complaints(regime: Regime) -> Iterator[str]:
    updates = regime.updates_per_rollout_batch
    if regime.max_age is None:
        for name, is_on in (
            ("async_generation=true", regime.async_generation),
            (f"reuse_share={regime.reuse_share}", regime.reuse_share > 0),
        ):
            if is_on:
                yield (
                    f"regime.{name} needs regime.max_age: nothing else bounds how old the data get; one "
                    f"rollout batch ahead is regime.max_age={2 * updates - 1}"
                )
    elif regime.max_age < updates - 1:
        yield (
            f"regime.max_age={regime.max_age}: a rollout batch is trained on for epochs x minibatches = "
            f"{updates} updates, so its last update sees tokens of age {updates - 1} at least; write "
            f"regime.max_age={updates - 1} or fewer updates"
        )


def _partial_complaints(regime: Regime) -> Iterator[str]:
    if regime.is_partial:
        return
    if regime.stale_action == "mask":
        yield (
            "regime.stale_action=mask without regime.partial_tokens: all tokens of a whole rollout are "
            "equally old, so that masking them is evicting it; write regime.stale_action=evict, or "
            "regime=partial"
        )
    if regime.max_segments is not None:
        yield (
            f"regime.max_segments={regime.max_segments} without regime.partial_tokens has no effect: whole "
            "rollouts have one segment"
        )


def _reuse_complaints(regime: Regime, prompts_per_batch: int) -> Iterator[str]:
    share, updates = regime.reuse_share, regime.updates_per_rollout_batch
    if not 0 <= share < 1:
        yield (
            f"regime.reuse_share={share} is a share of a rollout batch that leaves room for fresh groups; "
            "write a number in [0, 1)"
        )
        return
    if not share:
        if regime.max_reuses:
            yield (
                f"regime.max_reuses={regime.max_reuses} without regime.reuse_share has no effect; write "
                "regime=reuse"
            )
        return
    if int(share * prompts_per_batch) == 0:
        yield (
            f"regime.reuse_share={share} of scale.prompts_per_batch={prompts_per_batch} groups is none; "
            "write a larger share"
        )
    if not regime.max_reuses:
        yield f"regime.reuse_share={share} with regime.max_reuses=0 reuses nothing; write regime.max_reuses=1"
    if regime.async_generation:
        yield (
            "regime.async_generation=true with regime.reuse_share: how many fresh groups a batch needs then "
            "depends on what the buffer holds when the batch is trained on, so that admission cannot know "
            "how old a group will get; write one of the two"
        )
    elif regime.max_age is not None and regime.max_age < 2 * updates - 1:
        yield (
            f"regime.max_age={regime.max_age} lets no group be reused: it is {updates} updates old when the "
            f"next rollout batch begins and {2 * updates - 1} at the end of it; write "
            f"regime.max_age={2 * updates - 1} at least"
        )
