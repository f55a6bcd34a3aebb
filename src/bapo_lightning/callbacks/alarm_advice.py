"""Advice for each alarm: likely causes and remedies, by metric and by the side on which it left its range."""

from __future__ import annotations

ADVICE = {
    ("policy/entropy", "below"): (
        "Likely causes: tokens with a positive advantage have too small a share of the gradient, the data "
        "are too stale, or the steps are too large; on stale data a clipped loss loses entropy by itself. "
        "Raise algorithm.positive_share_target (where bounds are searched), lower the staleness "
        "(regime.epochs, regime.minibatches), or lower optimizer.optimizer.lr"
    ),
    ("policy/entropy", "above"): (
        "Likely causes: an upper bound that lets rare positive tokens grow without end (on a small model "
        "3.0 can be one), a share of positives that is forced too high, or too large steps. Lower "
        "algorithm.bounds.high.end (algorithm.bounds.high where bounds are fixed), "
        "algorithm.positive_share_target, or optimizer.optimizer.lr"
    ),
    ("policy/approx_kl", "above"): (
        "The policy has moved far from the one that sampled its data. Likely causes: too many updates on "
        "each rollout batch, too large steps, or an engine that reports other log-probs than it samples "
        "from (see mismatch/*). Lower the staleness (regime.epochs, regime.minibatches) or "
        "optimizer.optimizer.lr, or narrow algorithm.bounds"
    ),
    ("train/grad_norm", "spike"): (
        "The step itself is scaled down to optimizer.max_grad_norm, so a lone spike does little harm. "
        "Likely causes: tokens of very low probability whose ratio is large, or degenerate samples. Look at "
        "bapo/clip_high, policy/approx_kl and rollouts.jsonl; if spikes come often, lower "
        "optimizer.optimizer.lr, the staleness (regime.epochs, regime.minibatches) or the upper bound "
        "(algorithm.bounds)"
    ),
    ("mismatch/abs_logp_diff_mean", "above"): (
        "Rollout engine and trainer differ by so many nats per token on a fresh batch. Likely causes: the "
        "engine reports log-probs at another temperature or before top-p or top-k, holds stale weights, "
        "reuses a prefix cache of older weights, or computes in lower precision (up to 0.03 is usual for "
        "bfloat16). Fix the engine's settings; for a difference that must stay, write "
        "correction=truncated_is or correction=masked_is"
    ),
}
NAN = (
    "Likely causes: weights or log-probs that are not finite, or a metric that is undefined in this update "
    "(a share of nothing), which is a bad one to watch. Look at train/skipped_updates and rollouts.jsonl; "
    "lower optimizer.optimizer.lr"
)
OTHER = "Look in metrics.jsonl and rollouts.jsonl for what else changed at that update"


def advice(metric: str, side: str) -> str:
    """Returns likely causes and remedies, without a final full stop; `side` is below, above, spike or nan."""
    return NAN if side == "nan" else ADVICE.get((metric, side), OTHER)
