"""Causes of what is wrong, each found by a pure function of a run's curves.

    curves, facts -> every cause -> findings, the earliest first; later ones may follow from it

Thresholds of single metrics are those of the alarms, `conf/callbacks/default.yaml`; `studies/doctor` made the
sick runs that set the others, and docs/results/doctor.md has what both find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Literal, NotRequired

import yaml
from typing_extensions import TypedDict

from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.report.detectors import Detector, State
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import Curve
from bapo_lightning.system.run_folder.shapes import Count, Number, shaped
from bapo_lightning.tools.doctor import curves as names
from bapo_lightning.tools.doctor.curves import Curves

Certainty = Literal["certain", "likely", "possible"]
# Nats per token. A smaller difference of engine and trainer is rounding, whose direction means nothing.
SEEN = 0.01
TILTED = Detector(above=0.2, patience=2)  # |mean difference| / mean |difference|
UNTILTED = 0.02  # log-probs of the same tokens at other places have the same sum
GROWN = 3.0  # times: the last third of a difference against its first third
ONE_WAY = 0.55  # of a difference, in one direction: tokens of an old policy are unlikely under the new one
CHANGED = 2.5  # standard errors by which samples of one policy do not differ
CUT_SHARE = Detector(above=0.25, patience=2)
UNREAD_AT_FIRST = 0.5  # share of the first batch, besides answers that were cut
UNIFORM_SHARE = Detector(above=0.6, patience=3)
UNIFORM_GROWN = 1.5  # times the first batches' share
UNSOLVED = (0.05, 0.8)  # mean reward with which groups of equal scores are a loss
RISEN = 0.05  # from the first third of the rewards to the last: groups of solved problems are equal as well
FALLEN = 0.5  # times the best moving average of the reward
FAR = 0.8  # moving average of the KL to the data's policy; above it, distance explains a fallen reward
WINDOW = 8  # updates of a moving average
EXPLODED = 3.0  # times the entropy of the first updates
OLD = 8.0  # updates; above this age, old data explain distant ratios, not the rate
TWICE = 3.0  # texts with two verdicts
HEALTHY = {"alarms/age_bound", "alarms/clipping"}  # alarms that healthy runs raise


@dataclass(frozen=True)
class Finding:
    """A fault of a run."""

    cause: str
    since: int  # update
    certainty: Certainty
    evidence: str
    remedy: str


@dataclass(frozen=True)
class Facts:
    """Facts from a run's configuration; a log gives none."""

    detectors: Mapping[str, Detector]  # by the name of the package's alarm
    has_adapters: bool = False


class _Alarm(TypedDict):
    metric: NotRequired[str]
    below: NotRequired[Number | None]
    above: NotRequired[Number | None]
    patience: NotRequired[Count]


class _Callbacks(TypedDict):
    alarms: NotRequired[dict[str, _Alarm | None] | None]


class _Known(TypedDict):
    """Keys of a run's configuration that the doctor reads."""

    callbacks: NotRequired[_Callbacks | None]
    model: NotRequired[dict[str, Any] | None]


def facts_of(config: Mapping[str, Any]) -> Facts:
    """The package's alarms, with a run's thresholds if it has the alarm on the same metric, and whether
    adapters are trained. Raises DataError if the configuration has another form.
    """
    try:
        known = shaped(_Known, dict(config))
    except ValueError as error:
        raise DataError(f"config.yaml is damaged ({error}); restore the file that the run wrote") from None
    usual, alarms = usual_alarms(), (known.get("callbacks") or {}).get("alarms") or {}
    same = {name for name in usual if (alarms.get(name) or {}).get("metric") == usual[name]["metric"]}
    return Facts(
        {name: _detector(alarms[name] if name in same else node) for name, node in usual.items()},
        (known.get("model") or {}).get("lora") is not None,
    )


@cache
def usual_alarms() -> dict[str, Any]:
    """The alarms of `conf/`, without a run's changes."""
    alarms: dict[str, Any] = yaml.safe_load(Path(conf_dir(), "callbacks/default.yaml").read_text())["alarms"]
    return alarms


