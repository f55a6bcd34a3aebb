"""Figures of the models of the tiny worlds, for their READMEs and for tests of the shipped ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from bapo_lightning.rewards.final_value import final_value
from bapo_lightning.tiny_worlds.additions.task import Additions, addition_problems
from bapo_lightning.tiny_worlds.locks.task import END_MARK, all_lock_problems, all_locks
from bapo_lightning.tiny_worlds.sums.calculator import CALL, END_OF_CALL, ERROR, answer_to
from bapo_lightning.tiny_worlds.sums.task import sum_problems
from bapo_lightning.types import Completion, FinishReason, Problem

MAX_TURNS = 3  # of a conversation about a sum
MAX_TURN_TOKENS = 12


def _report(measured: str, figures: dict[str, Any]) -> str:
    rows = [f"| {name} | {value:.3f} |" for name, value in figures.items() if isinstance(value, float)]
    return "\n".join([measured, "", "| quantity | value |", "| --- | --- |", *rows])


@dataclass(frozen=True, slots=True)
class AdditionFigures:
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
        measured = (
            f"Measured on {self.num_problems} validation problems, {self.samples} samples each at temperature"
            f" 1, at most {Additions().response_tokens} tokens:"
        )
        return _report(measured, asdict(self))


@torch.no_grad()
def measure_additions(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
    num_problems: int = 256,
    samples: int = 4,
) -> AdditionFigures:
    """Measures sampled responses to validation problems, at temperature 1.

    Seeds torch's global generator with `seed`.
    """
    torch.manual_seed(seed)
    problems = [p for p in addition_problems("validation", num_problems) for _ in range(samples)]
    prompts = tokenizer([problem.prompt for problem in problems], return_tensors="pt")
    prompt_length = prompts.input_ids.shape[1]
    tokens_BT = _sampled(model, prompts, max_new_tokens=Additions().response_tokens)
    response_BT = tokens_BT[:, prompt_length:]
    completions = [_completion(tokenizer, row) for row in response_BT]
    right_B = torch.tensor([score.value == 1.0 for score in final_value(problems, completions)])
    length_B = torch.tensor([float(completion.num_tokens) for completion in completions])
    pairs = zip(problems, completions, strict=True)
    logits_BTV = model(tokens_BT).logits[:, prompt_length - 1 : -1]
    entropy_BT = torch.distributions.Categorical(logits=logits_BTV).entropy()
    return AdditionFigures(
        num_problems=num_problems,
        samples=samples,
        sampled_accuracy=right_B.float().mean().item(),
        first_value_right=_share(re.split(r"\D", c.text)[0] == problem.answer for problem, c in pairs),
        entropy_nats=entropy_BT[torch.arange(response_BT.shape[1]) < length_B[:, None]].mean().item(),
        length_right=length_B[right_B].mean().item(),
        length_not_right=length_B[~right_B].mean().item(),
        cut_fraction=_share(completion.finish is FinishReason.LENGTH for completion in completions),
    )


def _completion(tokenizer: PreTrainedTokenizerBase, row: Tensor) -> Completion:
    ended = bool((row == tokenizer.eos_token_id).any())
    return Completion(
        text=str(tokenizer.decode(row, skip_special_tokens=True)),
        num_tokens=int((row != tokenizer.pad_token_id).sum()),
        finish=FinishReason.STOP if ended else FinishReason.LENGTH,
    )


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
        measured = "Computed from the probabilities at temperature 1, for every lock on every day:"
        return _report(measured, asdict(self))


@torch.no_grad()
def measure_locks(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> LockFigures:
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
        measured = (
            f"Measured on {self.num_problems} validation problems, {self.samples} conversations each at"
            f" temperature 1, at most {MAX_TURNS} turns:"
        )
        return _report(measured, asdict(self))


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


def measure_sums(
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
    tokens = _sampled(model, context, max_new_tokens=MAX_TURN_TOKENS, eos_token_id=ends)
    for one, row in zip(held, tokens[:, context.input_ids.shape[1] :], strict=True):
        turn = str(tokenizer.decode(row)).replace(str(tokenizer.pad_token), "")
        one.turns.append(turn)
        one.text += turn + (answer_to(turn) if turn.endswith(END_OF_CALL) else "")


def _sampled(model: LlamaForCausalLM, context: Any, **limits: Any) -> Tensor:
    # transformers 5 types `generate` by a self argument that no model class satisfies.
    return cast(Any, model).generate(**context, do_sample=True, top_k=0, top_p=1.0, **limits)


def _share(verdicts: Iterable[bool]) -> float:
    found = list(verdicts)
    return sum(found) / len(found) if found else float("nan")
