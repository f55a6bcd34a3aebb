"""Curves that the doctor reads, of a run folder or of another trainer's log."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import Curve, Row, RunRecord, read_rollouts, read_run
from bapo_lightning.tools.comparison.imported import log_rows, renamed, updates_without
from bapo_lightning.types import ScoreStatus

Curves = dict[str, Curve]
REWARD, ENTROPY, LENGTH = "train/reward", "policy/entropy", "train/response_length"
MISMATCH, BIAS = "mismatch/abs_logp_diff_mean", "mismatch/logp_diff_mean"
MOVED, EFFECTIVE, AGE = "policy/approx_kl", "ratio/effective_sample_size", "staleness/age_mean"
# Shares of a batch's answers, and of its groups.
CUT, UNREAD, UNIFORM = "share/cut", "share/unread", "share/uniform"
# Texts with the same problem that were judged right and wrong, so far, and the share of rights among them.
CONTRADICTED, ACCEPTED = "verdicts/contradicted", "verdicts/accepted"
SKIPPED = "train/skipped_updates"  # so far
ALARM = "alarms/"  # of a run: updates so far in which the alarm of that name was on
WATCHED = frozenset({
    REWARD, ENTROPY, LENGTH, MISMATCH, BIAS, MOVED, EFFECTIVE, AGE, SKIPPED,
    CUT, UNREAD, UNIFORM, CONTRADICTED, ACCEPTED,
})  # fmt: skip
RATE, OLDEST = "train/learning_rate", "staleness/age_max"
# Mean differences of engine and trainer of tokens of similar age -> least and largest age, in updates.
AGED: dict[str, tuple[int, float]] = {
    "mismatch/abs_logp_diff_age_0": (0, 0),
    "mismatch/abs_logp_diff_age_1": (1, 1),
    "mismatch/abs_logp_diff_age_2_to_3": (2, 3),
    "mismatch/abs_logp_diff_age_4_to_7": (4, 7),
    "mismatch/abs_logp_diff_age_8_to_15": (8, 15),
    "mismatch/abs_logp_diff_age_16_up": (16, math.inf),
}
READ = WATCHED | AGED.keys() | {RATE, OLDEST}  # by the detectors, and by `staleness`
UNDECIDED = (ScoreStatus.TIMEOUT, ScoreStatus.FAILED)
_PARTS = {CUT: "rollout/cut", UNREAD: "rollout/unparsable", UNIFORM: "rollout/uniform_groups"}
_FOREIGN = {
    "completions/clipped_ratio": CUT,  # TRL
    "frac_reward_zero_std": UNIFORM,
    "response_length/clip_ratio": CUT,  # verl
    "actor/ppo_kl": MOVED,
    "rollout_corr/log_ppl_abs_diff": MISMATCH,  # of responses: smaller, since signs of tokens cancel
}


def curves_of(path: Path) -> Curves:
    """Reads a run folder, or a log that `compare` reads. Raises DataError if it has nothing to read."""
    record = read_run(path) if is_run(path) else None
    curves = run_curves(record, read_rollouts(path)) if record else log_curves(path)
    if not curves:
        said = f" ({record.ending}; error: {record.manifest.get('error', 'none')})" if record else ""
        raise DataError(f"{str(path)!r} has no curve that the doctor reads{said}")
    return curves


def is_run(path: Path) -> bool:
    """Whether a path is a run folder, maybe a damaged one."""
    return (path / "manifest.json").exists() or (path / "config.yaml").exists()


def log_curves(path: Path) -> Curves:
    """Curves of another trainer's log."""
    rows, _ = log_rows(path, lambda name: _FOREIGN.get(name.removeprefix("train/")) or renamed(name))
    curves: Curves = {}
    for step in sorted(rows):
        for name in READ & rows[step].keys():
            steps, values = curves.setdefault(name, ([], []))
            steps.append(step)
            values.append(rows[step][name])
    if lost := updates_without(path, "train/grad_norm"):
        curves[SKIPPED] = (lost, [float(number) for number in range(1, len(lost) + 1)])
    return curves


def run_curves(record: RunRecord, texts: Iterable[Row]) -> Curves:
    """Curves of a run, with shares of each rollout batch and contradicting verdicts of its recorded texts."""
    columns = record.columns.items()
    kept = {name: curve for name, curve in columns if curve[0] and (name in READ or name.startswith(ALARM))}
    steps, sizes = record.series("rollout/num_samples")
    size_at = {step: size for step, size in zip(steps, sizes, strict=True) if size > 0}
    group_size = (record.config.get("scale") or {}).get("group_size") or 1
    for name, part in _PARTS.items():
        rows = [(step, count) for step, count in zip(*record.series(part), strict=True) if step in size_at]
        each = group_size if name == UNIFORM else 1
        if rows:
            kept[name] = ([step for step, _ in rows], [each * count / size_at[step] for step, count in rows])
    return kept | contradictions(texts)


def contradictions(texts: Iterable[Row]) -> Curves:
    """Texts judged both right, above 0, and wrong, counted after each update that recorded texts."""
    verdicts: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    differing: dict[tuple[str, str, str], list[bool]] = {}
    steps, counts, shares = list[int](), list[float](), list[float]()
    for row in texts:
        if row.get("turns") or row.get("hint") or row.get("status") in UNDECIDED:
            continue  # its verdict depends on more than the text, or it has none
        key = row["problem"], row["response"], row["finish"]
        score = row.get("score")
        verdicts[key].append((row["reward"] if score is None else score) > 0)
        if verdicts[key][0] != verdicts[key][-1]:
            differing[key] = verdicts[key]
        if not steps or steps[-1] != row["step"]:
            steps, counts, shares = [*steps, row["step"]], [*counts, 0.0], [*shares, 0.0]
        counts[-1] = float(len(differing))
        rights = [is_right for verdicts_of in differing.values() for is_right in verdicts_of]
        shares[-1] = sum(rights) / max(1, len(rights))
    return {CONTRADICTED: (steps, counts), ACCEPTED: (steps, shares)} if steps else {}
