"""Any algorithm's loss in TRL's GRPOTrainer, BAPO's bounds searched over whole updates: `python
examples/trl_grpo_trainer.py`, in an environment with `trl` and `bapo-lightning`.

Trains the tiny model of the additions for 20 updates of two micro-batches, eight on each generation batch.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from bapo_lightning.losses import Shared, policy_loss
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.tiny_worlds.additions.task import addition_problems

UNREAD = {"beta": 0.0, "entropy_coef": 0.0, "off_policy_mask_threshold": None, "top_entropy_quantile": 1.0}
MODEL = model_path("package://bapo_lightning/tiny_worlds/additions/model")
SIZES = {
    "per_device_train_batch_size": 64,
    "gradient_accumulation_steps": 2,  # micro-batches of an update
    "steps_per_generation": 8,  # micro-batches of a generation batch
}


class PolicyLossTrainer(GRPOTrainer):
    """A GRPOTrainer whose loss is that of an algorithm of `conf/algorithm`. Options of TRL about the loss
    are not read (`loss_type`, `epsilon`, ...); those that add to it are refused.
    """

    def __init__(self, algorithm: str = "bapo", overrides: tuple[str, ...] = (), **named: Any) -> None:
        super().__init__(**named)
        self.policy_loss = policy_loss(algorithm, *overrides)
        self.shared: deque[Shared | None] = deque()  # of the micro-batches to come of this update
        if self.args.steps_per_generation % self.args.gradient_accumulation_steps:
            raise ValueError("steps_per_generation must be a multiple of gradient_accumulation_steps")
        if unread := [name for name, off in UNREAD.items() if getattr(self.args, name) != off]:
            raise ValueError(f"{', '.join(unread)} would not be read: leave them at their defaults")

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        mode, known = "train" if model.training else "eval", {}
        if mode == "train":
            if not self.shared:  # the first micro-batch of an update
                self._look_ahead(model)
            known = {"shared": self.shared.popleft(), **self.counts}
        loss, metrics = self.policy_loss(**self._columns(model, inputs), **known)
        for name, value in metrics.items():
            self._metrics[mode][f"bapo/{name}"].append(float(value))
        return loss

    def _look_ahead(self, model: Any) -> None:
        """Counts the tokens of an update, and lets all of them choose what its micro-batches share."""
        steps = self.current_gradient_accumulation_steps
        start = self._step % self.args.steps_per_generation
        window = self._buffered_inputs[start : start + steps]
        counts = torch.stack([sum(_mask(part).sum() for part in window), sum(map(_rows, window))]).float()
        counts = self.accelerator.reduce(counts, "mean")  # over ranks, whose gradients are averaged
        self.counts = {"num_tokens": counts[0], "num_sequences": counts[1]}
        self.shared.extend([None] * steps)
        if steps > 1 and self.policy_loss.looks_ahead:
            with torch.no_grad():
                self.shared = deque(
                    self.policy_loss.look_ahead([self._columns(model, part) for part in window])
                )

    def _columns(self, model: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        length = inputs["completion_ids"].size(1)
        logp, entropy, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, length, compute_entropy=True
        )
        # What the engine says of its tokens if it is vLLM; else what the model said when it sampled them.
        sampled = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
        behaviour = logp.detach() if sampled is None else sampled
        own = {"logp": logp, "behaviour_logp": behaviour, "advantages": inputs["advantages"]}
        return own | {"mask": _mask(inputs), "entropy": entropy}


def _mask(inputs: Mapping[str, Any]) -> Tensor:
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def _rows(inputs: Mapping[str, Any]) -> Tensor:
    return torch.tensor(len(inputs["completion_ids"]), device=inputs["completion_ids"].device)


def right_sum(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Returns 1 for a response that ends with the right sum."""
    return [float(text.split(".")[-1] == right) for text, right in zip(completions, answer, strict=True)]


def trainer(
    folder: str,
    kind: type[GRPOTrainer] = PolicyLossTrainer,
    sizes: Mapping[str, int] = SIZES,
    **named: Any,
) -> GRPOTrainer:
    """Returns a trainer of the additions with a learning rate that moves its bounds."""
    problems = addition_problems("train", 512)
    rows = [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
    arguments = GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, report_to="none", save_strategy="no", disable_tqdm=True,
        gradient_checkpointing=False, model_init_kwargs={"dtype": "float32"}, logging_steps=1,
        max_steps=20, learning_rate=1e-3, lr_scheduler_type="constant", max_completion_length=32,
        num_generations=8, num_iterations=2, **sizes,
    )  # fmt: skip
    data = Dataset.from_list(rows)
    return kind(model=MODEL, args=arguments, train_dataset=data, reward_funcs=right_sum, **named)


def main() -> None:
    """Prints reward and bounds of every update."""
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(folder, overrides=("algorithm.positive_share_target=0.43",))
        made.train()
        for row in (row for row in made.state.log_history if "bapo/clip_low" in row):
            low, high, share = (row[f"bapo/{name}"] for name in ("clip_low", "clip_high", "positive_share"))
            reward = f"reward {row['reward']:.3f}" if "reward" in row else " " * 12  # with each batch
            print(f"{reward}  bounds [{low:.2f}, {high:.2f}]  positive share {share:.3f}")


if __name__ == "__main__":
    main()
