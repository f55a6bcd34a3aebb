"""Seconds per rollout batch and per update of TRL's GRPOTrainer and of this package, on the same job and this
machine's CPU.

    python bench/against_trl.py tiny --cycles 5
    python bench/against_trl.py smollm2 --cycles 3 --engines hf vllm --trl float32 mixed

A cycle is one rollout batch and all updates on it. Cycles take turns; the first of each side includes its
start and is not counted. docs/results/benchmarks.md says what both sides have in common. Ours computes as
`trainer.precision=auto` chooses, or as `--ours` says, TRL in each of `--trl`, of which the fastest is
compared with.

rollout: from prompts to scored responses. Ours includes the transfer of weights, TRL's the log-probs that it
recomputes. update: everything else, divided by the number of updates.

TRL's settings are in bench/trl_job.py; `--trl-options '{"beta": 0.1}'` tries others.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lightning.pytorch.loggers import Logger
from measuring import Spread, bench_parser, method, ratio, write_json
from turns import Turns, Worker

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.validate import validate
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.runs.inputs import read_inputs

ROOT = Path(__file__).resolve().parents[1]
TRL_PYTHON = ROOT / ".venv-trl" / "bin" / "python"
LEARNING_RATE = 1e-7
LABELS = {"wall": "cycle", "cpu": "cycle, CPU", "rollout": "rollout batch", "update": "update"}
NUM_PROBLEMS = 512  # largest number of different problems
QUIET = [f"callbacks.{name}.every=0" for name in ("validation", "entropy_rule")]
QUIET += [f"callbacks.{name}.every=1000000" for name in ("rollout_writer", "console", "checkpoint")]


@dataclass(frozen=True)
class Job:
    options: list[str]  # overrides of our run
    epochs: int
    minibatches: int
    engines: dict[str, list[str]]

    @property
    def updates(self) -> int:
        return self.epochs * self.minibatches


# Options of TRL's side by the way that it computes. Weights in bfloat16 are not equal work: small updates
# vanish in them.
TRL_VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "mixed": {"bf16": True},
    "bfloat16": {"model_init_kwargs": {"dtype": "bfloat16"}},
    "compiled": {"torch_compile": True},
    "mixed-compiled": {"bf16": True, "torch_compile": True},
}
TINY = ["experiment=additions"]
SMOLLM2 = [
    "experiment=smollm2_arithmetic",
    "reward=last_number",
    "scale.prompts_per_batch=2",
    "scale.max_new_tokens=32",
]
JOBS = {
    "tiny": Job(TINY, epochs=2, minibatches=4, engines={"hf": ["rollout=hf"]}),
    "smollm2": Job(
        SMOLLM2, epochs=1, minibatches=2, engines={"hf": ["rollout=hf"], "vllm": ["rollout=vllm"]}
    ),
}


class TurnLogger(Logger):
    """Ends the turn of our side, an ordinary run, after each cycle of updates."""

    name, version = "turns", ""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self._updates, self._turns, self._rollout = updates, Turns(), 0.0

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        if step % self._updates == 0:  # the first update of a cycle carries the cost of its rollouts
            parts = ("rollout", "reward", "sync")
            self._rollout = sum(metrics[f"time/{part}_seconds"] for part in parts)
            self._tokens, self._samples = metrics["rollout/num_tokens"], metrics["rollout/num_samples"]
        if (step + 1) % self._updates == 0:
            self._turns.hand_over(
                {"rollout": self._rollout, "tokens": self._tokens, "samples": self._samples}
            )


def our_overrides(job: Job, engine: str, threads: int, ours: Sequence[str] = ()) -> list[str]:
    return [
        *(*job.options, *job.engines[engine], *ours, "algorithm=grpo", "regime=replay"),
        *(f"regime.epochs={job.epochs}", f"regime.minibatches={job.minibatches}"),
        *(f"optimizer.optimizer.lr={LEARNING_RATE}", "scale.num_rollout_batches=100000"),
        *(f"cpu_threads={threads}", *QUIET),
    ]


def trl_job(
    job: Job, config: dict[str, Any], threads: int, options: dict[str, Any], folder: Path
) -> dict[str, Any]:
    run = validate(config)
    inputs, scale = read_inputs(run), run.scale
    problems = []
    for problem in inputs.problems.train[:NUM_PROBLEMS]:
        ids = inputs.prompt(inputs.tokenizer, problem).tolist()
        problems.append({"prompt": inputs.tokenizer.decode(ids), "ids": ids, "answer": problem.answer})
    return {
        "model": model_path(run.model.path),
        "problems": problems,
        "reward": run.reward.name.rpartition(".")[2],
        **{key: getattr(scale, key) for key in ("prompts_per_batch", "group_size", "max_new_tokens")},
        **{"epochs": job.epochs, "minibatches": job.minibatches},
        "learning_rate": LEARNING_RATE,
        "threads": threads,
        "options": options,
        "folder": str(folder),
    }


def commands(job: Job, given: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    threads, lines = given.threads, {}
    config = compose_run([*our_overrides(job, given.engines[0], threads), f"run_folder={folder}"])
    for variant in given.trl:
        description = folder / f"{variant}.json"
        options = TRL_VARIANTS[variant] | given.trl_options
        description.write_text(json.dumps(trl_job(job, config, threads, options, folder / f"trl-{variant}")))
        lines[f"TRL, {variant}"] = [str(TRL_PYTHON), str(ROOT / "bench" / "trl_job.py"), str(description)]
    for engine in given.engines:
        logger = ["+logger.turns._target_=against_trl.TurnLogger", f"+logger.turns.updates={job.updates}"]
        ours = our_overrides(job, engine, threads, given.ours)
        overrides = [*ours, *logger, f"run_folder={folder / engine}"]
        lines[f"ours, {engine}"] = [sys.executable, "-m", "bapo_lightning.cli.train", *overrides]
    return lines


def start(sides: dict[str, list[str]], threads: int, folder: Path, stack: ExitStack) -> dict[str, Worker]:
    environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    environment["TOKENIZERS_PARALLELISM"] = "false"
    workers = {}
    for name, command in sides.items():
        paths = [ROOT / "bench", ROOT / "src"] if name.startswith("TRL") else [ROOT / "bench"]
        log = folder / f"{name.replace(', ', '-')}.log"
        worker = Worker(command, log, environment | {"PYTHONPATH": ":".join(map(str, paths))})
        stack.callback(worker.close)
        worker.cycle()
        workers[name] = worker
    return workers


def measure(job: Job, workers: dict[str, Worker], cycles: int) -> dict[str, list[dict[str, float]]]:
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    for _ in range(cycles):
        for name, worker in workers.items():
            one = worker.cycle()
            taken[name].append(one | {"update": (one["wall"] - one["rollout"]) / job.updates})
    return taken


def show(taken: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    fastest = min(
        (name for name in taken if name.startswith("TRL")),
        key=lambda name: median(cycle["cpu"] for cycle in taken[name]),
    )
    reference = taken[fastest]
    for name, cycles in taken.items():
        spreads = {key: Spread.of([cycle[key] for cycle in cycles]) for key in LABELS}
        ratios = {
            key: ratio([cycle[key] for cycle in reference], [cycle[key] for cycle in cycles])
            for key in spreads
        }
        length = fmean(cycle["tokens"] / cycle["samples"] for cycle in cycles)
        print(f"{name}: responses of {length:.1f} tokens on average")
        for key, label in LABELS.items():
            faster = f"   {ratios[key].text(digits=2)} times as fast as {fastest}"
            against = "" if name.startswith("TRL") else faster
            print(f"  {label:14} {spreads[key].text('s', digits=3):34}{against}")
        record[name] = {"seconds": spreads, "times_faster": ratios, "mean_response_tokens": length}
        record[name]["cycles"] = cycles
    return record


def main() -> None:
    parser = bench_parser(__doc__, cycles=5, threads=2)
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--engines", nargs="+", default=["hf"], choices=["hf", "vllm"])
    parser.add_argument("--trl", nargs="+", default=["float32"], choices=list(TRL_VARIANTS))
    parser.add_argument("--ours", nargs="+", default=[], help="our side's, e.g. model.compile=true")
    parser.add_argument(
        "--trl-options", type=json.loads, default={}, help="further GRPOConfig arguments, as JSON"
    )
    arguments = parser.parse_args()
    if not TRL_PYTHON.exists():
        sys.exit("TRL is not there: make setup-trl")
    job = JOBS[arguments.job]
    if unknown := [engine for engine in arguments.engines if engine not in job.engines]:
        sys.exit(f"the job {arguments.job} has no rollout={unknown[0]}; choose from {', '.join(job.engines)}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sides = commands(job, arguments, Path(folder))
        print(f"{' '.join(job.options)}: {job.updates} updates on each rollout batch")
        print(f"TRL's options beyond those of bench/trl_job.py: {arguments.trl_options or 'none'}")
        print(method(arguments.cycles, 1, arguments.threads))
        taken = measure(job, start(sides, arguments.threads, Path(folder), stack), arguments.cycles)
    write_json(
        arguments.json,
        {
            "arguments": vars(arguments),
            "options": our_overrides(job, "hf", arguments.threads, arguments.ours),
            "sides": show(taken),
        },
    )


if __name__ == "__main__":
    main()
