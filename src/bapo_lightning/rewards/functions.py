"""Rewards of TRL's signature: `def reward(prompts, completions, **columns) -> list[float | None]`."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache
from inspect import Parameter, isawaitable, signature
from numbers import Real
from typing import Any

from bapo_lightning.rewards.extract import final_answer
from bapo_lightning.rewards.scores import failure, name_of, pairs_of
from bapo_lightning.system.errors import FOREIGN, RewardError, in_words, pass_stops
from bapo_lightning.system.orphans import in_background, print_failure
from bapo_lightning.system.printable import say
from bapo_lightning.system.values import imported
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

RewardFunction = Callable[..., Sequence[float | None]]
_OF_TRL = ("log_extra", "log_metric", "environments")
# Python's errors for `completion[0]["content"]` and `completion.get("content")` if a completion is a text.
_TAKEN_FOR_MESSAGES = ("string indices must be integers", "'str' object has no attribute")
_TEXTS = '; prompts and completions are texts here, also for chat models: write text, not text[0]["content"]'


class FunctionRewards:
    """Callable `(problems, completions) -> scores`: the weighted sum of what functions return.

    A function is called with keywords: `prompts` and `completions` (texts), `answer` (gold answers),
    `source`, `problem_id`, `completion_ids` (sampled tokens), `num_tokens`, `was_cut` (at the token limit),
    and the keys of the problems' metadata, each a list with an entry per completion. A function without
    `**columns` gets those that it names. None means that the function does not apply to that completion.

    Args:
        functions: the functions, or their dotted names.
        weights: one for each; None: 1 for all.
        correct_from: a completion whose sum is at least this counts as right in accuracies.

    Raises:
        ValueError: there is no function, or the number of weights differs.
    """

    def __init__(
        self,
        functions: list[str | RewardFunction],
        weights: list[float] | None = None,
        correct_from: float = 1.0,
    ) -> None:
        if problems := list(self.problems({"functions": functions, "weights": weights})):
            raise ValueError("; ".join(problems))
        self._functions = [imported(given) if isinstance(given, str) else given for given in functions]
        self._weights, self._correct_from = weights or [1.0] * len(functions), correct_from
        self._has_warned = False

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields what is wrong with the options of the constructor."""
        functions, weights = options["functions"], options["weights"]
        if not functions:
            yield "functions=[] judges nothing; write the names of functions, such as [my_rewards.brief]"
        if weights is not None and len(weights) != len(functions):
            yield f"weights has {len(weights)} values for {len(functions)} functions; write one for each"
        for name in functions:
            try:
                if isinstance(name, str) and not callable(imported(name)):
                    yield f"functions: {name} is not a function"
            except Exception as error:  # whatever the user's module raises on import
                yield f"functions: {name} cannot be imported ({in_words(error.__cause__ or error)})"

    def __call__(self, problems: list[Problem], completions: list[Completion]) -> list[Score]:
        """Scores each completion against the problem at the same index. Raises RewardError if a function
        fails or returns anything other than a number or None per completion.
        """
        columns = _columns(pairs_of(problems, completions))
        values = [_values(function, columns, len(problems)) for function in self._functions]
        if problems and not self._has_warned and all(value is None for row in values for value in row):
            self._has_warned = True
            names = ", ".join(map(name_of, self._functions))
            what = f"returned None for all {len(problems)} completions of a call, which scores 0"
            say(f"warning: {names} {what}", sys.stderr)
        return [
            self._score(list(row), completion) for *row, completion in zip(*values, completions, strict=True)
        ]

    def _score(self, row: list[float | None], completion: Completion) -> Score:
        parts = [w * value for w, value in zip(self._weights, row, strict=True) if value is not None]
        if not parts:
            return Score(0.0, ScoreStatus.FAILED, parts=(0.0,) * len(row))
        total = math.fsum(parts)
        status = ScoreStatus.CORRECT if total >= self._correct_from else ScoreStatus.WRONG
        single = tuple(value or 0.0 for value in row)
        return Score(total, status, final_answer(completion.text) or "", single)


def is_reward_function(called: Any) -> bool:
    """Whether a function has TRL's signature rather than `(problems, completions)`."""
    names = signature(called).parameters.keys()
    return bool({"completions", "completion_ids"} & names) and "problems" not in names


