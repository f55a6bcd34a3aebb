"""BAPO's bounds in TRL's GRPOTrainer: `python examples/trl_grpo_trainer.py`, where TRL is installed as well.

A tiny model learns which keys open locks, 8 updates of two micro-batches on each generation batch.
"""

from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from bapo_lightning.losses import PolicyLoss, Shared, policy_loss
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.tiny_worlds.locks.task import lock_problems

MODEL = model_path("package://bapo_lightning/tiny_worlds/locks/model")
# Options that add to TRL's own loss.
UNREAD = {"beta": 0.0, "entropy_coef": 0.0, "off_policy_mask_threshold": None, "top_entropy_quantile": 1.0}


class PolicyLossTrainer(GRPOTrainer):
    """GRPOTrainer with the loss of an algorithm of this package. TRL samples, scores and computes advantages.

    The bounds of an update are searched over all its micro-batches; those after the first pass through the
    model once more for it.
    """

    def __init__(self, *args: Any, loss: PolicyLoss, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.args.steps_per_generation % self.args.gradient_accumulation_steps:
            raise ValueError("steps_per_generation must be a multiple of gradient_accumulation_steps")
        if unread := [name for name, off in UNREAD.items() if getattr(self.args, name) != off]:
            raise ValueError(f"{', '.join(unread)} would not be read; leave them at their defaults")
        self.policy_loss = loss
        self._shared: list[Shared] = []  # of the micro-batches of this update that are to come

    def scored(self, model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Arguments of the loss for a micro-batch."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        length = inputs["completion_ids"].shape[1]
        logp, entropy, *_ = self._get_per_token_logps_and_entropies(
            model, ids, attention, length, compute_entropy=True
        )
        # vLLM's own log-probs, or those before the first update; neither: this is the first update.
        old = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        behaviour = logp.detach() if old is None else old
        known = {"logp": logp, "behaviour_logp": behaviour, "mask": mask, "entropy": entropy}
        return known | {"advantages": inputs["advantages"]}

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if not model.training:
            return super()._compute_loss(model, inputs)
        parts = self.args.gradient_accumulation_steps
        own = self.scored(model, inputs)
        if self._step % parts == 0:
            first = self._step % self.args.steps_per_generation
            coming = self._buffered_inputs[first + 1 : first + parts]
            with torch.no_grad():
                others = [self.scored(model, each) for each in coming]
            self._shared = self.policy_loss.look_ahead([own, *others])
        shared = self._shared.pop(0)
        # Ranks average their gradients, so that each divides by the mean of their counts.
        counts = torch.stack([shared.num_tokens, shared.num_sequences])
        num_tokens, num_sequences = self.accelerator.reduce(counts, "mean")
        known = {"shared": shared, "num_tokens": num_tokens, "num_sequences": num_sequences}
        loss, numbers = self.policy_loss(**own, **known)
        for name, value in numbers.items():
            self._metrics["train"][f"bapo/{name}"].append(float(value))
        return loss


def opened(completions: list[str], keys: list[str], **_: Any) -> list[float]:
    """1 where a response is a key that opens."""
    return [float(text in set(right)) for text, right in zip(completions, keys, strict=True)]


def main() -> None:
    """Trains for 64 updates, and prints rewards and bounds."""
    data = Dataset.from_list(
        [{"prompt": each.prompt, "keys": each.answer} for each in lock_problems("train")]
    )
    args = GRPOConfig(
        output_dir="outputs/trl",
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        max_steps=64,
        learning_rate=1.5e-3,
        lr_scheduler_type="constant",
        per_device_train_batch_size=64,
        gradient_accumulation_steps=2,
        steps_per_generation=16,
        num_generations=8,
        max_completion_length=10,
        model_init_kwargs={"dtype": "float32"},
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    trainer = PolicyLossTrainer(
        MODEL, opened, args, train_dataset=data, processing_class=tokenizer, loss=policy_loss("bapo")
    )
    trainer.train()
    for row in trainer.state.log_history:
        if "reward" in row:
            bounds = f"[{row['bapo/clip_low']:.2f}, {row['bapo/clip_high']:.2f}]"
            print(f"reward {row['reward']:.3f}  bounds {bounds}")


if __name__ == "__main__":
    main()
