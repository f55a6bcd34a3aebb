"""The catalogue of metrics, which gives everything that shows a metric its title, unit, scale and place; a
metric without a row, such as your own callback's, is shown under its name. docs/metrics.md explains each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from bapo_lightning.report.paired import EQUAL_WITHIN

HELD_OUT = "val/avg@k"  # held-out accuracy as one curve, however many validation sets a run has
HIGH_RAISED, LOW_RAISED = "bapo/clip_high_raised", "bapo/clip_low_raised"
TARGET_MET = "bapo/target_met"
# A colour is the algorithm's, its shade for positive or for negative tokens, or grey.
Colour = Literal["algorithm", "positive", "negative", "grey"]


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of them: a name with a part in angle brackets stands for all that match it."""

    name: str  # in metrics.jsonl, or of a curve that `source` is turned into
    title: str
    unit: str = ""
    group: str = ""  # its panel, one of `PANELS`; or sum of a summary: time, drops
    label: str = ""  # in the legend of its panel
    colour: Colour = "algorithm"
    better: Literal["more", "less", ""] = ""
    watch: Literal["largest", "lowest"] = "largest"  # extreme that matters if neither direction is better
    log: bool = False  # rare large values matter: means are geometric, axes logarithmic
    jumps: bool = False  # few distant values: every update is drawn, without a moving average
    signed: bool = False
    short: str = ""  # on the console, during training
    decimals: int = 3  # there
    source: str = ""  # metrics that it is computed from, if no log has it

    @property
    def logged(self) -> str:
        """Name in the log."""
        return self.source or self.name

    @property
    def is_peak(self) -> bool:
        """Whether its extreme is of single values, not of a moving average."""
        return self.log or self.name.endswith("max")

    @property
    def is_drawn_raw(self) -> bool:
        """Whether single values are drawn: an average would hide spikes, jumps and courses of ages."""
        return self.log or self.jumps or self.name.startswith("staleness/age")

    @property
    def is_largest_watched(self) -> bool:
        """Whether the extreme to be shown is the largest value, not the smallest."""
        return self.extreme == "largest" or (self.extreme == "best" and self.better == "more")

    @property
    def extreme(self) -> str:
        """Word for the extreme to be shown."""
        return "largest" if self.is_peak else "best" if self.better else self.watch

    @property
    def limits(self) -> tuple[float, float] | None:
        """Smallest and largest possible value; None if it can be anything."""
        if self.signed:
            return None
        return (0.0, 1.0 if self.unit.startswith(("fraction", "share")) else math.inf)

    @property
    def equal_within(self) -> float:
        """Differences that count as equal; 0 without a known scale."""
        return EQUAL_WITHIN if self.limits == (0.0, 1.0) else 0.0


@dataclass(frozen=True)
class Panel:
    """Metrics that are drawn together."""

    title: str
    unit: str
    from_zero: bool = False
    rule: float | Literal["target"] | None = None  # a horizontal line: at a value, or at the search's target
    plotted: bool = False  # also in `plots/`


PANELS = {
    "reward": Panel("Reward", "mean per sample", plotted=True),
    "entropy": Panel("Policy entropy", "nats per token", from_zero=True, plotted=True),
    "positive_share": Panel("Positive share of the gradient", "fraction", rule="target", plotted=True),
    "bounds": Panel("Clipping bounds", "importance ratio", rule=1.0, plotted=True),
    "grad_norm": Panel("Gradient norm", "L2 norm", plotted=True),
    "clip_fraction": Panel("Clipped tokens", "fraction of tokens", from_zero=True, plotted=True),
    "length": Panel("Response length", "tokens"),
    "age": Panel("Age of tokens", "updates"),
    "mismatch": Panel("Engine against trainer", "nats per token"),
    "turns": Panel("Turns and calls of a conversation", "number"),
    "faults": Panel("Faults in conversations", "fraction"),
    "turn_shares": Panel("Positive share, turn by turn", "fraction", rule="target"),
}

