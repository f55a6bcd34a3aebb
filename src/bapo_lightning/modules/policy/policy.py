"""A Hugging Face causal language model as a policy."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bapo_lightning.data.batches.model_input import (
    Layout,
    ModelInput,
    model_input,
    prompt_numbers,
    rows_by_token_budget,
)
from bapo_lightning.modules import liger_head
from bapo_lightning.modules.fsdp import reshard, with_weight
from bapo_lightning.modules.policy.file_names import PartOf, file_parts, under_file_names, without_memory
from bapo_lightning.modules.policy.log_z import LogZ
from bapo_lightning.modules.policy.lora import (
    BASE_MARK,
    WeightPass,
    base_weights,
    leave_casts_to_autocast,
    leave_frozen_weights_out,
    without_adapters,
)
from bapo_lightning.modules.policy.options import Head
from bapo_lightning.modules.policy.packing import row_arguments, row_layout
from bapo_lightning.modules.token_scores import SCORES, among_candidates, mean_logp, token_scores
from bapo_lightning.objectives.objective import CANDIDATES
from bapo_lightning.rollout.engine import MERGED, Wanted
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.precision import blocks
from bapo_lightning.system.ranks.collectives import max_over_ranks
from bapo_lightning.types import FinishReason, Rollout, Segment

# Options of heads that do more than a matrix product, with their neutral values. Scoring would silently
# ignore them otherwise.
LOGIT_TRANSFORMS = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}

BLANK = Rollout(array("i", [0]), (Segment(array("i", [0]), array("f", [0.0]), 0),), FinishReason.STOP)


class Policy(nn.Module):
    """Scores response tokens without ever building the logits of a whole micro-batch. Engines sample.

    Its state dict holds the trained weights: all of them, or only the adapters if the rest is frozen.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float,
        packed: bool = False,
        log_z: LogZ | None = None,
        is_cut: bool = False,
        head: Head = "own",
    ) -> None:
        """
        Args:
            model: causal LM in eval mode whose logits are `hidden @ head.weight.T`.
            temperature: temperature of the sampling distribution that log-probs refer to.
            packed: micro-batches are one row without padding, which the model's attention must support.
            log_z: head that is trained with the model; not part of `named_weights`.
            is_cut: log-probs refer to the distribution among a token's candidates, if it has any.
            head: with "liger" and "auto", Liger's kernel scores tokens wherever it takes them.
        """
        super().__init__()
        for name, neutral in LOGIT_TRANSFORMS.items():
            if getattr(model.config, name, neutral) not in (neutral, None):
                setting = f"{name}={getattr(model.config, name)}"
                problem = f"the model transforms its logits ({setting}), which token scoring does not support"
                raise ConfigError([problem])
        if model.base_model is model:
            raise ConfigError([f"{type(model).__name__} shows no part without its head; use another model"])
        if getattr(model.get_output_embeddings(), "bias", None) is not None:
            raise ConfigError(["the model's output head has a bias, which token scoring does not support"])
        self.model = model
        self.temperature = temperature
        self.log_z = log_z
        self.entropy_requires_grad = self.scores_mean_logp = self.scores_candidates = self.is_mixed = False
        self.is_cut, self.head = is_cut, head
        self.update_kept: float | None = None  # share of the adapters' update, in the last pass over weights
        self._reference: tuple[Policy, ...] = ()  # in a tuple, to keep it out of the module and its state
        self._device: torch.device | None = None  # device of passes, if weights are kept on another
        self.layout = row_layout(model.config._attn_implementation) if packed else Layout.PADDED
        leave_frozen_weights_out(self)

    def trained_parameters(self) -> list[nn.Parameter]:
        """Parameters that the optimizer changes."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def serve(self, needs: Collection[str]) -> None:
        """Makes passes return the columns that an objective needs, see `objectives.objective.Need`."""
        self.entropy_requires_grad = "entropy_gradient" in needs
        self.scores_mean_logp = not {"mean_logp", "entry_mean_logp"}.isdisjoint(needs)
        self.scores_candidates = not CANDIDATES.isdisjoint(needs)

    def mix_precision(self) -> None:
        """Makes blocks compute in bfloat16 from now on; weights stay as they are."""
        self.is_mixed = True
        leave_casts_to_autocast(self.model)
        for reference in self._reference:
            reference.mix_precision()

    def keep_reference(self, policy: Policy) -> None:
        """Lets `reference_logprobs` use another policy with the run's first weights. Adapters need none."""
        self._reference = (policy,)

    def forward(self, inputs: ModelInput) -> tuple[Tensor | None, ...]:
        """Returns log-probs [N] and entropies [N] of the response tokens and, if `scores_mean_logp` is set,
        the means [N] of `mean_logp`, in nats; with a head for log Z, the means or None, and log Z [N] of
        their prompts; if `scores_candidates` is set, all of these or None, and log-probs [N, K] of the
        candidates. Gradients flow through the log-probs, through log Z, and through the entropies if
        `entropy_requires_grad` is set. Entropies and means refer to the whole distribution, cut or not.

        Padding is on the right, which causal attention never reads, so no attention mask is needed.
        """
        arguments = row_arguments(inputs, self.model.config._attn_implementation)
        with blocks(self.is_mixed, inputs.input_ids.device):
            output = self.model.base_model(input_ids=inputs.input_ids, use_cache=False, **arguments)
        cells = output.last_hidden_state.flatten(0, 1)
        picked = cells.index_select(0, inputs.index)
        noted = inputs.candidates if self.is_cut or self.scores_candidates else None
        others = None if noted is None else noted.clamp_min(0)
        score = partial(self._scores, targets=inputs.targets, others=others)
        logp, entropy, mean, *others_logp = with_weight(self.model.get_output_embeddings(), score, picked)
        log_z = None if self.log_z is None else self.log_z(cells, inputs.prompts)
        candidate_logp = None
        if noted is not None:
            logp, candidate_logp = among_candidates(logp, others_logp[0], noted, self.is_cut)
        scores = logp, entropy, mean, log_z, candidate_logp if self.scores_candidates else None
        return scores[: max(place for place, kept in enumerate(scores, 1) if kept is not None)]

    def _scores(
        self, head: Tensor, hidden: Tensor, targets: Tensor, others: Tensor | None
    ) -> tuple[Any, ...]:
        """Log-probs and entropies [N], means [N] or None, and log-probs of the `others` if there are any."""
        score: Callable[..., tuple[Tensor, ...]] = partial(token_scores, others=others)
        if self.head != "own" and others is None and liger_head.takes(hidden, head, self.is_mixed):
            score = liger_head.liger_scores
        how = {"entropy_requires_grad": self.entropy_requires_grad, "half_factors": self.is_mixed}
        logp, entropy, *others_logp = score(hidden, head, targets, self.temperature, **how)
        mean = mean_logp(hidden, head, targets, logp, self.temperature) if self.scores_mean_logp else None
        return logp, entropy, mean, *others_logp

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, Tensor]]:
        """Yields weights and persistent buffers under their Hugging Face names, with adapters merged unless
        `wanted` differs. A tied head is left out, as in the model's files.
        """
        weights = WeightPass(self.model, wanted)
        if wanted.names == "files":
            yield from under_file_names(self.model, weights, self.file_parts)
        else:
            yield from weights
        self.update_kept = weights.update_kept

    def weight_shapes(self) -> Iterator[tuple[str, torch.dtype, torch.Size]]:
        """Yields name, dtype and shape of each of the merged `named_weights`, under the names of files,
        without gathering shards.
        """
        for name, weight in under_file_names(self.model, self._shapes(), self.file_parts):
            yield name, weight.dtype, weight.shape

    @cached_property
    def file_parts(self) -> PartOf | None:
        """Parts of the model whose weights are renamed to file names together; the same at every sync."""
        return file_parts(self.model, self._shapes())

    @property
    def num_weights(self) -> int:
        """Number of `named_weights` under the names of files."""
        return sum(1 for _ in self.weight_shapes())

    def _shapes(self) -> list[tuple[str, Tensor]]:
        return [
            (name.replace(BASE_MARK, "."), each) for name, each in without_memory(base_weights(self.model))
        ]

    def response_logprobs(self, rollouts: Sequence[Rollout], token_budget: int) -> list[array[float]]:
        """Returns only the log-probs of `response_scores`."""
        return [logp for (logp,) in self.response_scores(rollouts, token_budget, ("logp",))]

    @torch.no_grad()
    def response_scores(
        self, rollouts: Sequence[Rollout], token_budget: int, names: Sequence[str]
    ) -> list[tuple[array[float], ...]]:
        """Returns scores in nats of each rollout's response tokens, under the current weights and at the
        policy's temperature, in the order of their `names` in `SCORES`. At most `token_budget` tokens pass
        through the model at once; padding counts. Every rank must call it, with any number of rollouts.
        """
        parts = [rollout.branches for rollout in rollouts]
        if (branches := [branch for part in parts for branch in part]) and len(branches) > len(parts):
            scored = iter(self.response_scores(branches, token_budget, names))
            whole = [list(zip(*(next(scored) for _ in part), strict=True)) for part in parts]
            return [tuple(array("f", chain.from_iterable(columns)) for columns in each) for each in whole]
        device = self._device or self.model.get_output_embeddings().weight.device
        lengths = [len(rollout.prompt_ids) + rollout.length for rollout in rollouts]
        wanted = [SCORES.index(name) for name in names]
        by_row: dict[int, tuple[array[float], ...]] = {}
        passes = rows_by_token_budget(lengths, token_budget, self.layout, prompt_numbers(rollouts))
        # All ranks gather sharded weights together, so all make the same number of passes.
        for _ in range(max_over_ranks(len(passes)) - len(passes)):
            self(model_input([BLANK], device, self.layout))
        for rows in passes:
            part = [rollouts[row] for row in rows]
            scores = self(model_input(part, device, self.layout))
            responses = [rollout.length for rollout in part]
            pieces = zip(*(scores[index].float().cpu().split(responses) for index in wanted), strict=True)
            by_row |= {
                row: tuple(array("f", piece.numpy().tobytes()) for piece in columns)
                for row, columns in zip(rows, pieces, strict=True)
            }
        reshard(self)
        return [by_row[row] for row in range(len(rollouts))]

    def reference_logprobs(self, rollouts: Sequence[Rollout], token_budget: int) -> list[array[float]]:
        """Returns the `response_logprobs` from before the run's first update. Raises ValueError if there is
        neither a reference nor an adapter to leave out.
        """
        if not self._reference:
            with without_adapters(self.model):
                return self.response_logprobs(rollouts, token_budget)
        (reference,) = self._reference
        return reference.response_logprobs(rollouts, token_budget)

    def compute_on(self, device: torch.device) -> None:
        """Makes passes, also the reference's, compute on a device while weights stay in their place."""
        for part in (self, *self._reference):
            part._device = device
            for module in part.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.to(device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves the reference together with the policy."""
        for reference in self._reference:
            reference._apply(fn, recurse)
        return super()._apply(fn, recurse)
