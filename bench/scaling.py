"""How the time of an update grows with its tokens: more sequences, longer ones, more and larger groups.

    python bench/scaling.py [--repeats 3] [--model package://bapo_lightning/tiny_worlds/additions/model]

One update is as in training (`BapoModule.training_step`: split, score, search, backward, step) with BAPO on
the additions, but on random tokens, so that any size is possible. Each row changes one thing of the base row.
The last column is the time per token relative to the base row: 1 is linear growth. Attention grows with the
square of the length; fixed costs make small updates more expensive per token.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

import torch
from measuring import Spread, add_json_option, in_turns, method, write_json
from updates import Size, additions, built, random_batch

from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule

BASE = Size()
SIZES = {
    "base": BASE,
    "groups / 4": replace(BASE, groups=4),
    "groups x 2": replace(BASE, groups=32),
    "group size x 2": replace(BASE, group_size=16),
    "length / 2": replace(BASE, prompt_tokens=8, response_tokens=24),
    "length x 2": replace(BASE, prompt_tokens=32, response_tokens=96),
}


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
        "--model",
        default="package://bapo_lightning/tiny_worlds/additions/model",
        help="value of the key model.path",
    )
    add_json_option(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    module = built(additions("bapo", f"model.path={arguments.model}"))
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