def _detector(node: Mapping[str, Any]) -> Detector:
    return Detector(node.get("below"), node.get("above"), None, max(1, node.get("patience") or 1))


def diagnose(curves: Curves, facts: Facts) -> list[Finding]:
    """Returns what is wrong, the earliest first; nothing for a healthy run or without known metrics."""
    findings = [finding for cause in CAUSES for finding in cause(curves, facts)]
    return sorted(findings, key=lambda finding: finding.since)


def unexplained(curves: Curves, findings: Sequence[Finding]) -> dict[str, int]:
    """Returns the run's own alarms that began before every finding, each with its first update."""
    first = min((finding.since for finding in findings), default=math.inf)
    alarms = [name for name in sorted(curves) if name.startswith(names.ALARM) and name not in HEALTHY]
    begun = {name.removeprefix(names.ALARM): _counted(curves, name)[:1] for name in alarms}
    return {name: step for name, steps in begun.items() for step in steps if step < first}


def _counted(curves: Curves, name: str) -> list[int]:
    """Updates at which a count is at least one."""
    return [step for step, count in zip(*series(curves, name), strict=True) if count >= 1]


def first_on(detector: Detector, curve: Curve) -> int | None:
    """Index of the first of the values in a row that raise a detector; None if they never do."""
    state = State()
    for index, value in enumerate(curve[1]):
        detector.take(value, state)
        if state.is_on:
            return index + 1 - detector.patience
    return None


def series(curves: Curves, name: str) -> Curve:
    """Updates and values of a curve; empty if it is not there."""
    return curves.get(name, ([], []))


def _since(curve: Curve, step: int) -> list[float]:
    return [value for at, value in zip(*curve, strict=True) if at >= step]


