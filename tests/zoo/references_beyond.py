"""References of objectives that know where a response comes from, its steps, the policy when it entered
training, or another one, each from the formula of its paper.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from tests.zoo.reference import Array, Columns, Reference
from tests.zoo.references_tokens import clip, reinforce
from tests.zoo.references_updates import lot, of_response, responses

REPLAYED, TEMPERED, EXPERT = 1, 2, 3


def luffy(columns: Columns) -> Array:
    """LUFFY (arXiv 2504.14945): w gamma p / (p + gamma)^2 A with gamma 0.1 for an expert's tokens, whose
    ratio is their probability p, and w r A for others.
    """
    ratio = columns["ratio"]
    shaped = 0.1 * ratio / (ratio + 0.1) ** 2
    return np.where(columns["origin"] == EXPERT, shaped, ratio) * reinforce(columns)


def luffy_at_one(columns: Columns) -> Array:
    """weight * advantage, and times 0.1 / 1.21 for an expert's tokens"""
    return np.where(columns["origin"] == EXPERT, 0.1 / 1.21, 1.0) * reinforce(columns)


def aepo(columns: Columns) -> Array:
    """AEPO (arXiv 2510.08141): w A for tokens of another temperature, PPO's clip for others."""
    return np.where(columns["origin"] == TEMPERED, reinforce(columns), clip(columns))


def spear(columns: Columns) -> Array:
    """SPEAR (arXiv 2509.22601): PPO's clip with a dual clip of 10, but nothing for the tokens that are drawn:
    2 % of the replayed ones, with a covariance of 1 to 40, and 0.02 % of the others, with one of 1 to 5.
    """
    result, live = clip(columns, dual_clip=10.0), clip(columns) != 0
    replayed = columns["origin"] == REPLAYED
    for own, share, high in ((replayed, 0.02, 40.0), (~replayed, 2e-4, 5.0)):
        covariance = (columns["advantage"] - columns["advantage"][own].mean()) * (
            columns["logp"] - columns["logp"][own].mean()
        )
        # Those with no advantage are not clipped either.
        fits = own & (live | (columns["advantage"] == 0)) & (covariance > 1) & (covariance < high)
        fits &= columns["origin"] <= REPLAYED
        drawn = sorted(np.flatnonzero(fits), key=partial(lot, columns))
        result[drawn[: max(int(share * own.sum()), 1)]] = 0.0
    return result


def residual(columns: Columns) -> Array:
    """log Z + mean log pi - 15 A - mean log pi_ref of each token's response."""
    found = np.empty_like(columns["logp"])
    for own in responses(columns):
        logp, reference = columns["logp"][own].mean(), columns["reference_logp"][own].mean()
        found[own] = columns["log_z"][own[0]] + logp - 15 * columns["advantage"][own[0]] - reference
    return found


def flowrl(columns: Columns, clips: bool = True) -> Array:
    """FlowRL (arXiv 2509.15207): -w 2 d / L for each token of a response of length L, summed over the
    weights of the response; d is the residual and w its product of ratios, clipped or not.
    """
    residuals, values = residual(columns), np.empty_like(columns["logp"])
    for own in responses(columns):
        weight = float(np.prod(columns["ratio"][own]))
        if clips:
            weight = min(max(weight, columns["low"][own[0]]), columns["high"][own[0]])
        values[own] = -2 * weight * residuals[own]
    return of_response(columns, values)


def flowrl_at_one(columns: Columns) -> Array:
    """-2 weight (log Z + mean log pi - 15 A - mean log pi_ref)"""
    return -2 * columns["weight"] * residual(columns)


def direct_advantage(columns: Columns) -> Array:
    """Direct Advantage Policy Optimization (arXiv 2412.18279) with beta 0.01: of a step of n tokens, the
    gradient of -1/2n sum_t w_t (A_t / beta - sum_t log r_t)^2 is the same for each of its tokens.
    """
    result = np.zeros(len(columns["logp"]))
    steps = list(zip(columns["sequence"], columns["step"], strict=True))
    for step in set(steps):
        own = [token for token, found in enumerate(steps) if found == step]
        log_ratio = sum(columns["log_ratio"][token] for token in own)
        missing = [columns["advantage"][token] / 0.01 - log_ratio for token in own]
        result[own] = sum(columns["weight"][own] * missing) / len(own)
    return result


def direct_advantage_at_one(columns: Columns) -> Array:
    """weight * advantage / beta"""
    return reinforce(columns) / 0.01


def erc(columns: Columns) -> Array:
    """ERC (arXiv 2512.05591): PPO's clip with a dual clip of 10, and nothing where H / H_old is not between
    0.95 and 1.05, 1e-8 added to both.
    """
    change = (columns["entropy"] + 1e-8) / (columns["entry_entropy"] + 1e-8)
    return np.where(np.abs(change - 1) < 0.05, clip(columns, dual_clip=10.0), 0.0)


def rover(columns: Columns) -> Array:
    """ROVER (arXiv 2509.24981; its `compute_rover_loss`): of -w (log r - target)^2, whose target is A plus
    how far the mean log-prob at the next token of the response has moved, or 0 after the last one.
    """
    result = np.empty_like(columns["ratio"])
    for token, target in enumerate(columns["advantage"]):
        if token < np.flatnonzero(columns["sequence"] == columns["sequence"][token])[-1]:
            target += columns["mean_logp"][token + 1] - columns["entry_mean_logp"][token + 1]
        result[token] = 2 * columns["weight"][token] * (target - columns["log_ratio"][token])
    return result


def rover_at_one(columns: Columns) -> Array:
    """2 * weight * advantage"""
    return 2 * reinforce(columns)


REFERENCES = {
    "erc": Reference(erc),
    "rover": Reference(rover, rover_at_one),
    "luffy": Reference(luffy, luffy_at_one),
    "spear": Reference(spear, "some tokens are left out", rows="a lot each"),
    "spear_turns": Reference(spear, "some tokens are left out", rows="a lot each"),
    "simpletir": Reference(partial(clip, dual_clip=3.0)),
    "aepo": Reference(aepo),
    "flowrl": Reference(flowrl, flowrl_at_one),
    "flowrl_authors_code": Reference(partial(flowrl, clips=False), flowrl_at_one),
    "direct_advantage": Reference(direct_advantage, direct_advantage_at_one),
}
