"""Synthetic runs with every metric name of a real one, so that reports can be tested without training."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

# algorithm: (entropy at the end, reward at the end, positive share, how far the upper bound moves)
PROFILES = {
    "grpo": (0.08, 0.66, 0.41, 0.0), "dapo": (0.15, 0.71, 0.43, 0.0), "bapo": (0.26, 0.79, 0.48, 0.9),
    "bapo_authors_code": (0.2, 0.74, 0.45, 0.5), "cispo": (0.18, 0.7, 0.44, 0.0),
    "dro": (0.12, 0.6, 0.4, 0.0),
}  # fmt: skip
FIXED = {"low": 0.6, "high": 1.2}
SEARCH = {"low": {"start": 0.6, "end": 0.9}, "high": {"start": 1.2, "end": 3.0}, "target": 0.45}
RunMaker = Callable[..., Path]
_AGES = ("staleness/age_mean", "staleness/age_queueing_mean", "staleness/age_max")
_QUARTERS = [f"entropy_rule/{a}_{b}_prob" for a in ("positive", "negative") for b in ("high", "low")]
_DROPS = [f"rollout/{kind}" for kind in ("dropped", "evicted", "resumed", "cut", "reward_timeouts")]
_NONE = ("staleness/age_generating_mean", "mismatch/kl", "time/wait_seconds", *_DROPS)


def synthetic_row(step, total, algorithm, noise):
    """One update as the training loop logs it, along plausible curves."""
    entropy_end, reward_end, share, reach = PROFILES[algorithm]
    progress = step / max(1, total - 1)
    rise = 1 - math.exp(-3 * progress)
    high = 1.2 + round(reach * progress * noise.uniform(0.4, 1.6) / 0.05) * 0.05
    spike = 40 * noise.random() if algorithm == "grpo" and noise.random() < 0.05 else 0.0
    clipped = 0.02 + 0.03 * progress * noise.random()
    row = {
        "step": step, "train/reward": 0.4 + (reward_end - 0.4) * rise + noise.gauss(0, 0.03),
        "train/response_length": 22 + noise.gauss(0, 1), "train/loss": noise.gauss(0, 0.02),
        "train/grad_norm": abs(noise.gauss(0.6, 0.15)) + spike, "train/learning_rate": 3e-4,
        "train/clip_fraction": clipped, "train/clip_fraction_positive": 1.3 * clipped,
        "train/clip_fraction_negative": 0.8 * clipped, "train/skipped_updates": 0,
        "policy/entropy": 0.6 + (entropy_end - 0.6) * rise + noise.gauss(0, 0.01), "policy/approx_kl": 0.01,
        "bapo/positive_share": share + noise.gauss(0, 0.015),
        "bapo/positive_share_unclipped": share - 0.03 * (1 + reach) + noise.gauss(0, 0.015),
        "bapo/positive_token_fraction": 0.4, "bapo/clip_low": 0.6 + 0.3 * reach * progress * noise.random(),
        "bapo/clip_high": high, "bapo/target_met": float(noise.random() < 0.8),
    }  # fmt: skip
    row |= dict.fromkeys(_QUARTERS, 0.25) | dict.fromkeys(_NONE, 0) | dict.fromkeys(_AGES, step % 8)
    row |= {
        "entropy_rule/predicted_delta": -0.01, "entropy_rule/measured_delta": -0.012,
        "staleness/segments_mean": 1.0, "mismatch/abs_logp_diff_mean": 1e-6, "mismatch/ratio_max": 1.0,
        "time/update_seconds": 0.2, "progress/version": step + 1, "progress/samples": 64 * (step + 1),
        "progress/tokens": 1400 * (step + 1),
    }  # fmt: skip
    if step % 8 == 0:  # a new rollout batch
        row |= {
            "time/rollout_seconds": 0.9, "time/reward_seconds": 0.05, "time/sync_seconds": 0.02,
            "rollout/tokens_per_second": 12000 + noise.gauss(0, 400),
            "rollout/uniform_groups": noise.randrange(12), "val/sums/avg@8": row["train/reward"] - 0.02,
            "val/sums/pass@8": 0.97,
        }  # fmt: skip
    return row


def synthetic_run(folder, algorithm="bapo", seed=0, num_updates=40, **manifest):
    """A run folder with such rows."""
    noise = random.Random(f"{algorithm} {seed} {manifest.get('staleness')}")
    rows = [synthetic_row(step, num_updates, algorithm, noise) for step in range(num_updates)]
    return write_run(folder, rows, algorithm, seed, **manifest)


def write_run(folder, rows, algorithm="bapo", seed=0, **manifest):
    """A run folder with these rows; `manifest` overrides its entries."""
    folder.mkdir(parents=True)
    settings = {"name": algorithm, "bounds": SEARCH if algorithm.startswith("bapo") else FIXED}
    (folder / "config.yaml").write_text(json.dumps({"seed": seed, "algorithm": settings}))
    defaults = {
        "experiment": "quickstart", "algorithm": algorithm, "regime": "replay", "seed": seed,
        "started_at": "2026-01-01T00:00:00", "command": "train", "git_commit": "abc", "versions": {},
        "devices": "cpu", "wall_seconds": 75.0, "status": "finished", "staleness": 8,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(defaults | manifest))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def sample(step=0, problem="2+3", response="5", **more):
    """A row of rollouts.jsonl."""
    return {
        "step": step, "problem": problem, "prompt": f"<{problem}>", "gold": "5", "response": response,
        "status": "correct", "reward": 1.0, "advantage": 0.5, "num_tokens": 2, "finish": "stop",
        "versions": [step], **more,
    }  # fmt: skip
