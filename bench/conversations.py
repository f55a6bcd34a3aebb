"""What conversations cost where there are none, and where there are: rollout batches without a model.

    python bench/conversations.py [--rounds 20] [--before FOLDER]

An engine answers at once, so that only the package's own work counts: requests, passes, scoring, advantages,
collating and the split into micro-batches. Sides take turns, each in a process that has warmed up; times are
CPU milliseconds of a rollout batch of 512 responses of 32 tokens.

    none        no environment: a response is one turn
    one turn    an environment that ends every conversation at once
    two turns   a reply of four tokens after 16, so that each batch has two passes of the engine
    before      none, by the package of another checkout of this repository: --before FOLDER
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, ClassVar

from measuring import bench_parser
from turns import Turns, Worker

from bapo_lightning.data.batches.batch import collate
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.collector import SyncCollector, TrainerState
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.rollout.engine import Generation, SamplingParams
from bapo_lightning.types import FinishReason, Problem, Score, ScoreStatus, Segment

ROOT = Path(__file__).resolve().parents[1]
PROMPTS, GROUP_SIZE, TOKENS, MINIBATCHES = 64, 8, 32, 8
SIDES = ("none", "one turn", "two turns")


def main() -> None:
    parser = bench_parser(__doc__, has_json=False, rounds=20)
    parser.add_argument("--before", type=Path, help="another checkout, whose package is a side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(arguments.side)
        return
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: started(name, ROOT, Path(folder, name)) for name in SIDES}
        if arguments.before:
            sides["before"] = started("none", arguments.before, Path(folder, "before"))
        for _ in range(3):
            for worker in sides.values():
                worker.cycle()
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(arguments.rounds):
            for name, worker in sides.items():
                times[name].append(1000 * worker.cycle()["cpu"])
        for worker in sides.values():
            worker.close()
    for name, taken in times.items():
        ratios = [one / other for one, other in zip(taken, times["none"], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        print(
            f"{name:10}{median(taken):8.1f} ms of CPU a rollout batch; {middle:.3f} of none "
            f"(quartiles {low:.3f} to {high:.3f})"
        )


def started(side: str, checkout: Path, log: Path) -> Worker:
    command = [sys.executable, __file__, "--side", side]
    return Worker(command, log, {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"})


def serve(side: str) -> None:
    one_batch, turns = rollout_batches(side), Turns()
    while True:
        one_batch()
        turns.hand_over({})


class Engine:
    """Answers at once: all tokens of a response, or half of them in each of two turns."""

    def __init__(self, side: str) -> None:
        self.version, self._turn = -MINIBATCHES, TOKENS // 2 if side == "two turns" else TOKENS

    def generate(self, requests: Any, sampling: Any) -> list[Generation]:
        ids, logprobs = array("i", range(self._turn)), array("f", [-1.0] * self._turn)
        segment = Segment(ids, logprobs, self.version)
        return [Generation(segment, FinishReason.STOP) for _ in requests]

    def sleep(self) -> None:
        """Does nothing."""


class Tokenizer:
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(range(len(text)))

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "x" * len(ids)


def reward(problems: Any, completions: Any) -> list[Score]:
    right, wrong = Score(1.0, ScoreStatus.CORRECT), Score(0.0, ScoreStatus.WRONG)
    return [right if number % 3 else wrong for number, _ in enumerate(problems)]


def rollout_batches(side: str) -> Callable[[], None]:
    engine: Any = Engine(side)
    sampler = RolloutSampler(
        engine,
        Tokenizer(),
        lambda tokenizer, problem: array("i", range(8)),
        reward,
        SamplingParams(1.0, (0,)),
        TOKENS + 1,
        0,
        advantages=partial(group_advantages, scale="std"),
        **({} if side == "none" else {"conversations": conversations(side)}),
    )
    regime = Regime("replay", 1, MINIBATCHES, TOKENS + 1)
    stream = ProblemStream([Problem(str(number), "", "") for number in range(5000)], 0)
    sizes = (GROUP_SIZE, PROMPTS, 10**9)
    scheduler = RolloutScheduler(stream, sampler, regime, *sizes)
    collector = SyncCollector(scheduler, sampler, lambda: None)

    def one_batch() -> None:
        engine.version += MINIBATCHES
        groups = collector.next_groups(PROMPTS, TrainerState(engine.version, engine.version))
        size = PROMPTS // MINIBATCHES
        for first in range(0, PROMPTS, size):
            batch = collate(groups[first : first + size], {})
            batch.split(2048, batch.response_mask.float())

    return one_batch


def conversations(side: str) -> Any:
    """Returns turn taking with an environment that replies once, or not at all; other checkouts have none."""
    from bapo_lightning.data.rollouts.conversations import Conversations
    from bapo_lightning.data.rollouts.feedback import PlainFeedback
    from bapo_lightning.types import Reply

    class Environment:
        is_pure = True

        def start(self, problem: Any) -> None:
            pass

        def respond(self, turn: Any) -> Reply:
            return Reply("four", is_done=side == "one turn" or turn.number == 1)

    return Conversations(Environment(), PlainFeedback(), Tokenizer(), 2, 8, 8, TOKENS + 1, workers=0)


if __name__ == "__main__":
    main()
