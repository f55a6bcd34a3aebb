"""References of objectives of single tokens, each from the formula of its paper."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from tests.zoo.reference import Array, Columns, Reference, reinforce
from tests.zoo.weights import of_responses


def clip(columns: Columns, dual_clip: float = np.inf) -> Array:
    """PPO (arXiv 1707.06347, Eq. 7): w r A, but nothing where A > 0 and r > high, or A < 0 and r < low; with
    a dual clip (arXiv 1912.09729, Eq. 5) nothing either where A < 0 and r > c.
    """
    ratio, advantage = columns["ratio"], columns["advantage"]
    dead = np.where(advantage > 0, ratio > columns["high"], (ratio < columns["low"]) | (ratio > dual_clip))
    return np.where(dead, 0.0, columns["weight"] * ratio * advantage)


def over_responses(columns: Columns, function: Callable[[Array], float]) -> Array:
    """Returns a number of each response's own log-ratios, for each of its tokens."""
    return of_responses(columns, lambda own: function(columns["log_ratio"][own]))


def gspo(columns: Columns) -> Array:
    """GSPO (arXiv 2507.18071, Eq. 10): w s A, or nothing, where s is the geometric mean of the ratios of the
    response, in place of each token's own.
    """
    ratio = over_responses(columns, lambda own: float(np.prod(np.exp(own)) ** (1 / len(own))))
    return clip({**columns, "ratio": ratio})


def cispo(columns: Columns) -> Array:
    """CISPO (arXiv 2506.13585, Eq. 4): w clip(r) A."""
    return np.clip(columns["ratio"], columns["low"], columns["high"]) * reinforce(columns)


def tis(columns: Columns) -> Array:
    """w min(r, 1) A."""
    return np.minimum(columns["ratio"], 1.0) * reinforce(columns)


def topr(columns: Columns, weight: Callable[[Array], float] | None) -> Array:
    """TOPR (arXiv 2503.14286, Eq. 8): w A for right answers, w min(rho, 1) A for wrong ones; rho of a
    response, or of each token (None).
    """
    rho = columns["ratio"] if weight is None else over_responses(columns, weight)
    return np.where(columns["advantage"] > 0, 1.0, np.minimum(rho, 1.0)) * reinforce(columns)


def aspo(columns: Columns) -> Array:
    """ASPO (arXiv 2510.06062): w A / r or w r A, the factor at most 3, nothing beyond the bounds:
    0.8 and 1.2, or 0.6 and 1.4 above the response's 0.8-quantile of entropy.
    """
    result = np.empty_like(columns["ratio"])
    for token, (ratio, advantage) in enumerate(zip(columns["ratio"], columns["advantage"], strict=True)):
        own = columns["entropy"][columns["sequence"] == columns["sequence"][token]]
        reach = 0.4 if columns["entropy"][token] > np.quantile(own, 0.8) else 0.2
        if advantage > 0:
            factor = 0.0 if ratio > 1 + reach else min(1 / ratio, 3.0)
        else:
            factor = 0.0 if ratio < 1 - reach else min(ratio, 3.0)
        result[token] = factor * columns["weight"][token] * advantage
    return result


def ce_gppo(columns: Columns) -> Array:
    """CE-GPPO (arXiv 2509.20712): PPO's where it does not clip; w 0.5 low A below, w high A above."""
    ratio, advantage = columns["ratio"], columns["advantage"]
    factor = np.where((advantage < 0) & (ratio < columns["low"]), 0.5 * columns["low"], ratio)
    factor = np.where((advantage > 0) & (ratio > columns["high"]), columns["high"], factor)
    return np.where((advantage < 0) & (ratio > 10), 0.0, factor) * reinforce(columns)


def sapo(columns: Columns) -> Array:
    """SAPO (arXiv 2511.20347): w 4 s (1 - s) r A, s = 1 / (1 + exp(-tau (r - 1)))."""
    tau = np.where(columns["advantage"] > 0, 1.0, 1.05)
    gate = 1 / (1 + np.exp(-tau * (columns["ratio"] - 1)))
    return 4 * gate * (1 - gate) * columns["ratio"] * reinforce(columns)


def dcpo_clip(columns: Columns) -> Array:
    """DCPO (arXiv 2509.02333): PPO's with bounds at which r |r - 1| q is 0.16 below and 0.2 above."""
    low, high = np.full_like(columns["ratio"], 0.5), np.empty_like(columns["ratio"])
    for token, q in enumerate(np.exp(columns["proximal_logp"])):
        below = np.roots([-q, q, columns["low"][token] - 1])
        if not np.iscomplex(below).any():
            low[token] = below.max()
        high[token] = min(np.roots([q, -q, 1 - columns["high"][token]]).max(), 10.0)
    return clip({**columns, "low": low, "high": high}, dual_clip=10.0)


def dppo(columns: Columns, divergence: Callable[[Array, Array], Array], limit: float) -> Array:
    """DPPO (arXiv 2602.04879, Eq. 13, 14): w min(r, 20) A, nothing where the divergence of p from q is above
    the limit and grows.
    """
    p, q = np.exp(columns["logp"]), np.exp(columns["proximal_logp"])
    grows = np.sign(p - q) == np.sign(columns["advantage"])
    kept = ~(grows & (divergence(p, q) > limit))
    return kept * np.minimum(columns["ratio"], 20.0) * reinforce(columns)


def binary_kl(p: Array, q: Array) -> Array:
    """KL divergence of two outcomes."""
    return q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))


