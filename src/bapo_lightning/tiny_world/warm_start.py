"""Makes the quickstart's starting model: a small Llama taught the toy language by supervised learning.

    python -m bapo_lightning.tiny_world.warm_start --output src/bapo_lightning/tiny_world/model

The demonstrations overthink, and so does the model: its arithmetic is good, but it rarely ends a response
before the token limit. Reinforcement learning closes that gap.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

from bapo_lightning.tiny_world.measure import measure
from bapo_lightning.tiny_world.task import TinyWorld, demonstration, tiny_problems
from bapo_lightning.tiny_world.tokenizer import build_tokenizer
from bapo_lightning.types import Problem

LEARNING_RATE = 3e-3
BATCH_SIZE = 128
IGNORED = -100  # the label that torch's cross entropy leaves out

README = """# Warm-started model of the tiny world

Made by `python -m bapo_lightning.tiny_world.warm_start --steps {steps} --seed {seed}` with {threads} torch
thread(s); supervised on {count} noisy demonstrations, final loss {loss:.4f}.

Measured on {figures.num_problems} validation problems, {figures.samples} samples each at temperature 1, at
most {tokens} tokens:

| quantity | value |
| --- | --- |
{table}
"""


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


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> float:
    """Trains on fresh demonstrations, one-cycle learning rate; returns the last loss in nats per token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    generator, problems, loss = random.Random(seed), tiny_problems("train"), torch.tensor(float("nan"))
    for step in range(1, steps + 1):
        input_ids, labels = _batch(tokenizer, generator, problems)
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(f"step {step:5d}/{steps}  loss {loss.item():.4f} nats per token", flush=True)
    return loss.item()


def _batch(
    tokenizer: PreTrainedTokenizerFast, generator: random.Random, problems: list[Problem]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns right-padded token ids and labels [B, T]; prompt and padding carry no loss."""
    chosen = [generator.choice(problems) for _ in range(BATCH_SIZE)]
    texts = [problem.prompt + demonstration(problem, generator) for problem in chosen]
    encoded = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    labels = encoded.input_ids.masked_fill(encoded.attention_mask == 0, IGNORED)
    for row, problem in enumerate(chosen):
        labels[row, : len(problem.prompt)] = IGNORED
    return encoded.input_ids, labels


def save(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, readme: str) -> None:
    """Writes weights (safetensors), tokenizer and README as a Hugging Face model folder."""
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(readme, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Trains, measures and saves a model; prints its figures, which its README holds as well."""
    parser = argparse.ArgumentParser(description="Make the tiny world's starting model.")
    parser.add_argument("--output", type=Path, required=True, help="model folder to write")
    parser.add_argument("--steps", type=int, default=2000, help="supervised updates (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights and demonstrations (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(
            f"--steps is {options.steps}, but training needs at least one update: write --steps 2000"
        )
    set_seed(options.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{model.num_parameters()} parameters, {torch.get_num_threads()} torch thread(s)")
    loss = train(model, tokenizer, options.steps, options.seed)
    figures = measure(model, tokenizer, seed=options.seed)
    readme = README.format(
        steps=options.steps,
        seed=options.seed,
        threads=torch.get_num_threads(),
        count=options.steps * BATCH_SIZE,
        loss=loss,
        figures=figures,
        tokens=TinyWorld().response_tokens,
        table=figures.table(),
    )
    save(options.output, model, tokenizer, readme)
    print(readme)


if __name__ == "__main__":
    main(sys.argv[1:])
