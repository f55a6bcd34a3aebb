"""How the time of an update grows with its tokens: more sequences, longer ones, more and larger groups.

    python bench/scaling.py [--repeats 3] [--model package://bapo_lightning/tiny_world/model]

One update is as in training (`BapoModule.training_step`: split, score, search, backward, step) with the
quickstart's BAPO, but on random tokens, so that any size is possible. Each row changes one thing of the base
row. The last column is the time per token relative to the base row: 1 is linear growth. Attention grows with
the square of the length; fixed costs make small updates more expensive per token.
"""

from __future__ import annotations

import argparse
from array import array
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from bapo_overhead import quickstart, ready_module
from measuring import Spread, add_json_option, in_turns, method, write_json

from bapo_lightning.data.batches.batch import TrainBatch, collate
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.types import (
    FinishReason,
    Group,
    Problem,
    Rollout,
    Sample,
    Score,
    ScoreStatus,
    Segment,
)


@dataclass(frozen=True)
class Size:
    """Size of one minibatch."""

    groups: int = 16
    group_size: int = 8
    prompt_tokens: int = 16
    response_tokens: int = 48

    @property
    def tokens(self) -> int:
        """Number of tokens that pass through the model."""
        return self.groups * self.group_size * (self.prompt_tokens + self.response_tokens)


BASE = Size()
SIZES = {
    "base": BASE,
    "groups / 4": replace(BASE, groups=4),
    "groups x 2": replace(BASE, groups=32),
    "group size x 2": replace(BASE, group_size=16),
    "length / 2": replace(BASE, prompt_tokens=8, response_tokens=24),
    "length x 2": replace(BASE, prompt_tokens=32, response_tokens=96),
}


def random_batch(size: Size, vocab_size: int) -> TrainBatch:
    """Returns a minibatch of random tokens: responses of one length, half of the samples with a positive
    advantage.
    """
    generator = np.random.default_rng(0)

    def tokens(count: int) -> array[int]:
        return array("i", generator.integers(vocab_size, size=count).tolist())

    groups = []
    for number in range(size.groups):
        problem, prompt = Problem(id=str(number), prompt="", answer=""), tokens(size.prompt_tokens)
        samples = []
        for _ in range(size.group_size):
            logprobs = array("f", [-float(np.log(vocab_size))]) * size.response_tokens
            rollout = Rollout(
                prompt, (Segment(tokens(size.response_tokens), logprobs, version=0),), FinishReason.LENGTH
            )
            samples.append(Sample(rollout, "", Score(0.0, ScoreStatus.WRONG), reward=0.0))
        advantages = tuple(1.0 if place % 2 else -1.0 for place in range(size.group_size))
        groups.append(Group(problem, tuple(samples), advantages))
    return collate(groups, {})


def update(module: BapoModule, batch: TrainBatch) -> None:
    """Makes one optimizer update."""
    module.training_step(batch, 0)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--model", default="package://bapo_lightning/tiny_world/model", help="value of the key model.path"
    )
    add_json_option(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    module = ready_module(quickstart("bapo", f"model.path={arguments.model}"))
    vocab_size = module.policy.model.config.vocab_size
    batches = {name: random_batch(size, vocab_size) for name, size in SIZES.items()}
    taken = in_turns(
        {name: partial(update, module, batch) for name, batch in batches.items()}, arguments.repeats
    )
    print(
        f"one BAPO update of {arguments.model}, at most {module.micro_batch_tokens} tokens through the model "
        "at once"
    )
    print(method(arguments.repeats, 1, arguments.threads))
    base = Spread.of([turn.cpu for turn in taken["base"]]).median / BASE.tokens
    record = {}
    for name, size in SIZES.items():
        wall, cpu = (Spread.of([getattr(turn, clock) for turn in taken[name]]) for clock in ("wall", "cpu"))
        per_token = cpu.median / size.tokens / base
        shape = f"{size.groups:3} x {size.group_size:2} x ({size.prompt_tokens:3} + {size.response_tokens:3})"
        print(
            f"  {name:15} {shape}  wall {wall.text('ms', 1e3, 1):30} CPU {cpu.text('ms', 1e3, 1):30} CPU per "
            f"token {per_token:5.2f}"
        )
        record[name] = {
            "size": size,
            "tokens": size.tokens,
            "wall_seconds": wall,
            "cpu_seconds": cpu,
            "cpu_per_token_to_base": per_token,
        }
    write_json(arguments.json, {"arguments": vars(arguments), "sizes": record})


if __name__ == "__main__":
    main()
