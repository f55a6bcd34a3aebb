"""Findings of the doctor in the runs of the corpus: detection, delay and false alarms, by cause."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import binomtest

from bapo_lightning.system.run_folder.record import read_lines
from bapo_lightning.tools.doctor.causes import Facts, Finding, diagnose, facts_of
from bapo_lightning.tools.doctor.curves import ENTROPY, REWARD, Curves
from bapo_lightning.tools.doctor.staleness import Kind, staleness
from studies.doctor.corpus import CorpusConfig, SickRun, expanded, runs_of
from studies.map.kept import KeptRuns, Line

STEP = 4  # updates between two readings of a run
NOTHING = "nothing"
FITTED = ("healthy", "pinned", "canary_temperature")  # whose fits the page shows
Others = Mapping[str, Mapping[str, list[str]]]  # doctor -> run -> findings
KEPT = {"reward": REWARD, "entropy": ENTROPY}  # names in other studies -> metrics


@dataclass(frozen=True)
class Judged:
    """The doctor's finding at the end of a run, and the update at which it first made it."""

    run: SickRun
    said: str  # the first finding
    kind: Kind | None  # of `staleness`
    delay: int | None = None  # updates from the fault to the first reading with the right cause

    @property
    def judges(self) -> bool:
        """Whether no threshold was set by a run of this seed."""
        return self.run.seed % 2 == 1


def judge(config: CorpusConfig, kept: KeptRuns) -> list[Judged]:
    runs = [run for run in runs_of(config) if run.name in kept]
    return [judged(config, run, expanded(kept.curves(run.name))) for run in runs]


def judged(config: CorpusConfig, run: SickRun, curves: Curves) -> Judged:
    """Looks at the whole run, and at its beginnings to date the first right verdict."""
    facts = Facts(facts_of({}).detectors, any(text.startswith("model/lora=") for text in run.overrides))
    said, mismatch = first_cause(diagnose(curves, facts)), staleness(curves, facts)
    kind = mismatch.kind if mismatch else None
    cause = config.causes.get(run.cause)
    if cause is None or cause.finding is None or said != cause.finding:
        return Judged(run, said, kind)
    length = 1 + max(steps[-1] for steps, _ in curves.values())
    ends = [end for end in range(STEP, length + STEP, STEP) if end > cause.onset]
    seen = next(end for end in ends if first_cause(diagnose(until(curves, end), facts)) == said)
    return Judged(run, said, kind, min(seen, length) - cause.onset)


def until(curves: Curves, end: int) -> Curves:
    """Curves as they were before an update."""
    earlier = {}
    for name, (steps, values) in curves.items():
        count = sum(step < end for step in steps)
        earlier[name] = steps[:count], values[:count]
    return earlier


def first_cause(findings: Sequence[Finding]) -> str:
    return findings[0].cause if findings else NOTHING


def read_others(file: Path) -> dict[str, dict[str, list[str]]]:
    """Findings of other doctors, by doctor with its version and by run; none without the file."""
    lines = [json.loads(line) for line in file.open(encoding="utf-8")] if file.exists() else []
    versions = lines[0]["versions"] if lines else {}
    return {
        f"{name} {number}": {line["run"]: line[name] for line in lines[1:]}
        for name, number in versions.items()
    }


def table(config: CorpusConfig, results: Sequence[Judged], others: Others) -> Iterator[list[str]]:
    """Rows of the confusion table."""
    yield [
        "run",
        "right, seeds that judge",
        "right, seeds that set",
        "delay, updates",
        "said instead",
        "`--staleness` right",
        *(f"{name}: names, finds" for name in others),
    ]
    for name in (*config.causes, *config.twins):
        cause = config.causes.get(name)
        wanted = NOTHING if cause is None else cause.finding
        peers = [each for each in results if each.run.cause == name]
        delays = [each.delay for each in peers if each.delay is not None]
        instead = Counter(each.said for each in peers if each.said != wanted)
        yield [
            name.replace("_", " "),
            share([each.said == wanted for each in peers if each.judges]),
            share([each.said == wanted for each in peers if not each.judges]),
            f"{median(delays):.0f} ({min(delays)} to {max(delays)})" if delays else "",
            ", ".join(f"{said} {count}" for said, count in instead.items()),
            share([each.kind == config.kind(name) for each in peers]),
            *(", ".join(map(str, _of_other(config, name, peers, findings))) for findings in others.values()),
        ]


