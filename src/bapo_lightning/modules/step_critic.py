"""A critic of steps: a causal language model with a scalar head, which says how likely a prefix is to end in
a right answer.

It is trained before the policy (`make critic`, `modules.critic_training`) and frozen ever after, as in Direct
Advantage Policy Optimization (arXiv 2412.18279, Section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from inspect import isclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForTokenClassification, PreTrainedModel
from transformers.utils import logging

from bapo_lightning.data.batches.layout import padded_ids
from bapo_lightning.data.batches.micro_batches import rows_by_token_budget
from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.data.rollouts.steps import Split
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.policy.folder import CRITIC_KEY, critic_record, model_path
from bapo_lightning.types import Rollout


class StepCritic:
    """The critic in a folder, loaded when it is first asked."""

    def __init__(self, critic: str | None = None) -> None:
        """`critic`: folder that `make critic` made; a run without one is refused at its start."""
        self._folder = model_path(str(critic))

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields that there are turns, or rules that change rewards."""
        if run.environment is not None:
            yield (
                f" with environment={run.environment}: a critic values steps of responses that nobody "
                "answers; write environment=none, or another algorithm"
            )
        for name, part in run.parts.items():
            if isclass(part) and issubclass(part, GroupRule) and part.has("shape"):
                yield (
                    " gives every step its own advantage, by the verifier's scores, and algorithm."
                    f"{name} changes rewards; leave one of the two out"
                )

    @property
    def split(self) -> Split:
        """How the responses that it was trained on were split."""
        split: Split = critic_record(self._folder)["split"]
        return split

    @cached_property
    def _model(self) -> PreTrainedModel:
        model = AutoModelForTokenClassification.from_pretrained(
            self._folder, dtype="auto", trust_remote_code=False
        )
        return model.eval().requires_grad_(False)

    @torch.no_grad()
    def values(
        self,
        rollouts: Sequence[Rollout],
        states: Sequence[Sequence[int]],
        token_budget: int,
        device: torch.device,
    ) -> list[list[float]]:
        """See `data.rollouts.steps.Critic`."""
        model = self._model.to(device)  # type: ignore[arg-type]
        lengths = [len(rollout.prompt_ids) + rollout.length for rollout in rollouts]
        found: dict[int, list[float]] = {}
        for rows in rows_by_token_budget(lengths, token_budget):
            wanted = [states[row] for row in rows]
            inputs = state_inputs([rollouts[row] for row in rows], wanted)
            values = state_logits(model, *(tensor.to(device) for tensor in inputs)).sigmoid().cpu()
            parts = values.split(list(map(len, wanted)))
            found |= {row: own.tolist() for row, own in zip(rows, parts, strict=True)}
        return [found[row] for row in range(len(rollouts))]


def state_inputs(
    rollouts: Sequence[Rollout], states: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns token ids [B, T], padded on the right, and row and column of each of S states, [S] each.

    Args:
        rollouts: B rollouts.
        states: columns of each rollout's states.
    """
    rows = [row for row, own in enumerate(states) for _ in own]
    columns = [column for own in states for column in own]
    return torch.from_numpy(padded_ids(rollouts)), torch.tensor(rows), torch.tensor(columns)


def state_logits(model: PreTrainedModel, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Returns the logits of the values at S states, [S], float32. Padding is on the right, where causal
    attention never looks.
    """
    logits = model(input_ids=input_ids, use_cache=False).logits
    return logits[rows, columns].squeeze(-1).float()


def build_critic(path: str, dtype: str, record: dict[str, Any]) -> PreTrainedModel:
    """Returns a critic with the weights of a causal language model and a new head, without dropout.

    Args:
        path: folder or hub name of the model.
        dtype: dtype of its weights.
        record: written into its configuration; `split` says where steps end.

    Raises:
        ConfigError: the model's family has no such head in transformers.
    """
    config = AutoConfig.from_pretrained(path, num_labels=1, trust_remote_code=False)
    config.classifier_dropout = 0.0
    setattr(config, CRITIC_KEY, record)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # not that the head is new
    try:
        return AutoModelForTokenClassification.from_pretrained(
            path, config=config, dtype=getattr(torch, dtype), trust_remote_code=False
        )
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError([f"model.path={path} cannot be made a critic ({reason}); take another"]) from None
    finally:
        logging.set_verbosity(verbosity)
