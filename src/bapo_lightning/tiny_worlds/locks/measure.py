"""Figures of a model of the locks, computed from its probabilities, not sampled."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from bapo_lightning.tiny_worlds.locks.task import END_MARK, all_lock_problems, all_locks


@dataclass(frozen=True, slots=True)
class LockFigures:
    """Means over all locks and days."""

    popular_key: float  # probability
    master_key: float  # probability
    # probability, mean over the tenth of the problems where it is least
    master_key_of_the_rarest_tenth: float
    reward: float  # expected, at temperature 1, if every answer ended as its key demands
    ends_where_it_opens: float  # probability that the answer ends after a master key
    searches_where_it_does_not: float  # probability that the search goes on after a popular key that fails

    def report(self) -> str:
        """Returns how it was measured, and a Markdown table with one row per figure."""
        rows = [f"| {name} | {value:.3f} |" for name, value in asdict(self).items()]
        measured = "Computed from the probabilities at temperature 1, for every lock on every day:"
        return "\n".join([measured, "", "| quantity | value |", "| --- | --- |", *rows])


@torch.no_grad()
def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> LockFigures:
    """Measures the distribution of keys, and what follows them."""
    problems, locks = all_lock_problems(), all_locks()
    own = [locks[int(problem.prompt.partition(":")[0])] for problem in problems]
    end = tokenizer.convert_tokens_to_ids(END_MARK)

    def next_token(texts: list[str]) -> torch.Tensor:
        return model(tokenizer(texts, return_tensors="pt").input_ids).logits[:, -1].softmax(-1)

    def of(keys: list[str]) -> torch.Tensor:
        return first.gather(1, torch.tensor(tokenizer.convert_tokens_to_ids(keys)).unsqueeze(1)).squeeze(1)

    def ends_after(keys: list[str]) -> torch.Tensor:
        texts = [problem.prompt + key for problem, key in zip(problems, keys, strict=True)]
        return next_token(texts)[:, end]

    first = next_token([problem.prompt for problem in problems])
    masters, populars = [lock.master for lock in own], [lock.popular for lock in own]
    opens = torch.tensor([key in problem.answer for key, problem in zip(populars, problems, strict=True)])
    popular, master = of(populars), of(masters)
    rarest = master.sort().values[: len(problems) // 10]
    return LockFigures(
        popular_key=popular.mean().item(),
        master_key=master.mean().item(),
        master_key_of_the_rarest_tenth=rarest.mean().item(),
        reward=(master + popular * opens).mean().item(),
        ends_where_it_opens=ends_after(masters).mean().item(),
        searches_where_it_does_not=(1 - ends_after(populars)[~opens]).mean().item(),
    )
