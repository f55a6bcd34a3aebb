"""Makes the models that ship with the package: a small Llama taught a toy language by supervised learning.

    python scripts/warm_start.py locks --output src/bapo_lightning/tiny_worlds/locks/model

The demonstrations know the task by half; reinforcement learning closes the gap.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

from bapo_lightning.runs.command import number_type
from bapo_lightning.system.values import Count, Seed
from bapo_lightning.tiny_worlds.additions import task as additions
from bapo_lightning.tiny_worlds.locks import task as locks
from bapo_lightning.tiny_worlds.sums import task as sums
from bapo_lightning.tiny_worlds.tokenizer import build_tokenizer
from bapo_lightning.types import Problem
from world_figures import (
    AdditionFigures,
    LockFigures,
    SumFigures,
    measure_additions,
    measure_locks,
    measure_sums,
)

LEARNING_RATE = 3e-3
BATCH_SIZE = 128
IGNORED = -100  # the label that torch's cross entropy leaves out

README = """# Warm-started model of the {world}

Made by `python scripts/warm_start.py {world} --steps {steps} --seed {seed}`
with {threads} torch thread(s); supervised on {count} noisy demonstrations, final loss {loss:.4f}.

{figures}
"""


Demonstration = Callable[[Problem, random.Random], list[str]]  # turns, with feedback between them


@dataclass(frozen=True)
class World:
    """A toy language, as the warm start needs it."""

    characters: str  # the last one ends a response
    problems: Callable[[], list[Problem]]  # that demonstrations are about
    demonstration: Demonstration
    measure: Callable[[LlamaForCausalLM, PreTrainedTokenizerFast], AdditionFigures | LockFigures | SumFigures]
    steps: int  # supervised updates


def one_turn(response: Callable[[Problem, random.Random], str]) -> Demonstration:
    return lambda problem, generator: [response(problem, generator)]


WORLDS = {
    "additions": World(
        characters=additions.CHARACTERS,
        problems=partial(additions.addition_problems, "train"),
        demonstration=one_turn(additions.demonstration),
        measure=measure_additions,
        steps=2000,
    ),
    "locks": World(
        characters=locks.CHARACTERS,
        problems=locks.all_lock_problems,
        demonstration=one_turn(locks.demonstration),
        measure=measure_locks,
        steps=5000,
    ),
    "sums": World(
        characters=sums.CHARACTERS,
        problems=partial(sums.sum_problems, "train"),
        demonstration=sums.demonstration,
        measure=measure_sums,
        steps=3000,
    ),
}


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Returns an untrained Llama: 2 layers, hidden size 64, 2 heads, tied embeddings.

    A head has size 32, the least that vLLM accepts on CPU.
    """
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def train(
    world: World, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int
) -> float:
    """Trains on fresh demonstrations, one-cycle learning rate; returns the last loss in nats per token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    generator, problems, loss = random.Random(seed), world.problems(), torch.tensor(float("nan"))
    for step in range(1, steps + 1):
        chosen = [generator.choice(problems) for _ in range(BATCH_SIZE)]
        texts = [[problem.prompt, *world.demonstration(problem, generator)] for problem in chosen]
        input_ids, labels = labelled(tokenizer, texts)
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(f"step {step:5d}/{steps}  loss {loss.item():.4f} nats per token", flush=True)
    return loss.item()


def labelled(tokenizer: PreTrainedTokenizerFast, texts: list[list[str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns right-padded token ids and labels [B, T].

    In each text the policy wrote every second piece; the others, which are the prompt and feedback, carry no
    loss, as padding does not. A character is a token.
    """
    joined = ["".join(pieces) for pieces in texts]
    encoded = tokenizer(joined, padding=True, padding_side="right", return_tensors="pt")
    labels = encoded.input_ids.masked_fill(encoded.attention_mask == 0, IGNORED)
    for row, pieces in enumerate(texts):
        ends = list(accumulate(len(piece) for piece in pieces))
        for start, end in zip([0, *ends[1::2]], ends[::2], strict=False):
            labels[row, start:end] = IGNORED
    return encoded.input_ids, labels


def save(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, readme: str) -> None:
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(readme, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make the starting model of a tiny world.")
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--output", type=Path, required=True, help="model folder to write")
    parser.add_argument("--steps", type=number_type(Count), help="supervised updates (default: the world's)")
    parser.add_argument(
        "--seed",
        type=number_type(Seed),
        default=0,
        help="seed of weights and demonstrations (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    world = WORLDS[options.world]
    steps = world.steps if options.steps is None else options.steps
    set_seed(options.seed)
    tokenizer = build_tokenizer(world.characters)
    model = build_model(tokenizer)
    print(f"{model.num_parameters()} parameters, {torch.get_num_threads()} torch thread(s)")
    loss = train(world, model, tokenizer, steps, options.seed)
    readme = README.format(
        world=options.world,
        steps=steps,
        seed=options.seed,
        threads=torch.get_num_threads(),
        count=steps * BATCH_SIZE,
        loss=loss,
        figures=world.measure(model, tokenizer).report(),
    )
    save(options.output, model, tokenizer, readme)
    print(readme)


if __name__ == "__main__":
    main(sys.argv[1:])