def fits(config: CorpusConfig, kept: KeptRuns) -> Iterator[list[str]]:
    """Rows of what `staleness` fits in three runs of the first seed, in updates."""
    yield ["run", "on age", "on time", "at age 0"]
    first = [run for run in runs_of(config) if run.cause in FITTED and run.seed == 0 and run.name in kept]
    for run in sorted(first, key=lambda run: FITTED.index(run.cause)):
        measured = staleness(expanded(kept.curves(run.name)), Facts(facts_of({}).detectors))
        if measured is not None and measured.fits:
            best = measured.fits[0]
            parts = (best.age, best.time, best.fresh)
            yield [run.cause.replace("_", " "), *("" if each is None else each.text(4) for each in parts)]


def _of_other(
    config: CorpusConfig, name: str, peers: Sequence[Judged], findings: Mapping[str, list[str]]
) -> tuple[int | str, int]:
    """Number of runs whose cause another doctor names, "-" if it has none for it, and with any finding."""
    lists = [findings.get(each.run.name, []) for each in peers]
    known = {*config.named.get(name, [])}
    return sum(bool(known & {*each}) for each in lists) if known else "-", sum(map(bool, lists))


def share(hits: Sequence[bool]) -> str:
    return f"{sum(hits)} of {len(hits)}"


def summary(config: CorpusConfig, results: Sequence[Judged], others: Others) -> list[str]:
    """Detection and false alarms over all seeds that judge, of other doctors over all, with 95% intervals."""
    sick = [each for each in results if each.judges and each.run.cause in config.causes]
    healthy = [each for each in results if each.judges and each.run.cause in config.twins]
    named = [each.said == config.causes[each.run.cause].finding for each in sick]
    counts: dict[str, list[bool]] = {
        "Sick runs whose first finding names the cause": named,
        "Sick runs with any finding": [each.said != NOTHING for each in sick],
        "Healthy twins with a finding": [each.said != NOTHING for each in healthy],
        "Runs on which `--staleness` is right": [
            each.kind == config.kind(each.run.cause) for each in (*sick, *healthy)
        ],
    }
    for name, findings in others.items():
        for kind, causes in (("sick runs", config.causes), ("healthy twins", config.twins)):
            runs = [each.run.name for each in results if each.run.cause in causes]
            counts |= {f"{name}, {kind} with a finding": [bool(findings.get(run)) for run in runs]}
    return [f"{text}: {share(hits)}{interval(hits)}." for text, hits in counts.items() if hits]


def interval(hits: Sequence[bool]) -> str:
    bounds = binomtest(sum(hits), len(hits)).proportion_ci(method="wilson")
    return f" ({bounds.low:.2f} to {bounds.high:.2f})"


def kept_elsewhere(path: Path) -> list[str]:
    """Findings in curves that other studies keep, if they are of reward and entropy."""
    said: Counter[str] = Counter()
    points: set[int] = set()
    others = (file for file in sorted(path.parent.glob("*.jsonl")) if file.resolve() != path.resolve())
    for line in (line for file in others for line in read_lines(file, Line, "restore it")):
        if KEPT.keys() <= line["curves"].keys():
            curves = {name: np.array(line["curves"][short], float) for short, name in KEPT.items()}
            said[first_cause(diagnose(expanded(curves), facts_of({})))] += 1
            points |= {len(values) for values in curves.values()}
    texts = ", ".join(f"{cause} {count}" for cause, count in said.most_common())
    known = f"of which {min(points)} to {max(points)} points of reward and entropy are known" if said else ""
    return [f"Runs that other studies keep, {known}: {texts}."] if said else []
