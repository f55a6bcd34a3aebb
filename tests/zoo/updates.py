"""One update of a small random policy, whole and in parts: gradients must not depend on how its tokens are
laid out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from tests.builders import VOCAB_SIZE, budget_for, random_model, stale_batch, step
from tests.commands import start_ranks
from tests.zoo import algorithms
from torch import Tensor

from bapo_lightning.data.batches.batch import TrainBatch, collate, split_over_ranks
from bapo_lightning.data.rollouts.stages import with_entry_scores
from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.modules.bound_rules import searches_each_micro_batch
from bapo_lightning.modules.policy.log_z import LogZ
from bapo_lightning.modules.policy.packing import PACKED_SDPA
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.objectives.objective import needs_of
from bapo_lightning.system.ranks.launch import free_port

PARTS = (2, 5)
NUM_RANKS = 2
OWN_SEARCH = "own search"  # of each micro-batch, so that the gradient depends on the split
NUM_CANDIDATES = 5  # of each place


def policy(packed: bool = False, log_z: bool = False) -> Policy:
    """Returns a random policy in float64, in which sums do not depend on their order; maybe with a head for
    log Z.
    """
    model = random_model().double()
    if packed:
        model.set_attn_implementation(PACKED_SDPA)
    return Policy(model, 1.0, packed, LogZ(model.config.hidden_size).double() if log_z else None)


@cache
def minibatch() -> TrainBatch:
    """Returns 6 groups of 4 responses of 1 to 20 tokens in steps of 3, each of 0 to 3 updates ago, since when
    the policy has changed by 0.4 nats per token. Where its entropy has changed since they entered training,
    it is by more or less than 5 %. The reference policy is not far from it either. The likeliest tokens of
    each place were sampled from any distribution.
    """
    batch = stale_batch(policy())
    entry = policy()
    entry.scores_mean_logp = True
    with torch.no_grad():
        for parameter in entry.parameters():
            parameter.mul_(1.05)
    groups, _ = with_entry_scores(batch.groups, entry, 500, 0, ("entropy", "mean_logp"))
    batch = collate(groups, batch.metrics)
    generator = torch.Generator().manual_seed(0)
    version = torch.randint(0, 4, batch.version.shape, generator=generator)
    noise = 0.4 * torch.randn(batch.version.shape, generator=generator)
    every = torch.randn(*batch.version.shape, VOCAB_SIZE, generator=generator).log_softmax(-1)
    known, likeliest = every.topk(NUM_CANDIDATES)
    return replace(
        batch,
        version=version * batch.response_mask,
        scores=batch.scores
        | {
            "reference_logp": (batch.behaviour_logp + noise) * batch.response_mask,
            "candidate_behaviour_logp": known.float(),
        },
        candidates=likeliest,
        step=(batch.response_mask.cumsum(1) - 1).clamp_min(0) // 3,
        step_counts=tuple(-(-length // 3) for length in batch.response_lengths),
    )


def whole(method: Algorithm, batch: TrainBatch, budget: int = 100_000, packed: bool = False) -> Tensor:
    """Returns the gradient of the weights in one update, flat."""
    _, gradient = step(
        policy(packed, "log_z" in needs_of(method.objective)),
        method.bounds,
        batch,
        micro_batch_tokens=budget,
        objective=deepcopy(method.objective),  # one with a memory must not keep this minibatch
        weighting=method.weighting,
    )
    return gradient


def gap(found: Tensor, expected: Tensor) -> float:
    """Returns the length of the difference, relative to the expected."""
    return float((found - expected).norm() / expected.norm())


def over_splits(method: Algorithm) -> float | str:
    """Returns how far the gradient over 2 or 5 micro-batches is from that over one."""
    if searches_each_micro_batch(method.bounds):
        return OWN_SEARCH
    batch = minibatch()
    expected = whole(method, batch)
    return max(gap(whole(method, batch, budget_for(batch, parts)), expected) for parts in PARTS)


def over_packing(method: Algorithm) -> float | str:
    """Returns how far the gradient over a packed row is from that over padded ones."""
    return gap(whole(method, minibatch(), packed=True), whole(method, minibatch()))


def over_ranks(names: Sequence[str], folder: Path) -> dict[str, float | str]:
    """Returns how far the gradient over two ranks, of two micro-batches or more each, is from that of one
    process, for each algorithm of these names. All share one launch.
    """
    every = {name: algorithms.method(name) for name in names}
    unlike = {name: OWN_SEARCH for name in names if searches_each_micro_batch(every[name].bounds)}
    kept = [name for name in names if name not in unlike]
    port = free_port()
    start_ranks(_rank, args=(port, kept, str(folder)), nprocs=NUM_RANKS)
    found = torch.load(folder / "gradients.pt")
    return {name: unlike.get(name) or gap(found[name], whole(every[name], minibatch())) for name in names}


def _rank(rank: int, port: int, names: Sequence[str], folder: str) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=NUM_RANKS)
    share = split_over_ranks(minibatch(), NUM_RANKS)[rank]
    budget = budget_for(share, 2 + rank)
    found = {}
    with _summed_at_the_end():
        for name in names:
            gradient = whole(algorithms.method(name), share, budget)
            dist.all_reduce(gradient)
            found[name] = gradient / NUM_RANKS
    if rank == 0:
        torch.save(found, os.path.join(folder, "gradients.pt"))
    dist.destroy_process_group()


@contextmanager
def _summed_at_the_end() -> Iterator[None]:
    """Leaves the sum of gradients over ranks to the caller; in a run it is the strategy's."""
    with mock.patch("bapo_lightning.modules.bapo_module.gradient_sync", lambda *_, **__: nullcontext()):
        yield