def _columns(pairs: Sequence[tuple[Problem, Completion]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for problem, _ in pairs for key in problem.metadata)
    return {key: [problem.metadata.get(key) for problem, _ in pairs] for key in keys} | {
        "prompts": [problem.prompt for problem, _ in pairs],
        "completions": [completion.text for _, completion in pairs],
        "answer": [problem.answer for problem, _ in pairs],
        "source": [problem.source for problem, _ in pairs],
        "problem_id": [problem.id for problem, _ in pairs],
        "completion_ids": [completion.token_ids for _, completion in pairs],
        "num_tokens": [completion.num_tokens for _, completion in pairs],
        "was_cut": [completion.finish is not FinishReason.STOP for _, completion in pairs],
    }


def _values(function: RewardFunction, columns: Mapping[str, list[Any]], count: int) -> list[float | None]:
    name = f"reward function {name_of(function)}"
    given = _arguments(name, function, columns)
    try:
        output = function(**given)
        output = _awaited(output) if isawaitable(output) else output
        are_values = isinstance(output, Iterable) and not isinstance(output, str | Mapping)
        returned = [_plain(value) for value in output] if are_values else output
    except FOREIGN as error:
        pass_stops(error)
        hint = _TEXTS if any(words in str(error) for words in _TAKEN_FOR_MESSAGES) else ""
        raise RewardError(failure(name, error) + hint) from error
    if not are_values:
        raise RewardError(f"{name} returned {output!r:.80} for {count} completions; return a list of numbers")
    if len(returned) != count:
        raise RewardError(f"{name} returned {len(returned)} values for {count} completions; return one each")
    for index, value in enumerate(returned):
        if value is not None and not (isinstance(value, Real) and math.isfinite(value)):
            raise RewardError(f"{name} returned {value!r} for completion {index}; return a number, or None")
    return [None if value is None else float(value) for value in returned]


def _awaited(awaitable: Awaitable[Any]) -> Any:
    """Result of a coroutine. It runs in the one event loop of this process, which has its own thread: in a
    notebook another loop runs in the caller's thread, and a client that is made once belongs to one loop.
    """

    async def outcome() -> tuple[Any, SystemExit | None]:
        try:
            return await awaitable, None
        except SystemExit as error:  # it would end the loop; it is raised in the thread that waits
            return None, error

    with _LOOP_LOCK:
        future = asyncio.run_coroutine_threadsafe(outcome(), _loop())
    try:
        value, ended = future.result()
    finally:
        future.cancel()  # after Ctrl-C
    if ended is not None:
        raise ended
    return value


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def run() -> None:
        while not loop.is_closed():
            with suppress(SystemExit):  # of a task that the coroutine started, which receives it as well
                loop.run_forever()

    in_background("asynchronous rewards", run, print_failure)
    return loop


_LOOP_LOCK = threading.Lock()
os.register_at_fork(after_in_child=_loop.cache_clear)  # a fork does not copy threads


def _arguments(name: str, function: RewardFunction, columns: Mapping[str, list[Any]]) -> Mapping[str, Any]:
    parameters = signature(function).parameters
    takes_all = any(item.kind is Parameter.VAR_KEYWORD for item in parameters.values())
    given = columns if takes_all else {key: columns[key] for key in parameters if key in columns}
    if missing := [key for key, item in parameters.items() if _must_be_given(item) and key not in given]:
        if of_trl := [key for key in missing if key in _OF_TRL]:
            remedy = f"{', '.join(of_trl)} of TRL's trainer is not here: leave it out, or give it a default"
        else:
            keep = f"data.train.mapping.keep=[{missing[0]}]"
            remedy = f"to keep a column of the data write {keep}, and likewise for data.validation"
        raise RewardError(f"{name} takes {', '.join(missing)}, and there are {', '.join(columns)}; {remedy}")
    # Functions may change their arguments: each function gets a copy, separate from the run's.
    given = {key: [deepcopy(value) for value in column] for key, column in given.items()}
    # TRL's argument, which has no counterpart here.
    return {**given, "trainer_state": None} if "trainer_state" in parameters else given


def _must_be_given(parameter: Parameter) -> bool:
    is_named = parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return is_named and parameter.default is Parameter.empty and parameter.name != "trainer_state"


def _plain(value: Any) -> Any:
    """Python's number for a bool or number of numpy, and for a tensor with one element."""
    is_one = math.prod(getattr(value, "shape", (0,))) == 1
    return value.item() if is_one and hasattr(value, "item") else value
