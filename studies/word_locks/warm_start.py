"""Teaches SmolLM2-135M the word locks by half: `python -m studies.word_locks.warm_start`.

Supervised learning on noisy demonstrations makes models/smollm2-word-locks: a popular key, half right, and a
rare key that is right. Reinforcement learning has the rest to do.
"""

from __future__ import annotations

import argparse
import random
import sys
from itertools import product
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from bapo_lightning.runs.command import command, number_type
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.checkpoint import digest
from bapo_lightning.system.run_folder.text_file import write_json
from bapo_lightning.system.values import Count, Seed, Workers
from bapo_lightning.tiny_worlds.locks.task import KEYS, all_locks
from studies.word_locks.task import COLOURS, WORLD, colour, demonstrated, problem_of, response

BASE = Path("models/smollm2-135m-instruct")
OUTPUT = Path("models/smollm2-word-locks")
LEARNING_RATE = 1e-4
PLACES = list(product(range(WORLD.num_locks), range(WORLD.num_days)))


@command(2, OSError)
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Makes the starting model of the word locks.")
    parser.add_argument(
        "--steps", type=number_type(Count), default=160, help="supervised updates (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=number_type(Seed), default=0, help="of the demonstrations (default: %(default)s)"
    )
    parser.add_argument(
        "--threads",
        type=number_type(Workers),
        default=2,
        help="of torch; rounding depends on them (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if not BASE.is_dir():
        raise DataError(f"{BASE} is missing; make it: make model-smollm2")
    if OUTPUT.exists():
        print(f"{OUTPUT} is complete already")
        return
    torch.set_num_threads(options.threads)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(BASE)
    model = LlamaForCausalLM.from_pretrained(BASE)
    train(model, tokenizer, options.steps, options.seed)
    figures = measure(model, tokenizer)
    print(figures)
    scratch = OUTPUT.with_name(f".{OUTPUT.name}")
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    weights = digest(scratch / "model.safetensors")
    write_json(scratch / "figures.json", {**vars(options), **figures, "sha256": weights})
    scratch.rename(OUTPUT)
    print(f"{OUTPUT} is ready; SHA-256 of its weights: {weights}")


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> None:
    """Imitates demonstrations of a quarter of the problems a step: the key by the probabilities of all, so
    that nothing is left to their draw, and what follows by one key of each problem, all equally often.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    generator = random.Random(seed)
    keys = first_tokens(tokenizer)
    for step in range(1, steps + 1):
        places = generator.sample(PLACES, len(PLACES) // 4)
        locks = [all_locks(WORLD)[number] for number, _ in places]
        texts = [
            (problem_of(*place).prompt, response(lock, place[1], generator.choice(KEYS[: WORLD.num_keys])))
            for place, lock in zip(places, locks, strict=True)
        ]
        input_ids, starts, ends = batch_of(tokenizer, texts)
        # Only places whose next token belongs to a response pass through the head.
        at = torch.arange(input_ids.shape[1])
        chosen = (at >= starts[:, None] - 1) & (at < ends[:, None] - 1)
        hidden = model.model(input_ids=input_ids).last_hidden_state[chosen]
        log_probs = model.lm_head(hidden).log_softmax(-1)
        is_key = (at == starts[:, None] - 1)[chosen]
        wanted = torch.tensor([demonstrated(lock) for lock in locks])
        following = input_ids.roll(-1, 1)[chosen][~is_key]
        loss = -(wanted * log_probs[is_key][:, keys]).sum()
        loss -= log_probs[~is_key].gather(-1, following[:, None]).sum()
        loss = loss / len(places)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0 or step == steps:
            print(f"step {step:4d}/{steps}  loss {loss.item():.4f} nats per answer", flush=True)


def first_tokens(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    return [tokenizer(f" {word}").input_ids[0] for word in COLOURS]


def batch_of(
    tokenizer: PreTrainedTokenizerFast, texts: list[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns right-padded token ids [B, T], and where each response starts and ends, [B]."""
    rows = [
        (tokenizer(prompt).input_ids, [*tokenizer(text).input_ids, tokenizer.eos_token_id])
        for prompt, text in texts
    ]
    starts = torch.tensor([len(prompt) for prompt, _ in rows])
    ends = starts + torch.tensor([len(text) for _, text in rows])
    input_ids = torch.full((len(rows), int(ends.max())), tokenizer.eos_token_id)
    for row, (prompt, text) in enumerate(rows):
        input_ids[row, : len(prompt) + len(text)] = torch.tensor([*prompt, *text])
    return input_ids, starts, ends


@torch.no_grad()
def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Mean probabilities of keys, and whether the end follows a key that opens, and only that."""
    texts = [(problem_of(*place).prompt, f" {word}") for place in PLACES for word in COLOURS]
    input_ids, starts, _ = batch_of(tokenizer, texts)
    step_logits = []
    for rows, places in zip(input_ids.split(64), starts.split(64), strict=True):
        logits = model(input_ids=rows).logits.float()
        step_logits.append(
            torch.stack([logits[torch.arange(len(rows)), places + step] for step in (-1, 0)], 1)
        )
    first, second = torch.cat(step_logits).softmax(-1).unbind(1)
    chosen = first[:: len(COLOURS), first_tokens(tokenizer)]
    ends = second[:, tokenizer.eos_token_id].reshape(len(PLACES), len(COLOURS))
    measured: dict[str, list[float]] = {
        "popular": [],
        "master": [],
        "right": [],
        "ends_if_right": [],
        "ends_if_wrong": [],
    }
    for row, (number, day) in enumerate(PLACES):
        lock = all_locks(WORLD)[number]
        right = [COLOURS.index(colour(key)) for key in lock.opening(day)]
        wrong = [place for place in range(len(COLOURS)) if place not in right]
        measured["popular"].append(float(chosen[row, COLOURS.index(colour(lock.popular))]))
        measured["master"].append(float(chosen[row, COLOURS.index(colour(lock.master))]))
        measured["right"].append(float(chosen[row, right].sum()))
        measured["ends_if_right"] += ends[row, right].tolist()
        measured["ends_if_wrong"] += ends[row, wrong].tolist()
    return {name: sum(values) / len(values) for name, values in measured.items()} | {
        "any_key": float(chosen.sum(-1).mean())
    }


if __name__ == "__main__":
    sys.exit(main())
