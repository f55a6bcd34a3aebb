"""Figures of a model of the sums, from sampled conversations with the calculator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from bapo_lightning.tiny_worlds.sums.calculator import CALL, END_OF_CALL, ERROR, answer_to
from bapo_lightning.tiny_worlds.sums.task import END_MARK, sum_problems
from bapo_lightning.types import Problem

MAX_TURNS = 3
MAX_TURN_TOKENS = 12


@dataclass(frozen=True, slots=True)
class SumFigures:
    """Shares over sampled conversations."""

    num_problems: int
    samples: int  # per problem
    calls: float  # of all: those whose first turn calls the calculator
    right_calls: float  # of those: the call is about the problem's terms
    unreadable_calls: float  # of those: the calculator answers `!`
    right_after_a_right_call: float
    right_without_a_call: float
    reward: float  # of all: the last turn is the sum

    def report(self) -> str:
        """Returns how it was measured, and a Markdown table with one row per figure."""
        rows = [
            f"| {name} | {value:.3f} |" for name, value in asdict(self).items() if isinstance(value, float)
        ]
        measured = (
            f"Measured on {self.num_problems} validation problems, {self.samples} conversations each at"
            f" temperature 1, at most {MAX_TURNS} turns:"
        )
        return "\n".join([measured, "", "| quantity | value |", "| --- | --- |", *rows])


@dataclass(slots=True)
class _Conversation:
    problem: Problem
    text: str  # of all turns and their feedback, behind the prompt
    turns: list[str]

    @property
    def calls(self) -> bool:
        return self.turns[0].startswith(CALL)

    @property
    def right_call(self) -> bool:
        return self.turns[0] == f"{CALL}{self.problem.prompt.rstrip('=')}{END_OF_CALL}"

    @property
    def is_right(self) -> bool:
        return self.turns[-1] == f"{self.problem.answer}{END_MARK}"


def measure(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
    num_problems: int = 1000,
    samples: int = 16,
) -> SumFigures:
    """Measures conversations about validation problems, at temperature 1.

    Seeds torch's global generator with `seed`.
    """
    torch.manual_seed(seed)
    problems = sum_problems("validation", num_problems)
    held = [_Conversation(problem, "", []) for problem in problems for _ in range(samples)]
    for _ in range(MAX_TURNS):
        _take_turns(model, tokenizer, [one for one in held if not one.text.endswith(END_MARK)])
    called = [one for one in held if one.calls]
    return SumFigures(
        num_problems=num_problems,
        samples=samples,
        calls=_share(one.calls for one in held),
        right_calls=_share(one.right_call for one in called),
        unreadable_calls=_share(answer_to(one.turns[0]) == ERROR for one in called),
        right_after_a_right_call=_share(one.is_right for one in called if one.right_call),
        right_without_a_call=_share(one.is_right for one in held if not one.calls),
        reward=_share(one.is_right for one in held),
    )


def _take_turns(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, held: list[_Conversation]
) -> None:
    """Adds a turn to each conversation, and the calculator's feedback where it calls it."""
    if not held:
        return
    context = tokenizer([one.problem.prompt + one.text for one in held], padding=True, return_tensors="pt")
    ends = tokenizer.convert_tokens_to_ids([END_MARK, END_OF_CALL])
    # transformers 5 types `generate` by a self argument that no model class satisfies.
    tokens = cast(Any, model).generate(
        **context, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=MAX_TURN_TOKENS, eos_token_id=ends
    )
    for one, row in zip(held, tokens[:, context.input_ids.shape[1] :], strict=True):
        turn = str(tokenizer.decode(row)).replace(str(tokenizer.pad_token), "")
        one.turns.append(turn)
        one.text += turn + (answer_to(turn) if turn.endswith(END_OF_CALL) else "")


def _share(verdicts: Iterable[bool]) -> float:
    found = list(verdicts)
    return sum(found) / len(found) if found else float("nan")
