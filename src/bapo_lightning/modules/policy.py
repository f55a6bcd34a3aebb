"""A Hugging Face causal language model as a policy."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from bapo_lightning.data.batch import ModelInput, model_input, rows_by_token_budget
from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.token_scores import token_scores
from bapo_lightning.types import Rollout

# Heads that do more to the logits than a matrix product; scoring them as if they did not would be silently wrong.
LOGIT_TRANSFORMS = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}


class Policy(nn.Module):
    """Scores response tokens. It never builds the logits of a whole micro-batch, and it does not sample: engines do."""

    def __init__(self, model: PreTrainedModel, temperature: float) -> None:
        """
        Args:
            model: causal LM whose logits are `hidden @ head.weight.T`.
            temperature: of the sampling distribution that log-probs refer to.
        """
        super().__init__()
        for name, neutral in LOGIT_TRANSFORMS.items():
            if getattr(model.config, name, neutral) not in (neutral, None):
                raise ConfigError(
                    [f"the model transforms its logits ({name}={getattr(model.config, name)}), which token scoring does not support"]
                )
        if getattr(model.get_output_embeddings(), "bias", None) is not None:
            raise ConfigError(["the model's output head has a bias, which token scoring does not support"])
        self.model = model
        self.temperature = temperature

    @classmethod
    def from_pretrained(cls, path: str, temperature: float, dtype: str = "float32") -> Policy:
        """Load a folder or a hub name. Dropout stays off: with it the ratio would not be 1 for unchanged weights."""
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        model.config.use_cache = False
        return cls(model.eval(), temperature)

    def forward(self, inputs: ModelInput) -> tuple[Tensor, Tensor]:
        """(log-prob[N] in nats, entropy[N] in nats) of the response tokens; gradients flow through the log-probs.

        Padding stands on the right, where causal attention never looks, so no attention mask is needed.
        """
        hidden = self.model.base_model(input_ids=inputs.input_ids, use_cache=False).last_hidden_state
        picked = hidden.flatten(0, 1).index_select(0, inputs.index)
        return token_scores(picked, self.model.get_output_embeddings().weight, inputs.targets, self.temperature)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Weights under their Hugging Face names, one at a time; a tied head is left out, as in the model's files."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()

    @torch.no_grad()
    def response_logprobs(self, rollouts: Sequence[Rollout], token_budget: int) -> list[array[float]]:
        """Log-probs in nats of each rollout's response tokens under the current weights at the policy's temperature, in order.

        Args:
            rollouts: any number of them.
            token_budget: padded tokens that pass through the model at once.
        """
        device = self.model.get_output_embeddings().weight.device
        lengths = [len(rollout.prompt_ids) + rollout.length for rollout in rollouts]
        found: dict[int, array[float]] = {}
        for rows in rows_by_token_budget(lengths, token_budget):
            part = [rollouts[row] for row in rows]
            logp = self(model_input(part, device))[0].float().cpu()
            pieces = logp.split([rollout.length for rollout in part])
            found |= {row: array("f", piece.numpy().tobytes()) for row, piece in zip(rows, pieces, strict=True)}
        return [found[row] for row in range(len(rollouts))]
