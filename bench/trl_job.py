"""TRL's side of `against_trl.py`: its GRPOTrainer on the job in a JSON file. Runs in TRL's environment (`make
setup-trl`).

    .venv-trl/bin/python bench/trl_job.py JOB.json

The settings are the fastest ones for equal work; the job's `options` are passed on unchanged, to try others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from turns import Turns

from bapo_lightning.rewards.final_value import final_value
from bapo_lightning.rewards.last_number import last_number
from bapo_lightning.types import Completion, FinishReason, Problem

# They import neither torch nor the trainer.
SCORERS = {"final_value": final_value, "last_number": last_number}


class EndOfTurn(TrainerCallback):
    def __init__(self, updates: int) -> None:
        self._updates = updates
        self._turns = Turns()
        self.rollout = 0.0
        self.tokens = 0
        self.samples = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._updates == 0:
            self._turns.hand_over({"rollout": self.rollout, "tokens": self.tokens, "samples": self.samples})


def timed(
    generate: Callable[..., dict[str, Any]], into: EndOfTurn, inputs: list[dict[str, Any]]
) -> dict[str, Any]:
    start = time.perf_counter()
    output = generate(inputs)
    into.rollout = time.perf_counter() - start
    into.tokens, into.samples = int(output["completion_mask"].sum()), len(output["completion_mask"])
    return output


def reward(
    score: Callable[..., Any],
    end: int,
    completions: list[str],
    completion_ids: list[list[int]],
    answer: list[str],
    **_: Any,
) -> list[float]:
    finishes = [
        FinishReason.STOP if ids and ids[-1] == end else FinishReason.LENGTH for ids in completion_ids
    ]
    problems = [Problem(id="", prompt="", answer=value) for value in answer]
    answers = [
        Completion(text, len(ids), finish)
        for text, ids, finish in zip(completions, completion_ids, finishes, strict=True)
    ]
    return [verdict.value for verdict in score(problems, answers)]


def configuration(job: dict[str, Any], folder: str) -> GRPOConfig:
    rollouts = job["prompts_per_batch"] * job["group_size"]
    values: dict[str, Any] = {
        **{"output_dir": folder, "use_cpu": True, "bf16": False, "gradient_checkpointing": False},
        **{"dataloader_pin_memory": False, "report_to": "none", "logging_strategy": "no"},
        **{"save_strategy": "no", "disable_tqdm": True, "shuffle_dataset": False},
        "max_steps": 1_000_000,  # the runner ends it
        "model_init_kwargs": {"dtype": "float32"},
        "per_device_train_batch_size": rollouts // job["minibatches"],
        "gradient_accumulation_steps": 1,
        "steps_per_generation": job["minibatches"],
        "num_iterations": job["epochs"],
        "num_generations": job["group_size"],
        "max_completion_length": job["max_new_tokens"],
        **{"temperature": 1.0, "beta": 0.0, "learning_rate": job["learning_rate"]},
        **{"lr_scheduler_type": "constant", "weight_decay": 0.0, "max_grad_norm": 1.0},
        **{"optim": "adamw_torch_fused", "use_transformers_continuous_batching": False},
    }
    return GRPOConfig(**values | job["options"])


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    ids = tokenizer([problem["prompt"] for problem in job["problems"]])["input_ids"]
    if ids != [problem["ids"] for problem in job["problems"]]:
        sys.exit(
            "TRL's tokenizer makes other tokens of the prompts, so the two sides would not do the same work"
        )
    data = Dataset.from_list(
        [{"prompt": problem["prompt"], "answer": problem["answer"]} for problem in job["problems"]]
    )
    end_of_turn = EndOfTurn(job["epochs"] * job["minibatches"])
    score = partial(reward, SCORERS[job["reward"]], tokenizer.eos_token_id)
    score.__name__ = job["reward"]  # type: ignore[attr-defined]  # TRL names its metrics by it
    trainer = GRPOTrainer(
        model=job["model"],
        reward_funcs=score,
        args=configuration(job, job["folder"]),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[end_of_turn],
    )
    trainer._generate_and_score_completions = partial(
        timed, trainer._generate_and_score_completions, end_of_turn
    )
    trainer.train()


if __name__ == "__main__":
    main()