# Metrics that every run is compared by, headlines first.
EXPECTED = (
    Metric("train/reward", "Training reward", "mean per sample", "reward", "in training",
           better="more", signed=True, short="reward"),
    Metric(HELD_OUT, "Held-out accuracy", "share of right answers, avg@k", "reward", "held out", "grey",
           better="more", source="val/*"),
    Metric("policy/entropy", "Policy entropy", "nats per token", "entropy", "entropy",
           watch="lowest", short="entropy"),
    Metric("bapo/positive_share", "Positive share of the gradient", "fraction", "positive_share",
           "at the chosen bounds", watch="lowest", short="positive share"),
    Metric("train/grad_norm", "Gradient norm", "L2 before clipping, geom. mean", "grad_norm",
           "gradient norm", log=True, short="grad norm", decimals=2),
    Metric("train/clip_fraction", "Clipped tokens", "fraction", "clip_fraction", "of all tokens"),
    Metric(HIGH_RAISED, "Upper bound raised", "share of updates", source="bapo/clip_high"),
    Metric(LOW_RAISED, "Lower bound raised", "share of updates", source="bapo/clip_low"),
    Metric("policy/approx_kl", "KL to the behaviour policy", "nats per token, k3"),
    Metric("train/response_length", "Response length", "tokens", "length", "all"),
    Metric("staleness/age_mean", "Age of the data", "updates, mean over tokens", "age", "mean",
           short="age", decimals=1),
    Metric("staleness/age_generating_mean", "Age: part until generated", "updates"),
    Metric("staleness/age_queueing_mean", "Age: part in the queue", "updates"),
)  # fmt: skip
# Metrics by which those runs are compared that recorded them.
OPTIONAL = (
    Metric("turns/mean", "Turns of a conversation", "mean", "turns", "turns"),
    Metric("turns/calls_mean", "Calls of tools", "per conversation", "turns", "calls", "negative"),
    Metric("turns/error_share", "Failed calls", "share of the calls", "faults", "failed calls", "positive"),
    Metric("turns/void_share", "Conversations with a void turn", "fraction", "faults", "void turn",
           "negative"),
    Metric("turns/cut_share", "Conversations that a limit ended", "fraction", "faults", "cut", "grey"),
    Metric("turns/lost_share", "Conversations whose environment was lost", "fraction"),
    Metric("turns/feedback_tokens_mean", "Feedback", "tokens per conversation"),
    Metric("turns/positive_share_<turn>", "Positive share, turn <turn>", "fraction", "turn_shares",
           "turn <turn>", watch="lowest"),
)  # fmt: skip
# In the order of docs/metrics.md.
OTHERS = (
    Metric("train/shaped_reward", "Reward with length shaping", "mean per sample", signed=True),
    Metric("train/right_and_finished", "Right and finished", "fraction", better="more"),
    Metric("train/response_length_positive", "Response length, positive samples", "tokens", "length",
           "positive", "positive"),
    Metric("train/response_length_negative", "Response length, negative samples", "tokens", "length",
           "negative", "negative"),
    Metric("train/loss", "Loss", signed=True),
    Metric("train/learning_rate", "Learning rate"),
    Metric("gradient/cosine", "Cosine of successive gradients", signed=True, watch="lowest"),
    Metric("train/clip_fraction_positive", "Clipped tokens, positive", "fraction", "clip_fraction",
           "of positive tokens", "positive"),
    Metric("train/clip_fraction_negative", "Clipped tokens, negative", "fraction", "clip_fraction",
           "of negative tokens", "negative"),
    Metric("train/skipped_updates", "Skipped updates so far", "updates"),
    Metric("train/tokens_per_second", "Training speed", "tokens/s", better="more"),
    Metric("progress/version", "Optimizer updates so far", "updates"),
    Metric("progress/samples", "Rollouts so far", "samples"),
    Metric("progress/tokens", "Response tokens so far", "tokens"),

    Metric("bapo/positive_share_unclipped", "Positive share without bounds", "fraction", "positive_share",
           "without clipping", "grey"),
    Metric("search/guessed", "Guesses at the bounds that held", "fraction"),
    Metric("search/redone_tokens", "Tokens redone after a wrong guess", "number"),
    Metric("bapo/positive_token_fraction", "Positive tokens", "fraction"),
    Metric("bapo/clip_low", "Lower bound", "ratio", "bounds", "lower bound", "negative", jumps=True,
           short="low", decimals=2),
    Metric("bapo/clip_high", "Upper bound", "ratio", "bounds", "upper bound", "positive", jumps=True,
           short="high", decimals=2),
    Metric(TARGET_MET, "Searches that met the target", "share of the searches", better="more"),
    Metric("entropy_rule/predicted_delta", "Predicted change of entropy", "nats", signed=True),
    Metric("entropy_rule/measured_delta", "Measured change of entropy", "nats", signed=True),
    Metric("entropy_rule/<sign>_<level>_prob", "Unclipped advantage: <sign>, <level> probability", "share"),

    Metric("staleness/age_max", "Largest age", "updates", "age", "largest", "grey"),
    Metric("staleness/bound_reached", "Largest age so far", "share of max_age"),
    Metric("staleness/segments_mean", "Segments of a rollout", "mean"),
    Metric("staleness/masked_tokens", "Tokens too old to train on", "tokens"),
    Metric("mismatch/abs_logp_diff_mean", "Engine against trainer", "nats per token", "mismatch",
           "mean difference", better="less", log=True),
    Metric("mismatch/abs_logp_diff_max", "Engine against trainer, largest", "nats", better="less", log=True),
    Metric("mismatch/logp_diff_mean", "Engine against trainer, bias", "nats", signed=True),
    Metric("mismatch/ratio_max", "Trainer to engine, largest ratio", "ratio", better="less", log=True),
    Metric("mismatch/kl", "KL of engine and trainer", "nats, k3", better="less", log=True),
    Metric("mismatch/abs_logp_diff_age_<ages>", "Engine against trainer, age <ages>", "nats per token",
           better="less", log=True),
    Metric("mismatch/kl_depth_<tokens>", "Engine against trainer, depth <tokens>", "nats, k3",
           better="less", log=True),
    Metric("mismatch/lora_update_kept", "LoRA update that reached the engine", "fraction", better="more"),
    Metric("ratio/effective_sample_size", "Effective sample size of the ratios", "share of tokens",
           better="more"),
    Metric("ratio/chi_square", "Chi-square to the behaviour policy", "squared ratios", better="less",
           log=True),
    Metric("correction/weight_mean", "Mean weight of the correction", "ratio"),
    Metric("correction/weight_min", "Least weight of the correction", "ratio", watch="lowest"),
    Metric("correction/truncated_fraction", "Truncated weights", "fraction of tokens"),
    Metric("correction/masked_fraction", "Weights of 0", "fraction of tokens"),
    Metric("correction/effective_sample_size", "Effective sample size", "share of tokens", better="more"),
    Metric("correction/step_scale", "Factor of the learning rate", "ratio"),
    Metric("sync/transfer_seconds", "Transfer of weights", "seconds"),
    Metric("sync/logp_diff_mean", "Probe: mean difference", "nats", better="less", log=True),
    Metric("sync/logp_diff_max", "Probe: largest difference", "nats", better="less", log=True),
    Metric("sync/compared_share", "Modules compared after a sync", "share of modules", better="more"),
    Metric("turns/max", "Most turns of a conversation", "number", "turns", "most turns", "grey"),
    Metric("agent/requests_mean", "Requests of a program", "per conversation"),
    Metric("agent/refused_mean", "Requests refused", "per conversation"),
    Metric("agent/edits_mean", "Requests that edit the conversation", "per conversation"),
    Metric("agent/branches_mean", "Branches of a conversation", "mean"),
    Metric("agent/program_seconds", "Time in a program", "s per conversation"),
    Metric("agent/lost_<reason>", "Programs lost: <reason>", "share of conversations"),

    Metric("rollout/num_samples", "Responses generated", "samples"),
    Metric("rollout/num_tokens", "Tokens generated", "tokens"),
    Metric("rollout/tokens_per_second", "Generation speed", "tokens/s", better="more"),
    Metric("rollout/passes", "Generation passes", "number"),
    Metric("rollout/decoding_steps", "Decoding steps", "number"),
    Metric("rollout/added_passes", "Passes that the schedule does not have", "number"),
    Metric("rollout/dropped", "Groups not admitted", "number", "drops"),
    Metric("rollout/evicted", "Groups dropped for their age", "number", "drops"),
    Metric("rollout/resumed", "Continued responses", "number", "drops"),
    Metric("rollout/cut", "Responses at the token limit", "number", "drops"),
    Metric("rollout/wasted_tokens", "Tokens never trained on", "tokens", "drops"),
    Metric("rollout/trained_length_ratio", "Length trained on, of the length sampled", "ratio"),
    Metric("rollout/trained_score_difference", "Score trained on, less the score sampled", "score"),
    Metric("rollout/unparsable", "Responses without an answer", "number", "drops"),
    Metric("rollout/reward_timeouts", "Verdicts not reached in time", "number", "drops"),
    Metric("rollout/reward_failures", "Verdicts not reached", "number", "drops"),
    Metric("rollout/uniform_groups", "Groups of equal scores", "number", "drops"),
    Metric("rollout/engine_restarts", "Restarts of the engine", "number", "drops"),
    Metric("rollout/resumed_tokens", "Tokens read again", "tokens"),
    Metric("rollout/filtered_samples", "Responses not trained on", "number"),
    Metric("rollout/expert_traces", "Answers of an expert", "number"),
    Metric("rollout/hinted_groups", "Groups sampled again with a hint", "number"),
    Metric("rollout/running", "Groups started", "number"),
    Metric("rollout/ready", "Groups waiting for training", "number"),
    Metric("fleet/<what>", "Fleet: <what>", "number"),
    Metric("rollout/second_<what>", "Second sampling: <what>"),
    Metric("critic/value", "Mean value of the prompts", "score", signed=True),
    Metric("critic/brier", "Squared error of the critic", "score squared", better="less"),
    Metric("reuse/share", "Groups used before", "fraction"),
    Metric("reuse/<what>", "Reuse: groups <what>", "number"),

    Metric("time/rollout_seconds", "Generation", "seconds", "time"),
    Metric("time/reward_seconds", "Rewards", "seconds", "time"),
    Metric("time/update_seconds", "Update", "seconds", "time"),
    Metric("time/sync_seconds", "Weight sync", "seconds", "time"),
    Metric("time/second_sampling_seconds", "Second sampling", "seconds", "time"),
    Metric("time/critic_seconds", "Values of steps", "seconds", "time"),
    Metric("time/proximal_seconds", "Scores of the batch", "seconds", "time"),
    Metric("time/reference_seconds", "Scores under the first weights", "seconds", "time"),
    Metric("time/wait_seconds", "Wait for data", "seconds", "time"),
    Metric("time/search_seconds", "Search of the bounds", "seconds"),
    Metric("time/redo_seconds", "Gradients redone after a wrong guess", "seconds"),
    Metric("time/step_seconds", "Whole update", "seconds"),
    Metric("time/engine_idle_seconds", "Engine idle", "seconds"),
    Metric("val/<set>/avg@<k>", "avg@<k>, <set>", "share of right answers", better="more"),
    Metric("val/<set>/pass@<k>", "pass@<k>, <set>", "share of problems", better="more"),
    Metric("val/<set>/maj@<k>", "maj@<k>, <set>", "share of problems", better="more"),
    Metric("val/<set>/right_and_finished", "Right and finished, <set>", "share of right answers",
           better="more"),
    Metric("val/<set>/response_length", "Response length, <set>", "tokens"),
    Metric("val/<set>/<what>_fraction", "Responses <what>, <set>", "fraction"),
    Metric("alarms/<name>", "Alarm <name>", "updates"),
)  # fmt: skip
CATALOGUE = (*EXPECTED, *OPTIONAL, *OTHERS)
HEADLINES = EXPECTED[:5]
MAIN = [next(row for row in CATALOGUE if row.group == name) for name in PANELS]  # first of each panel

