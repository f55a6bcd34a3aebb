"""Applied Compute's closed formula of mean staleness.

Dong, Goel and Yu, "Predicting and Controlling Staleness in Fully Asynchronous RL Training" (July 2026,
https://www.appliedcompute.com/research/staleness-in-fully-async-rl), known here from a public summary.
Staleness counts versions between the start of a response and its training. Each batch makes one version.
"""

from __future__ import annotations

import numpy as np

from bapo_lightning.data.rollouts.regime import Regime


def mean_staleness(concurrency: float, batch: float, tail: float, rho: float, queue: float) -> float:
    """Returns the mean staleness, in batches: during generation, and in the queue.

    Args:
        concurrency: C, requests that run at once.
        batch: B, responses in a batch.
        tail: M, see `tail_factor`.
        rho: throughput of generation over throughput of training, each while it works; above 0.
        queue: q, batches that the queue of finished groups holds; without effect below rho = 1.
    """
    generating = concurrency * tail / batch
    if rho < 1:
        return generating + rho
    return generating / rho + (2 * queue + rho - 1) / (2 * rho)


def tail_factor(lengths: np.ndarray, group_size: int) -> float:
    """Returns the mean longest of `group_size` draws from equally likely lengths, int64[N], over the mean."""
    places = np.arange(len(lengths) + 1) / len(lengths)
    longest = np.sort(lengths) @ np.diff(places**group_size)
    return float(longest / lengths.mean())


def in_updates(staleness: float, updates: int, rho: float) -> float:
    """Converts staleness in batches to updates, of which each batch makes `updates`, U: U s + w (U - 1) / 2.

    A batch is trained on for (U - 1) / 2 updates on average. If responses start evenly while updates are made
    (rho = 1), they have on average (U - 1) / 2 updates more than the last whole batch, so that w = 0. If they
    start between two batches, w = 1. In between, 1 - w is the smaller of rho and 1 / rho.
    """
    return updates * staleness + (1 - min(rho, 1 / rho if rho else 1.0)) * (updates - 1) / 2


def admitted_queue(regime: Regime, groups_per_batch: int, generating: float) -> float:
    """Returns the q, in batches, that admission leaves to finished groups (`num_startable`).

    While a batch trains, at most (A + 1) / U - 1 further batches are started, A the bound on age, U the
    updates on a batch; a window takes its length. `batches_in_flight` limits them, too. Of these,
    `generating` = C M / (B rho) are not finished.
    """
    ahead = (regime.admission_age + 1) / regime.updates_per_rollout_batch - 1
    ahead -= ((regime.window or 1) - 1) / groups_per_batch
    return max(0.0, min(ahead, regime.batches_in_flight or ahead) - generating)
