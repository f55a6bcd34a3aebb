"""References of objectives that know more than a token: its response, its group, or the whole update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil, exp, floor, log

import numpy as np
from tests.zoo.reference import Array, Columns, Reference, reinforce
from tests.zoo.references_tokens import clip, gspo

BUDGET = 0.04  # M of M2PO
SHARE_OF_COVARIANCE = 2e-4
SIXTY_FOUR = 1 << 64


def responses(columns: Columns) -> Iterator[Array]:
    """Yields the rows of each response."""
    for number in np.unique(columns["sequence"]):
        yield np.flatnonzero(columns["sequence"] == number)


def of_response(columns: Columns, values: Array) -> Array:
    """Returns the gradient of sum_t w_t f over a response with d f / d logp_t = values_t / length."""
    found = np.zeros_like(values)
    for own in responses(columns):
        found[own] = columns["weight"][own].sum() * values[own] / len(own)
    return found


def gmpo(columns: Columns) -> Array:
    """GMPO (arXiv 2507.20673): A prod_t c_t^(1/L), c_t = r_t inside the bounds; a token beyond its
    bound is a constant.
    """
    values = np.zeros_like(columns["ratio"])
    for own in responses(columns):
        alive, factors = [], []
        for row in own:
            ratio, advantage = columns["ratio"][row], columns["advantage"][row]
            bound = columns["high" if advantage > 0 else "low"][row]
            beyond = ratio > bound if advantage > 0 else ratio < bound
            alive.append(not beyond)
            factors.append(bound if beyond else ratio)
        values[own] = columns["advantage"][own] * np.prod(factors) ** (1 / len(own)) * np.array(alive)
    return of_response(columns, values)


def harmful(columns: Columns) -> Array:
    """Returns true for the tokens that move away: A > 0 and r > 1, or A < 0 and r < 1."""
    ratio, advantage = columns["ratio"], columns["advantage"]
    return ((advantage > 0) & (ratio > 1)) | ((advantage < 0) & (ratio < 1))


def m2po(columns: Columns) -> Array:
    """M2PO as the authors' code has it: PPO within exp(-+tau), where capping |log r| of the harmful tokens at
    tau brings the mean of its square to M; found by bisection.
    """
    squares = np.log(columns["ratio"][harmful(columns)]) ** 2
    tau = np.inf
    if len(squares) and squares.mean() > BUDGET:
        below, above = 0.0, 20.0
        for _ in range(200):
            tau = (below + above) / 2
            too_much = np.minimum(squares, tau**2).mean() > BUDGET
            below, above = (below, tau) if too_much else (tau, above)
    return clip({**columns, "low": np.exp(-tau), "high": np.exp(tau)})


def m2po_mask(columns: Columns) -> Array:
    """M2PO, Algorithm 1 to the letter: leave out the harmful token of the largest (log r)^2 until the mean of
    the others is at most M.
    """
    left = list(np.flatnonzero(harmful(columns)))
    square = columns["log_ratio"] ** 2
    found = columns["weight"] * columns["ratio"] * columns["advantage"]
    while left and np.mean(square[left]) > BUDGET:
        worst = max(left, key=lambda row: square[row])
        left.remove(worst)
        found[worst] = 0.0
    return found


def acpo(columns: Columns) -> Array:
    """ACPO (`compute_variance_adaptive_cliprange`): PPO's with dual clip 3 within 1 -+ min(0.2 + 3 std, 3),
    std that of the ratios of all tokens in the same fifth of probability.
    """
    fifth = np.minimum(np.floor(5 * np.exp(columns["logp"])), 4)
    reach = np.empty_like(columns["ratio"])
    for number in set(fifth.tolist()):
        own = fifth == number
        reach[own] = min(0.2 + 3 * np.sqrt(columns["ratio"][own].var() + 1e-8), 3.0)
    return clip({**columns, "low": 1 - reach, "high": 1 + reach}, dual_clip=3.0)


def gapo(columns: Columns, of: Callable[[Columns], Array]) -> Array:
    """GAPO (arXiv 2609.00444): eps_h = eps_l + (eps_max - eps_l)(G - c)/(G - 1) for the c right ones of G."""
    high = np.empty_like(columns["ratio"])
    for group in np.unique(columns["group"]):
        own = columns["group"] == group
        labels = {columns["sequence"][row]: columns["advantage"][row] > 0 for row in np.flatnonzero(own)}
        size, right = len(labels), sum(labels.values())
        least, most = 1 - columns["low"][own], columns["high"][own] - 1
        widened = least + (most - least) * (size - right) / (size - 1)
        high[own] = 1 + np.where(columns["advantage"][own] > 0, widened, least)
    return of({**columns, "high": high})


def vespo(columns: Columns) -> Array:
    """VESPO (arXiv 2602.10693): w W^k exp(lambda (1 - W)) A, W the product of the ratios of the response."""
    found = np.empty_like(columns["ratio"])
    for own in responses(columns):
        product, advantage = np.prod(columns["ratio"][own]), columns["advantage"][own]
        power, decay = (2, 3) if advantage[0] >= 0 else (3, 2)
        found[own] = columns["weight"][own] * product**power * exp(decay * (1 - product)) * advantage
    return found


def fipo(columns: Columns) -> Array:
    """FIPO (arXiv 2603.19835): f_t times the gradient of PPO with dual clip, f_t = clip(exp(sum_{k >= t}
    2^(-(k - t)/32) log r_k [r_k <= 10]), 1, 1.2).
    """
    found = clip(columns, dual_clip=10.0)
    ratio, advantage = columns["ratio"], columns["advantage"]
    for own in responses(columns):
        for place, row in enumerate(own):
            future = sum(
                2 ** (-later / 32) * log(ratio[other])
                for later, other in enumerate(own[place:])
                if ratio[other] <= 10
            )
            influence = min(max(exp(future), 1.0), 1.2)
            if advantage[row] < 0 and ratio[row] > 4:
                influence = min(max(influence, 0.8), 1.0)
            found[row] *= influence
    return found


def real(columns: Columns, temperature: float = 0.5) -> Array:
    """REAL (arXiv 2602.05630): a right response has d loss / d s = -exp(-s/tau) / (1 + sum of its
    class) / tau, a wrong one the like with the other sign; times G, as weights make a mean over responses.
    """
    values = np.zeros_like(columns["ratio"])
    for group in np.unique(columns["group"]):
        own = [rows for rows in responses(columns) if columns["group"][rows[0]] == group]
        score = {rows[0]: np.mean(np.log(columns["ratio"][rows])) for rows in own}
        right = [rows for rows in own if columns["advantage"][rows[0]] > 0]
        wrong = [rows for rows in own if columns["advantage"][rows[0]] <= 0]
        for sign, members in ((1, right), (-1, wrong)) if right and wrong else ():
            pulls = [exp(-sign * score[rows[0]] / temperature) for rows in members]
            for rows, pull in zip(members, pulls, strict=True):
                values[rows] = sign * len(own) * pull / (1 + sum(pulls)) / temperature
    return of_response(columns, values)


def real_at_one(columns: Columns) -> Array:
    """weight * G / (1 + size of the class) / tau, with the sign of its class"""
    return real({**columns, "ratio": np.ones_like(columns["ratio"])})


def steer_weight(columns: Columns) -> Array:
    """Returns exp(-k omega) with k = -log(0.8) / max(largest omega, 0.02) (STEER, arXiv 2510.10150)."""
    prob, sampled = (np.maximum(np.exp(columns[name]), 1e-8) for name in ("logp", "proximal_logp"))
    omega = np.abs(columns["advantage"] / sampled * prob * (1 - prob) * (np.log(prob) + columns["entropy"]))
    return np.exp(log(0.8) / max(omega.max(), 0.02) * omega)


def steer(columns: Columns) -> Array:
    """STEER: its weight times the gradient of PPO with dual clip."""
    return steer_weight(columns) * clip(columns, dual_clip=10.0)


def steer_at_one(columns: Columns) -> Array:
    """weight * advantage * exp(-k omega)"""
    return steer_weight(columns) * reinforce(columns)


def covariance(columns: Columns) -> Array:
    """Returns (A - mean A)(log pi - mean log pi)."""
    advantage, logp = columns["advantage"], columns["logp"]
    return (advantage - advantage.mean()) * (logp - logp.mean())


def picks(columns: Columns) -> int:
    """Returns how many tokens Clip-Cov and KL-Cov pick."""
    return max(1, floor(SHARE_OF_COVARIANCE * len(columns["logp"])))


def lot(columns: Columns, row: int) -> int:
    """Returns the signed number of a token in Python's integers, as splitmix64 mixes it."""
    number = 0
    for value in (int(columns[name][row]) for name in ("sequence", "position", "age")):
        number = signed(number + value + 0x9E3779B97F4A7C15)
        number = signed((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9)
        number = signed((number ^ (number >> 27)) * 0x94D049BB133111EB)
        number ^= number >> 31
    return number


def signed(number: int) -> int:
    """Returns the 64-bit number with this remainder."""
    return (number + SIXTY_FOUR // 2) % SIXTY_FOUR - SIXTY_FOUR // 2


def without_drawn(columns: Columns, found: Array) -> Array:
    """Returns `found` with 0 for those that Clip-Cov draws (arXiv 2505.22617): covariance between 1
    and 5, and PPO has not clipped them.
    """
    ratio, advantage, cov = columns["ratio"], columns["advantage"], covariance(columns)
    bounded = np.minimum(np.maximum(ratio, columns["low"]), columns["high"])
    able = [row for row in range(len(ratio)) if 1 < cov[row] < 5]
    able = [row for row in able if not bounded[row] * advantage[row] < ratio[row] * advantage[row]]
    drawn = sorted(able, key=partial(lot, columns))[: picks(columns)]
    assert drawn, "a table in which nothing is drawn checks nothing"
    found = found.copy()
    found[drawn] = 0.0
    return found


def clip_cov(columns: Columns) -> Array:
    """Clip-Cov: PPO, without the drawn tokens."""
    return without_drawn(columns, clip(columns))


def clip_cov_at_one(columns: Columns) -> Array:
    """weight * advantage, 0 for the drawn"""
    return without_drawn(columns, reinforce(columns))


def kl_cov(columns: Columns) -> Array:
    """KL-Cov (arXiv 2505.22617): w r A, less w sign(log r) for the highest covariances."""
    found = columns["weight"] * columns["ratio"] * columns["advantage"]
    highest = np.argsort(-covariance(columns))[: picks(columns)]
    found[highest] -= columns["weight"][highest] * np.sign(columns["log_ratio"][highest])
    return found


def of_uncertain(columns: Columns, found: Array) -> Array:
    """Returns `found` for the fifth of the tokens with the highest entropy, else 0 (arXiv 2506.01939)."""
    number = ceil(round(0.2 * len(found), 9))
    least = sorted(columns["entropy"], reverse=True)[number - 1]
    return np.where(columns["entropy"] >= least, found, 0.0)


def top_entropy_at_one(columns: Columns) -> Array:
    """weight * advantage, the fifth of highest entropy"""
    return of_uncertain(columns, reinforce(columns))


REFERENCES = {
    "luspo": Reference(gspo),
    "gmpo": Reference(gmpo),
    "acpo": Reference(acpo),
    "m2po": Reference(m2po),
    "m2po_mask": Reference(m2po_mask),
    "gapo": Reference(partial(gapo, of=gspo)),
    "gapo_token": Reference(partial(gapo, of=clip)),
    "vespo": Reference(vespo),
    "fipo": Reference(fipo),
    "real": Reference(real, real_at_one),
    "steer": Reference(steer, steer_at_one),
    "clip_cov": Reference(clip_cov, clip_cov_at_one, rows="a lot each"),
    "kl_cov": Reference(kl_cov),
    "top_entropy": Reference(lambda columns: of_uncertain(columns, clip(columns)), top_entropy_at_one),
    "entropy_bonus": Reference(clip),
}