def _thirds(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    size = max(1, len(values) // 3)
    return values[:size], values[-size:]


def averages(curve: Curve, window: int = WINDOW) -> Curve:
    """Moving averages, each at its last update; none of a curve that is shorter than the window."""
    steps, values = curve
    ends = range(window, len(values) + 1)
    return [steps[end - 1] for end in ends], [fmean(values[end - window : end]) for end in ends]


def engine(curves: Curves, facts: Facts) -> Iterator[Finding]:
    """An engine whose log-probs are not the trainer's on fresh data, and why."""
    steps, differences = series(curves, names.MISMATCH)
    signed = dict(zip(*series(curves, names.BIAS), strict=True))
    tilts = [
        abs(signed.get(step, 0.0)) / value if value > SEEN else 0.0
        for step, value in zip(steps, differences, strict=True)
    ]
    seen = [first_on(facts.detectors["mismatch"], (steps, differences)), first_on(TILTED, (steps, tilts))]
    if begins := [index for index in seen if index is not None]:
        first = min(begins)
        tilt = fmean(tilts[first:]) if signed else math.nan
        yield _of_engine(curves, facts, steps[first], differences[first:], tilt)


def _of_engine(
    curves: Curves, facts: Facts, since: int, differences: Sequence[float], tilt: float
) -> Finding:
    early, late = map(fmean, _thirds(differences))
    said = f"engine against trainer {early:.2g}, later {late:.2g} nats per token on fresh data"
    said += "" if math.isnan(tilt) else f"; {tilt:.2f} of it in one direction"
    if tilt < UNTILTED:
        remedy = "Pair each log-prob with its own token"
        return Finding("shifted log-probs", since, "certain", said, remedy)
    if len(differences) < 3:
        remedy = "Wait for two more rollout batches, which show its kind"
        return Finding("engine mismatch", since, "certain", said, remedy)
    if late < GROWN * early and not tilt > ONE_WAY:
        remedy = "Give the engine the temperature, top-p and top-k at which the trainer scores"
        return Finding("another temperature", since, "likely", said, remedy)
    if facts.has_adapters:
        return Finding("adapter not delivered", since, "likely", said, f"{_PROBE}. Does it use the adapter?")
    if not has_changed(curves, since):
        said += "; no change of its samples is seen"
        return Finding("old weights in the engine", since, "likely", said, f"{_PROBE}. It finds lost layers")
    said += "; its samples change nevertheless"
    return Finding("partly synced engine", since, "likely", said, f"{_PROBE}. It lists layers that differ")


_PROBE = "Compare the engine with the newest weights: make probe SERVER=URL FOLDER=EXPORT"


def has_changed(curves: Curves, since: int) -> bool:
    """Whether rewards or lengths of samples have changed from an update on."""
    for name in (names.REWARD, names.LENGTH):
        early, late = _thirds(_since(series(curves, name), since))
        if min(len(early), len(late)) > 1:
            error = math.sqrt(variance(early) / len(early) + variance(late) / len(late))
            if abs(fmean(late) - fmean(early)) > CHANGED * error:
                return True
    return False


def skipped(curves: Curves, facts: Facts) -> Iterator[Finding]:
    """Updates whose gradient was NaN or infinite; runs of this package skip them."""
    if since := _counted(curves, names.SKIPPED):
        said = f"{curves[names.SKIPPED][1][-1]:.0f} updates had gradients that are NaN or infinite"
        remedy = "Lower optimizer.optimizer.lr, and read the answers of these updates in rollouts.jsonl"
        yield Finding("gradients not finite", since[0], "certain", said, remedy)


def unrewarded(curves: Curves, facts: Facts) -> Iterator[Finding]:
    """Rewards that never left 0, with equal scores in every group, so that nothing is learned."""
    (steps, rewards), shares = series(curves, names.REWARD), series(curves, names.UNIFORM)[1]
    if len(shares) >= UNIFORM_SHARE.patience and rewards and max(rewards) <= 0 and min(shares) >= 1:
        said = f"no reward of {len(rewards)} updates is above 0, and all scores of each group are equal"
        remedy = "Take easier problems, and look at the reward's form: make data +show=3"
        yield Finding("no reward", steps[0], "likely", said, remedy)


def unread(curves: Curves, facts: Facts) -> Iterator[Finding]:
    """Answers that the verifier cannot read from the first batch on."""
    steps, shares = series(curves, names.UNREAD)
    cut = dict(zip(*series(curves, names.CUT), strict=True))
    if steps and (share := shares[0] - cut.get(steps[0], 0.0)) > UNREAD_AT_FIRST:
        said = f"{share:.0%} of the first answers ended, but have no answer that the verifier reads"
        remedy = "Look at prompts with make data +show=3: chat template, end of turn, and the reward's format"
        yield Finding("answers unread", steps[0], "likely", said, remedy)


def cut(curves: Curves, facts: Facts) -> Iterator[Finding]:
    """Answers at the token limit."""
    shares = series(curves, names.CUT)
    if (index := first_on(CUT_SHARE, shares)) is not None:
        said = f"{shares[1][index]:.0%} of the answers reach the token limit, {shares[1][-1]:.0%} at the end"
        remedy = "Raise scale.max_new_tokens, or lower the length of answers (overlong rewards)"
        yield Finding("answers cut", shares[0][index], "certain", said, remedy)


def verifier(curves: Curves, facts: Facts) -> Iterator[Finding]:
    """Equal texts with different verdicts."""
    counts, shares = series(curves, names.CONTRADICTED), series(curves, names.ACCEPTED)
    if (index := first_on(Detector(above=TWICE - 0.5), counts)) is None:
        return
    share, accepts = shares[1][-1], shares[1][-1] < 0.5
    name = "verifier accepts wrong answers" if accepts else "verifier refuses right answers"
    said = f"{counts[1][-1]:.0f} recorded texts were judged both right and wrong, right in {share:.0%}"
    remedy = "Read their rows in rollouts.jsonl; a verdict must depend on nothing but problem and answer"
    yield Finding(name, counts[0][index], "likely", said, remedy)


def distance(curves: Curves, facts: Facts) -> Iterator[Finding]:
    """A policy that is far from the one that sampled its data, because of its steps or of their age."""
    after, moved = averages(series(curves, names.REWARD))[1], series(curves, names.MOVED)
    has_fallen = bool(after) and max(after) > 0 and after[-1] < FALLEN * max(after)
    looks = [
        (facts.detectors["effective"], names.EFFECTIVE, series(curves, names.EFFECTIVE)),
        (facts.detectors["divergence"], names.MOVED, moved),
        (Detector(above=FAR if has_fallen else None), f"mean {names.MOVED}", averages(moved)),
    ]
    exceeded = [
        (curve[0][index], f"{name} is {curve[1][index]:.2g}")
        for detector, name, curve in looks
        if (index := first_on(detector, curve)) is not None
    ]
    if not exceeded:
        return
    since, said = min(exceeded)
    age = fmean(_since(series(curves, names.AGE), since) or [math.nan])
    if age >= OLD:
        said += f", and data are {age:.0f} updates old"
        remedy = "Lower regime.epochs, regime.minibatches or regime.max_age, or take a correction"
        yield Finding("data too old", since, "likely", said, remedy)
        return
    said += ", whatever the age of its data" if math.isnan(age) else f", while data are {age:.1f} updates old"
    said += "; the reward has fallen to less than half" if has_fallen else ""
    remedy = "Lower optimizer.optimizer.lr to a third or a tenth, with a warm-up"
    yield Finding("rate too high", since, "likely" if has_fallen else "possible", said, remedy)


def collapse(curves: Curves, facts: Facts) -> Iterator[Finding]:
    """Answers that have become equal, or a policy without entropy, before the problems are solved."""
    uniform, entropy = series(curves, names.UNIFORM), averages(series(curves, names.ENTROPY))
    rewards = averages(series(curves, names.REWARD))[1]
    if not rewards or not UNSOLVED[0] <= rewards[-1] <= UNSOLVED[1]:
        return
    low = replace(facts.detectors["entropy"], above=None)
    remedy = "Raise algorithm.positive_share_target or the upper bound, lower the rate, or algorithm=dapo"
    alarmed, equal = first_on(low, entropy), first_on(UNIFORM_SHARE, uniform)
    if alarmed is not None and entropy[1][-1] < entropy[1][0]:
        said = f"entropy {entropy[1][0]:.2g}, later {entropy[1][-1]:.2g}, at a reward of {rewards[-1]:.2f}"
        yield Finding("entropy collapse", entropy[0][alarmed], "likely", said, remedy)
    elif equal is not None:
        early, late = map(fmean, _thirds(uniform[1]))
        before, after = map(fmean, _thirds(series(curves, names.REWARD)[1]))
        if late > UNIFORM_GROWN * early and after <= before + RISEN:
            said = f"groups of equal scores {early:.0%}, later {late:.0%}, at a reward of {rewards[-1]:.2f}"
            yield Finding("equal answers", uniform[0][equal], "likely", said, remedy)


def explosion(curves: Curves, facts: Facts) -> Iterator[Finding]:
    """An entropy that has become a multiple of its first values, while the reward has fallen."""
    steps, entropies = series(curves, names.ENTROPY)
    rewards = averages(series(curves, names.REWARD))[1]
    if len(entropies) < WINDOW or not rewards or not 0 < FALLEN * max(rewards) > rewards[-1]:
        return
    usual = fmean(entropies[:WINDOW])
    high = Detector(above=EXPLODED * usual, patience=facts.detectors["entropy"].patience)
    if usual > 0 and (index := first_on(high, (steps, entropies))) is not None:
        said = f"entropy {usual:.2g}, at most {max(entropies):.2g}, reward less than half"
        remedy = "Lower the bonus for entropy, the upper bound (algorithm.bounds.high), or the rate"
        yield Finding("entropy explosion", steps[index], "likely", said, remedy)


CAUSES: tuple[Callable[[Curves, Facts], Iterator[Finding]], ...] = (
    engine,
    skipped,
    unread,
    verifier,
    cut,
    unrewarded,
    distance,
    collapse,
    explosion,
)