_PLACE = re.compile(r"<(\w+)>")
_PATTERNS = [re.compile(_PLACE.sub(r"(?P<\1>.+)", re.escape(metric.name))) for metric in CATALOGUE]


@cache
def metric_of(name: str) -> Metric:
    """The row of a metric, or of a family's member; a metric without a row has its name as its title."""
    for pattern, row in zip(_PATTERNS, CATALOGUE, strict=True):
        if match := pattern.fullmatch(name):
            title, label = (_filled(text, match.groupdict()) for text in (row.title, row.label))
            return replace(row, name=name, title=title, label=label)
    return Metric(name, name, signed=True)


def is_listed(name: str) -> bool:
    """Whether the catalogue has a row for a metric."""
    return any(pattern.fullmatch(name) for pattern in _PATTERNS)


def _filled(text: str, parts: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: parts[place[1]], text)


def compared_among(names: Iterable[str]) -> tuple[Metric, ...]:
    """Metrics by which runs that logged `names` are compared: expected, then optional, then without a row."""
    places = sorted(map(place_of, names))
    optional = (*range(len(EXPECTED), len(EXPECTED) + len(OPTIONAL)), len(CATALOGUE))
    return (*EXPECTED, *(metric_of(name) for place, name in places if place in optional))


def place_of(name: str) -> tuple[int, str]:
    """Sort key of metrics: number of the row, those without one last; then the name."""
    row = next((place for place, row in enumerate(_PATTERNS) if row.fullmatch(name)), len(_PATTERNS))
    return row, name