def prime_rl_dppo(columns: Columns) -> Array:
    """prime-rl (`default_loss_fn`): w (keep r A - 0.002 log r)."""
    change = np.exp(columns["logp"]) - np.exp(columns["proximal_logp"])
    keep = ~(change * np.sign(columns["advantage"]) > 0.2)
    return keep * columns["ratio"] * reinforce(columns) - columns["weight"] * 0.002 * columns["log_ratio"]


def ipo(columns: Columns) -> Array:
    """IPO (prime-rl, `ipo_loss_fn`, and the cap of October): w min(r, 10^4) A where |p - q| <= 0.3."""
    kept = np.abs(np.exp(columns["logp"]) - np.exp(columns["proximal_logp"])) <= 0.3
    return kept * np.minimum(columns["ratio"], 1e4) * reinforce(columns)


def drpo(columns: Columns) -> Array:
    """DRPO (UniRL, `_drpo_loss`): w r A [1 - sign(A (r - 1)) |p - q| / 12.5]."""
    ratio, advantage = columns["ratio"], columns["advantage"]
    moved = np.abs(np.exp(columns["logp"]) - np.exp(columns["proximal_logp"]))
    return ratio * reinforce(columns) * (1 - np.sign(advantage * (ratio - 1)) * moved / 12.5)


def ripo(columns: Columns) -> Array:
    """RIPO (arXiv 2607.10169): PPO's within 1 -+ sqrt(0.05 / q)."""
    reach = np.sqrt(0.05 / np.exp(columns["proximal_logp"]))
    return clip({**columns, "low": 1 - reach, "high": 1 + reach})


def score_centering(columns: Columns, weight: Callable[[Array], Array]) -> Array:
    """Score centering (arXiv 2609.20807), in the token's own score: w f(pi / pi_behaviour) A. What is centred
    is checked in the logits, in tests/algorithms.
    """
    return weight(np.exp(columns["logp"] - columns["behaviour_logp"])) * reinforce(columns)


def maspo(columns: Columns) -> Array:
    """MASPO (FlyTune/MASPO-RL, `compute_policy_loss`): w r A exp(-(r - 1)^2 / (2 sigma^2)) where r moves with
    A, w r A elsewhere.
    """
    result = columns["ratio"] * reinforce(columns)
    for token, (ratio, advantage) in enumerate(zip(columns["ratio"], columns["advantage"], strict=True)):
        sigma = min(max(np.exp(columns["proximal_logp"][token]) ** -0.3, 1.0), 10.0)
        if advantage > 0 and ratio > 1:
            sigma *= 1 + 0.03 * advantage
        elif advantage < 0 and ratio < 1:
            sigma /= 1 - 0.03 * advantage
        else:
            continue
        result[token] *= np.exp(-((ratio - 1) ** 2) / (2 * sigma**2))
    return result


def dro(columns: Columns, log_ratio: Callable[[Columns], Array]) -> Array:
    """w (A - 0.1 log r): verl's `dro`, and Kimi k1.5 (arXiv 2501.12599, Eq. 3) with log r of the response."""
    return reinforce(columns) - 0.1 * columns["weight"] * log_ratio(columns)


def p3o(columns: Columns) -> Array:
    """P3O (FeynRL, `compute_policy_loss`): w (min(r, E) A - (1 - E) (1 - 1 / r)), where E is (sum r)^2 / (n
    sum r^2), and 1 / r vanishes from r = exp(-10) down.
    """
    ratio = columns["ratio"]
    size = ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())
    pull = (1 - size) * (1 - np.where(ratio > np.exp(-10), 1 / ratio, 0.0))
    return np.minimum(ratio, size) * reinforce(columns) - columns["weight"] * pull


REFERENCES = {
    "asymre": Reference(reinforce),  # arXiv 2506.20520: the gradient of w A log pi, whatever the ratios
    "grpo": Reference(clip),
    "gspo": Reference(gspo),
    **dict.fromkeys(("bapo_authors_code", "bapo_authors_example"), Reference(partial(clip, dual_clip=3.0))),
    **dict.fromkeys(("cispo", "cispo_verl", "cispo_roll", "cispo_nemo"), Reference(cispo)),
    "tis": Reference(tis),
    "topr": Reference(lambda columns: topr(columns, lambda own: float(np.prod(np.exp(own))))),
    "topr_roll": Reference(lambda columns: topr(columns, None)),
    "topr_verl": Reference(lambda columns: topr(columns, lambda own: float(np.exp(own.mean())))),
    "aspo": Reference(aspo),
    "ce_gppo": Reference(ce_gppo),
    "sapo": Reference(sapo),
    "dcpo_clip": Reference(dcpo_clip),
    "dppo": Reference(partial(dppo, divergence=lambda p, q: abs(p - q), limit=0.15)),
    "dppo_kl": Reference(partial(dppo, divergence=binary_kl, limit=0.05)),
    "ipo": Reference(ipo),
    "drpo": Reference(drpo),
    "ripo": Reference(ripo),
    "score_centering": Reference(partial(score_centering, weight=np.ones_like)),
    "score_centering_tis": Reference(partial(score_centering, weight=lambda r: np.minimum(r, 2.0))),
    "score_centering_mis": Reference(partial(score_centering, weight=lambda r: r * (r >= 0.5) * (r <= 5.0))),
    "prime_rl_dppo": Reference(prime_rl_dppo),
    "maspo": Reference(maspo),
    "dro": Reference(lambda columns: dro(columns, lambda known: known["log_ratio"])),
    "kimi": Reference(partial(dro, log_ratio=partial(over_responses, function=np.sum))),
    "p3o": Reference(p3o),
}
