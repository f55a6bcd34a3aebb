"""Generation during training (`regime=async`) against generation in turns with it (`regime=replay`, one
epoch), on two cores.

    python bench/async_overlap.py [tiny | vllm] [--repeats 3] [--batches 24] [--prompts 64]
                                  [--lengths log_normal ...] [--rows 128]

With `--lengths` (shapes of `forced_lengths`, up to 112 tokens in the tiny world) `regime=stream` is measured
against `regime=async`, and in `vllm` as well. There the engine samples `--rows` responses at once: with few,
a step takes about as long for one as for all, as where it reads a large model's weights; what it takes is
printed. Else kinds of runs take turns, each a `python -m bapo_lightning.cli.train` of its own with the same
sizes and minibatches:

    async       trainer on the first core with one thread, engine in its own process on the second with one
                thread
    in turns    the same processes, cores and threads; only the overlap is missing
    one process engine in the trainer's process, both cores and two threads for the one of the two that works:
                the usual setup

Seconds per update are those of `time/step_seconds` without the first two rollout batches and the last, during
which an asynchronous run has nothing to generate. Idle is the trainer while it waits for groups, and the
engine while it does not sample. "Others" is the share of both cores that other processes took meanwhile.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, get_args

import psutil
import run_comparison
import torch
from forced_lengths import Shape
from measuring import Spread, alternating, bench_parser, ratio, write_json

from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.rollout.engine import MERGED, GenerationRequest, SamplingParams, Wanted, weights_of
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.runs.command import number_type
from bapo_lightning.system.run_folder.record import read_rows
from bapo_lightning.system.values import Count, SecondsOrZero

QUIET = [f"callbacks.{name}.every=0" for name in ("validation", "entropy_rule")]
QUIET += [f"callbacks.{name}.every=100000" for name in ("rollout_writer", "console", "checkpoint")]
MODEL = "package://bapo_lightning/tiny_worlds/additions/model"
STEPS = 64  # of which a decoding step's time is the mean
WARM_UP = 2  # rollout batches that are not counted, and one at the end


@dataclass(frozen=True)
class World:
    """What is trained. In `tiny` both halves cost about the same on one core each; in `vllm` an update costs
    several times its rollouts.
    """

    options: list[str]
    child: list[str]  # the engine in its own process
    inside: list[str]  # the same engine in the trainer's process
    updates: int  # per rollout batch
    batches: int
    repeats: int


WORLDS = {
    "tiny": World(
        ["experiment=additions"],
        ["rollout=hf_child", "rollout.engine.make_engine.max_rows=96"],
        ["rollout=hf", "rollout.engine.max_rows=96"],
        updates=4,
        batches=24,
        repeats=3,
    ),
    "vllm": World(
        ["experiment=smollm2_arithmetic", "scale.prompts_per_batch=2"],
        ["rollout=vllm_child"],
        ["rollout=vllm"],
        updates=2,
        batches=6,
        repeats=1,
    ),
}


@dataclass(frozen=True)
class Measured:
    """Of one run; seconds are per rollout batch but for the first."""

    update: float
    generation: float
    training: float
    hand_over: float
    trainer_idle: float  # shares of the wall clock
    engine_idle: float
    others: float


def forced(world: World, shape: Shape, rows: int) -> World:
    """The tiny world with long responses, of lengths of a shape, so many at once."""
    engine = "rollout.engine.make_engine"
    child = ["rollout=hf_child", f"{engine}._target_=forced_lengths.ForcedLengths"]
    child += [f"+{engine}.shape={shape}", f"{engine}.max_rows={rows}"]
    sizes = ["scale.max_new_tokens=112", "scale.overlong_buffer=16", "scale.micro_batch_tokens=4096"]
    return replace(world, options=[*world.options, *sizes], child=child)


def streamed(world: World, first: int, second: int) -> dict[str, tuple[list[str], set[int]]]:
    """Overlapping generation in passes and in a stream."""
    in_passes, cores = kinds(world, first, second)["async"]
    in_stream = [option.replace("regime=async", "regime=stream") for option in in_passes]
    return {"async": (in_passes, cores), "stream": (in_stream, cores)}


def kinds(world: World, first: int, second: int) -> dict[str, tuple[list[str], set[int]]]:
    in_turns = ["regime=replay", "regime.epochs=1"]
    apart = [*world.child, "cpu_threads=1", "rollout.engine.cpu_threads=1"]
    apart.append(f"rollout.engine.cpu_affinity=[{second}]")
    return {
        "async": (["regime=async", f"regime.max_age={2 * world.updates - 1}", *apart], {first}),
        "in turns": ([*in_turns, *apart], {first}),
        "one process": ([*in_turns, *world.inside, "cpu_threads=2"], {first, second}),
    }


def measure(
    world: World, batches: int, options: list[str], cores: set[int], quiet_seconds: float
) -> Measured:
    wait_for_quiet(quiet_seconds)
    with tempfile.TemporaryDirectory() as outputs:
        folder = Path(outputs, "run")
        start, mine, busy = time.perf_counter(), process_seconds(), busy_seconds()
        train(folder, world, batches, [*options, *QUIET], cores)
        wall = time.perf_counter() - start
        others = (busy_seconds() - busy - (process_seconds() - mine)) / (wall * (os.cpu_count() or 1))
        rows = read_rows(folder)
    if len(rows) != batches * world.updates:
        sys.exit(f"{len(rows)} updates were made instead of {batches * world.updates}")
    return evaluated(
        rows[WARM_UP * world.updates : -world.updates], world, "regime=replay" not in options, others
    )


def train(folder: Path, world: World, batches: int, options: list[str], cores: set[int]) -> None:
    sizes = [f"regime.minibatches={world.updates}", f"scale.num_rollout_batches={batches}"]
    pinned = partial(os.sched_setaffinity, 0, cores)
    run_comparison.train(
        folder,
        [*world.options, *options, *sizes],
        preexec_fn=pinned,
        OMP_WAIT_POLICY="PASSIVE",
        PYTHONPATH=os.pathsep.join([str(run_comparison.ROOT / "src"), str(Path(__file__).parent)]),
    )


def evaluated(rows: list[dict[str, float]], world: World, overlaps: bool, others: float) -> Measured:
    step, rollout, reward, sync, wait = (
        sum(row.get(f"time/{part}_seconds", 0.0) for row in rows)
        for part in ("step", "rollout", "reward", "sync", "wait")
    )
    waited = wait if overlaps else wait + rollout + reward
    count = len(rows) / world.updates
    return Measured(
        update=step / len(rows),
        generation=(rollout + reward) / count,
        training=(step - waited - sync) / count,
        hand_over=sync / count,
        trainer_idle=waited / step,
        engine_idle=max(0.0, 1 - rollout / step),  # beside counted updates it may sample for others
        others=others,
    )


def step_seconds(rows: int) -> float:
    """Of the engine in the tiny world, with so many responses, in this process."""
    torch.set_num_threads(1)
    engine = HFEngine(model_path(MODEL), max_rows=rows, device="cpu")
    engine.load_weights(Unchanged(engine), 0)
    requests = [GenerationRequest(array("i", [1] * 8), STEPS, seed) for seed in range(rows)]
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        engine.generate(requests, SamplingParams(1.0, ()))
        taken.append((time.perf_counter() - start) / STEPS)
    return median(taken)


@dataclass(frozen=True)
class Unchanged:
    """The weights that an engine began with."""

    engine: HFEngine

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        yield from weights_of(self.engine._model)


def two_cores() -> tuple[int, int]:
    """The first two cores that this process may use: trainer's and engine's."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("two cores are needed")
    return cores[0], cores[1]


