"""Throughput of environment=agent, compared with the same environment without programs and endpoint.

    python bench/agents.py [--pairs 3] [--workers 4]

Runs of the additions in which an environment answers wrong sums take turns: in one the environment is a class
in the run's process, in the other `agent_program.py` is started for each conversation and calls the endpoint.
Replies and scores are the same. A ratio is of sampled tokens per second, of a pair of runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from measuring import Spread, alternating, bench_parser, ratio, write_json
from run_comparison import ROOT, train

from bapo_lightning.environments.environment import Turn
from bapo_lightning.system.run_folder.record import read_run
from bapo_lightning.types import Problem, Reply

HERE = Path(__file__).parent
SETTINGS = (
    *("experiment=additions", "scale.prompts_per_batch=8", "scale.group_size=8", "cpu_threads=1"),
    *("scale.num_rollout_batches=2", "callbacks.validation.every=0", "callbacks.validation.first=false"),
    *(
        "reward=environment",
        "environment/feedback=plain",
        "environment.stop=[';']",
        "environment.max_turns=4",
    ),
    "scale.max_feedback_tokens=8",
)
SIDES = {
    "in process": (
        *("environment=calculator", "environment.feedback.template='{feedback}'", "~environment.answers"),
        "+environment.answers={_target_: agents.Sums}",
    ),
    "agent": (
        *("environment=agent", "environment.answers.edits=branch"),
        f"environment.answers.endpoint.command=[{sys.executable},-S,{HERE / 'agent_program.py'}]",
    ),
}


@dataclass(frozen=True)
class Sums:
    """Does what `agent_program.py` does."""

    is_pure = True

    def start(self, problem: Problem) -> None:
        return None

    def respond(self, turn: Turn) -> Reply:
        is_right = turn.text.strip(";") == turn.problem.answer
        if is_right or turn.number == 2:
            score = is_right * (1 - 0.25 * turn.number)
            return Reply(is_done=True, score=score, calls=1)
        return Reply(f"{turn.number};", calls=1, after=0 if turn.number else None)


@dataclass(frozen=True)
class Measured:
    tokens: float
    seconds: float
    program: float  # mean seconds that a conversation waited for its program

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def main() -> None:
    parser = bench_parser(__doc__, pairs=3, workers=4)
    options = parser.parse_args()
    runs_of: dict[str, list[Measured]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.pairs):
            for name in alternating(SIDES, number):
                folder = Path(place, f"{name}-{number}")
                overrides = [*SETTINGS, *SIDES[name], f"environment.workers={options.workers}"]
                train(folder, overrides, PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(HERE)]))
                runs_of[name].append(measured(folder))
    for name, runs in runs_of.items():
        rates, waits = Spread.of([each.rate for each in runs]), Spread.of([each.program for each in runs])
        print(f"{name:<12}{rates.text(digits=0)} tokens a second; a conversation waits {waits.text('s')}")
    ours, theirs = ([each.rate for each in runs_of[name]] for name in SIDES)
    shares = ratio(theirs, ours)
    print(f"agent / in process: {shares.text()}, of {shares.count} pairs")
    write_json(options.json, {name: [vars(each) for each in runs] for name, runs in runs_of.items()})


def measured(folder: Path) -> Measured:
    rows = read_run(folder).rows
    waits = [row.get("agent/program_seconds", 0.0) for row in rows]
    return Measured(
        rows[-1]["progress/tokens"], sum(row["time/step_seconds"] for row in rows), sum(waits) / len(waits)
    )


if __name__ == "__main__":
    main()
