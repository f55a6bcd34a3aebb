"""Runs in virtual time (`make simulate`) beside real runs of the same settings, on two cores.

    python bench/simulation.py [--repeats 3] [--batches 24]

The additions are trained as in `async_overlap.py`: trainer on the first core, engine in a process of its own
on the second, one thread each. Each run is simulated twice: with its own service times (mean and jitter of
sampling by token, of updates and of syncs), and with those of the run that takes turns, which says what a run
with another regime will do before it is made; a stream with its own alone, since passes do not tell the time
of a decoding step. Idle is the trainer while it waits for groups, and the engine while no pass runs; ages are
those of the tokens in each update. In turns, ages have to be equal exactly.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from async_overlap import QUIET, WARM_UP, WORLDS, kinds, streamed, train, two_cores, wait_for_quiet
from measuring import Spread, bench_parser, write_json

from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.rollouts.schedule import Row
from bapo_lightning.extras.simulation.configured import lengths_of
from bapo_lightning.extras.simulation.run import Setting, VirtualRun
from bapo_lightning.extras.simulation.study import outcome_of
from bapo_lightning.extras.simulation.times import ServiceTimes, measured_times
from bapo_lightning.runs.command import number_type
from bapo_lightning.system.run_folder.record import SCHEDULE_FILE, RunRecord, read_run
from bapo_lightning.system.values import SecondsOrZero

WORLD = WORLDS["tiny"]
U = WORLD.updates
OVERLAPPING = {
    "async, max_age 7": ["regime.max_age=7"],
    "async, max_age 15": ["regime.max_age=15"],
    "async, max_age 15, passes of 2 tokens": ["regime.max_age=15", "regime.partial_tokens=2"],
}
STREAMS = {"stream, max_age 7": ["regime.max_age=7"], "stream, max_age 15": ["regime.max_age=15"]}
TURNS = "in turns"


@dataclass(frozen=True)
class Look:
    """Of a run, real or simulated, without the first rollout batches and the last."""

    update_seconds: float
    trainer_idle: float  # shares of the time
    engine_idle: float
    age_mean: float  # of trained tokens, in updates
    age_max: int
    entry_ages: dict[int, float]  # share of groups by the age of their oldest token when they enter training


def main() -> None:
    parser = bench_parser(__doc__, repeats=3, batches=24)
    parser.add_argument(
        "--quiet-seconds",
        type=number_type(SecondsOrZero, "seconds"),
        default=20,
        help="to wait at most for quiet cores",
    )
    arguments = parser.parse_args()
    cores = two_cores()
    turns = kinds(WORLD, *cores)[TURNS][0]
    settings = {TURNS: turns}
    for kind, tried in (("async", OVERLAPPING), ("stream", STREAMS)):
        shared = streamed(WORLD, *cores)[kind][0]
        settings |= {name: [*shared, *options] for name, options in tried.items()}
    looks_of: dict[str, list[dict[str, Look]]] = {name: [] for name in settings}
    with tempfile.TemporaryDirectory() as outputs:
        for number in range(arguments.repeats):
            times_of_turns = None
            for name, options in settings.items():
                wait_for_quiet(arguments.quiet_seconds)
                folder = Path(outputs, f"{number}-{name.replace(' ', '_').replace(',', '')}")
                quiet = [option for option in QUIET if "rollout_writer" not in option]
                quiet.append("callbacks.rollout_writer.every=20")
                train(folder, WORLD, arguments.batches, [*options, *quiet], {cores[0]})
                record = read_run(folder)
                times = measured_times(record, number)
                times_of_turns = times_of_turns or times
                looks = {"measured": real(record), "from its own times": simulated(record, times, number)}
                if name == TURNS:
                    check_equal_ages(record, times)
                elif name in OVERLAPPING:
                    looks["from the times of turns"] = simulated(record, times_of_turns, number)
                looks_of[name].append(looks)
    show(looks_of)
    write_json(
        arguments.json,
        {
            "arguments": vars(arguments),
            "runs": {
                name: [{who: asdict(look) for who, look in looks.items()} for looks in runs]
                for name, runs in looks_of.items()
            },
        },
    )


def real(record: RunRecord) -> Look:
    overlaps = bool(record.config["regime"]["async_generation"])
    rows = record.rows[WARM_UP * U : -U]
    parts = {
        part: sum(float(row.get(f"time/{part}_seconds") or 0.0) for row in rows)
        for part in ("step", "rollout", "reward", "wait")
    }
    # A stream's rewards are given beside its steps.
    is_stream = record.config["regime"]["stream"] is not None
    generation = parts["rollout"] + (0.0 if is_stream else parts["reward"])
    waited = parts["wait"] + (0.0 if overlaps else generation)
    return Look(
        update_seconds=parts["step"] / len(rows),
        trainer_idle=waited / parts["step"],
        engine_idle=max(0.0, 1 - generation / parts["step"]),
        age_mean=fmean(row["staleness/age_mean"] for row in rows),
        age_max=int(max(row["staleness/age_max"] for row in rows)),
        entry_ages=entry_ages(record.path),
    )


def setting_of(record: RunRecord, seed: int) -> Setting:
    config = validate(record.config, "run")
    scale = config.scale
    return Setting(
        regime=config.staleness,
        group_size=scale.group_size,
        groups_per_batch=scale.prompts_per_batch,
        num_batches=scale.num_rollout_batches,
        lengths=lengths_of(record),
        rules=config.algorithm.make_rules(),
        seed=seed,
        is_endless=False,
    )


def simulated(record: RunRecord, times: ServiceTimes, seed: int) -> Look:
    with tempfile.TemporaryDirectory() as folder:
        overlaps = bool(record.config["regime"]["async_generation"])
        run = VirtualRun(setting_of(record, seed), times, Path(folder, SCHEDULE_FILE) if overlaps else None)
        run.run()
        entered = entry_ages(Path(folder))
    outcome = outcome_of(run, WARM_UP, left_out=1)
    counted = run.updates[WARM_UP * U : -U]
    return Look(
        update_seconds=outcome.seconds / len(counted),
        trainer_idle=outcome.trainer_waits,
        engine_idle=outcome.fleet_waits,
        age_mean=fmean(mean_age(update.ages) for update in counted),
        age_max=max(max(update.ages) for update in counted),
        entry_ages=entered,
    )


def check_equal_ages(record: RunRecord, times: ServiceTimes) -> None:
    run = VirtualRun(setting_of(record, 0), times)
    run.run()
    for row, update in zip(record.rows, run.updates, strict=True):
        if (row["staleness/age_mean"], row["staleness/age_max"]) != (mean_age(update.ages), max(update.ages)):
            sys.exit(f"update {row['step']}: ages {update.ages} are simulated, the run has others")


def mean_age(ages: Counter[int]) -> float:
    return sum(age * count for age, count in ages.items()) / ages.total()


def entry_ages(folder: Path) -> dict[int, float]:
    """Share of the groups that enter training, by the age of their oldest token; {} without a schedule."""
    if not (path := folder / SCHEDULE_FILE).is_file():
        return {}
    oldest: dict[str, int] = {}
    ages: Counter[int] = Counter()
    version = 0
    for line in path.read_text().removesuffix("\n").split("\n"):
        row: Row = json.loads(line)
        match row["do"]:
            case "visit":
                version = row["version"]
            case "pass":
                for name, _ in row["requests"]:
                    oldest.setdefault(name, row["version"])
            case "take":
                ages.update(version - oldest.pop(name) for name in row["groups"])
    return {age: count / ages.total() for age, count in sorted(ages.items())}


def show(looks_of: dict[str, list[dict[str, Look]]]) -> None:
    for name, runs in looks_of.items():
        print(f"\n{name}: {len(runs)} runs, median (least .. most)")
        for who in runs[0]:
            looks = [looks[who] for looks in runs]
            print(
                f"  {who:26} update {text([1e3 * look.update_seconds for look in looks], 1)} ms  idle: "
                f"trainer {text([100 * look.trainer_idle for look in looks])} %, engine "
                f"{text([100 * look.engine_idle for look in looks])} %  age: mean "
                f"{text([look.age_mean for look in looks], 2)}, most {text([look.age_max for look in looks])}"
            )
            if who != "measured":
                print(f"  {'':26} {against_measured(runs, who)}")
            ages = sorted({age for look in looks for age in look.entry_ages})
            shares = {age: fmean(look.entry_ages.get(age, 0.0) for look in looks) for age in ages}
            if shares:
                spread = ", ".join(f"{age}: {share:.0%}" for age, share in shares.items() if share >= 0.005)
                print(f"  {'':26} groups enter at age {spread}")
    print(f"\nages of every update {TURNS} are those of the simulation, exactly")


def against_measured(runs: list[dict[str, Look]], who: str) -> str:
    pairs = [(looks[who], looks["measured"]) for looks in runs]
    times = [look.update_seconds / measured.update_seconds for look, measured in pairs]
    trainer = [100 * (look.trainer_idle - measured.trainer_idle) for look, measured in pairs]
    engine = [100 * (look.engine_idle - measured.engine_idle) for look, measured in pairs]
    ages = [look.age_mean - measured.age_mean for look, measured in pairs]
    return (
        f"to measured: update x {text(times, 2)}, idle: trainer {text(trainer)} points, engine "
        f"{text(engine)} points, mean age {text(ages, 2)}"
    )


def text(values: list[float], digits: int = 0) -> str:
    return Spread.of(values).text(digits=digits)


if __name__ == "__main__":
    main()