def process_seconds() -> float:
    """CPU time of this process and of all below it that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in used)


def busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def wait_for_quiet(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while seconds and psutil.cpu_percent(interval=1) > 5 and time.perf_counter() < end:
        pass


def show(name: str, runs: list[Measured]) -> None:
    middle = {key: median(getattr(run, key) for run in runs) for key in Measured.__dataclass_fields__}
    update = Spread.of([run.update for run in runs])
    print(
        f"{name:12} update {update.text('ms', 1e3, 1)}  of a rollout batch: generation "
        f"{middle['generation']:6.3f} s, training {middle['training']:6.3f} s, weights "
        f"{middle['hand_over']:5.3f} s  idle: trainer {middle['trainer_idle']:4.0%}, engine "
        f"{middle['engine_idle']:4.0%}  others {middle['others']:4.0%}"
    )


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("world", nargs="?", choices=sorted(WORLDS), default="tiny")
    parser.add_argument("--repeats", type=number_type(Count), help="of each kind of run")
    parser.add_argument("--batches", type=number_type(Count), help="rollout batches of a run")
    parser.add_argument(
        "--quiet-seconds",
        type=number_type(SecondsOrZero, "seconds"),
        default=20,
        help="that a run waits at most for other processes to leave the cores",
    )
    parser.add_argument("--prompts", type=number_type(Count), help="of a rollout batch")
    parser.add_argument("--lengths", nargs="+", choices=get_args(Shape), help="of responses, in tiny")
    parser.add_argument("--rows", type=number_type(Count), default=128, help="at once, with --lengths")
    arguments = parser.parse_args()
    if arguments.lengths and arguments.world != "tiny":
        parser.error("--lengths are those of the tiny world")
    world = WORLDS[arguments.world]
    if arguments.prompts is not None:
        world = replace(world, options=[*world.options, f"scale.prompts_per_batch={arguments.prompts}"])
    repeats, batches = arguments.repeats or world.repeats, arguments.batches or world.batches
    cores = two_cores()
    counted = f"{batches - WARM_UP - 1} of {batches} rollout batches counted"
    print(f"{' '.join([*world.options, *world.child])}: {world.updates} updates per rollout batch, {counted}")
    print(f"method: {repeats} runs of each kind in turns; median (least .. most)")
    if arguments.lengths:
        one, all_rows = (1e3 * step_seconds(rows) for rows in (1, arguments.rows))
        print(f"a decoding step takes {one:.2f} ms with one response, {all_rows:.2f} with {arguments.rows}")
    results = {}
    for shape in arguments.lengths or [None]:
        at = world if shape is None else forced(world, shape, arguments.rows)
        compared = kinds(at, *cores) if shape is None else streamed(at, *cores)
        if arguments.world == "vllm":
            compared |= streamed(at, *cores)
        print(f"lengths: {shape or 'of the policy'}", flush=True)
        results[shape or "own"] = compare(at, batches, compared, repeats, arguments.quiet_seconds)
    write_json(arguments.json, {"arguments": vars(arguments), **results})


def compare(
    world: World,
    batches: int,
    compared: dict[str, tuple[list[str], set[int]]],
    repeats: int,
    quiet_seconds: float,
) -> dict[str, Any]:
    """Prints and returns what runs of each kind took."""
    runs: dict[str, list[Measured]] = {}
    for number in range(repeats):
        for name in alternating(compared, number):
            options, where = compared[name]
            runs.setdefault(name, []).append(measure(world, batches, options, where, quiet_seconds))
    for name, measured in runs.items():
        show(name, measured)
    ratios = {}
    for name in [name for name in runs if name != "async"]:
        ratios[name] = ratio([run.update for run in runs[name]], [run.update for run in runs["async"]])
        print(f"{name} / async: {ratios[name].text()} of neighbouring runs")
    updates = {name: Spread.of([run.update for run in measured]) for name, measured in runs.items()}
    return {"runs": runs, "update_seconds": updates, "to_async": ratios}


if __name__ == "__main__":
    main()
