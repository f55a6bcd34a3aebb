"""Figures of a model of the tiny world: accuracy, entropy, and lengths by verdict of sampled responses."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from bapo_lightning.rewards.final_value import final_value
from bapo_lightning.tiny_worlds.additions.task import Additions, addition_problems
from bapo_lightning.types import Completion, FinishReason, Problem


@dataclass(frozen=True, slots=True)
class StartingFigures:
    """Means over sampled responses; lengths in tokens, the end token included."""

    num_problems: int
    samples: int  # per problem
    sampled_accuracy: float
    first_value_right: float  # share of responses whose first value is right: arithmetic alone
    entropy_nats: float  # per response token
    length_right: float
    length_not_right: float
    cut_fraction: float  # responses that reached the token limit

    def report(self) -> str:
        """Returns how it was measured, and a Markdown table with one row per figure."""
        rows = [
            f"| {name} | {value:.3f} |" for name, value in asdict(self).items() if isinstance(value, float)
        ]
        measured = (
            f"Measured on {self.num_problems} validation problems, {self.samples} samples each at temperature"
            f" 1, at most {Additions().response_tokens} tokens:"
        )
        return "\n".join([measured, "", "| quantity | value |", "| --- | --- |", *rows])


@torch.no_grad()
def measure(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
    num_problems: int = 256,
    samples: int = 4,
) -> StartingFigures:
    """Measures sampled responses to validation problems, at temperature 1.

    Seeds torch's global generator with `seed`.
    """
    torch.manual_seed(seed)
    problems = addition_problems("validation", num_problems)
    repeated = [problem for problem in problems for _ in range(samples)]
    response_BT, completions = _respond(model, tokenizer, repeated)
    right_B = _right(repeated, completions)
    length_B = torch.tensor([float(completion.num_tokens) for completion in completions])
    return StartingFigures(
        num_problems=num_problems,
        samples=samples,
        sampled_accuracy=right_B.float().mean().item(),
        first_value_right=_share_first_right(repeated, completions),
        entropy_nats=_mean_entropy(model, tokenizer, repeated, response_BT, length_B),
        length_right=length_B[right_B].mean().item(),
        length_not_right=length_B[~right_B].mean().item(),
        cut_fraction=sum(completion.finish is FinishReason.LENGTH for completion in completions)
        / len(completions),
    )


def _respond(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, problems: list[Problem]
) -> tuple[Tensor, list[Completion]]:
    prompts = tokenizer([problem.prompt for problem in problems], return_tensors="pt")
    # transformers 5 types `generate` by a self argument that no model class satisfies.
    tokens = cast(Any, model).generate(
        **prompts, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=Additions().response_tokens
    )
    response_BT = tokens[:, prompts.input_ids.shape[1] :]
    return response_BT, [_completion(tokenizer, row) for row in response_BT]


def _completion(tokenizer: PreTrainedTokenizerBase, row: Tensor) -> Completion:
    ended = bool((row == tokenizer.eos_token_id).any())
    return Completion(
        text=str(tokenizer.decode(row, skip_special_tokens=True)),
        num_tokens=int((row != tokenizer.pad_token_id).sum()),
        finish=FinishReason.STOP if ended else FinishReason.LENGTH,
    )


def _right(problems: list[Problem], completions: list[Completion]) -> Tensor:
    return torch.tensor([score.value == 1.0 for score in final_value(problems, completions)])


def _share_first_right(problems: list[Problem], completions: list[Completion]) -> float:
    first = [re.match(r"\d*", completion.text) for completion in completions]
    right = [
        match is not None and match.group() == problem.answer
        for match, problem in zip(first, problems, strict=True)
    ]
    return sum(right) / len(right)


def _mean_entropy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    problems: list[Problem],
    response_BT: Tensor,
    length_B: Tensor,
) -> float:
    """Mean entropy of the next-token distribution over the sampled response tokens, in nats."""
    prompt_BP = tokenizer([problem.prompt for problem in problems], return_tensors="pt").input_ids
    logits_BTV = model(torch.cat([prompt_BP, response_BT], dim=1)).logits[:, prompt_BP.shape[1] - 1 : -1]
    entropy_BT = torch.distributions.Categorical(logits=logits_BTV).entropy()
    mask_BT = torch.arange(response_BT.shape[1]) < length_B[:, None]
    return (entropy_BT[mask_BT].mean()).item()
