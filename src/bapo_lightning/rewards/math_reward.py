"""Verdicts on mathematical answers: extract the marked answer, compare fast where that is possible, by
algebra where it is not.

    completion -> final answer (extract) -> equal text or numbers? (quick) -> math-verify and sympy in a
    worker (verifier_pool) -> Score

docs/rewards.md has the conventions and the safety model.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, Literal, get_args

from bapo_lightning.errors import ConfigError
from bapo_lightning.rewards.extract import final_answer
from bapo_lightning.rewards.quick import clean, normal_form, quick_verdict
from bapo_lightning.rewards.verifier_pool import VerifierPool
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

Accept = Literal["marked", "any"]
MAX_UNMARKED_CHARACTERS = 20_000  # at the end of a text without a mark
MAX_VOTE_CHARACTERS = 200  # of `Score.answer`
DEFAULT_TIMEOUT_SECONDS = 5.0
UNPARSABLE = Score(0.0, ScoreStatus.UNPARSABLE)


class MathReward:
    """Callable `(problems, completions) -> scores`, from any thread. Owns worker processes from the first
    call to `close`.

    Args:
        accept: "marked": only answers that are marked as final count (see `extract`), a response without a
            mark is UNPARSABLE. "any": a text without a mark is taken as the answer itself, or for its last
            formula or number where it is a sentence.
        require_stop: a response that was cut at the token limit is unparsable; else its last mark counts all
            the same.
        timeout_seconds: for one answer; what takes longer is TIMEOUT.
        num_workers: processes; null: one per core, at most 8.
        memory_megabytes: that one answer may take in a worker.
    """

    def __init__(
        self,
        accept: Accept = "marked",
        require_stop: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        num_workers: int | None = None,
        memory_megabytes: int = 512,
    ) -> None:
        _check(accept, timeout_seconds, num_workers, memory_megabytes)
        self.accept, self.require_stop = accept, require_stop
        self._pool = VerifierPool(num_workers or default_num_workers(), timeout_seconds, memory_megabytes)

    def __call__(self, problems: list[Problem], completions: list[Completion]) -> list[Score]:
        """Score each completion against the problem at the same place: 1.0 for CORRECT, 0.0 for everything
        else.
        """
        if len(problems) != len(completions):
            raise ValueError(
                f"each completion needs its problem: got {len(problems)} problems and {len(completions)} "
                "completions"
            )
        cut = [self.require_stop and completion.finish is not FinishReason.STOP for completion in completions]
        texts = [
            "" if is_cut else completion.text for is_cut, completion in zip(cut, completions, strict=True)
        ]
        return self.score_texts([problem.answer for problem in problems], texts)

    def score_texts(
        self, golds: list[str], texts: list[str], timeout_seconds: float | None = None
    ) -> list[Score]:
        """Score each text against the gold answer at the same place; `timeout_seconds` in place of the
        reward's own.
        """
        scores: dict[int, Score] = {}
        undecided: list[tuple[int, str, str]] = []
        for index, (gold, text) in enumerate(zip(golds, texts, strict=True)):
            answer = self.answer_of(text)
            if answer is None:
                scores[index] = UNPARSABLE
                continue
            expected, cleaned = gold_answer(gold), clean(answer)
            equal = quick_verdict(clean(expected), cleaned)
            if equal is None:
                undecided.append((index, expected, answer))
            scores[index] = _score(ScoreStatus.CORRECT if equal else ScoreStatus.WRONG, normal_form(cleaned))
        verdicts = self._pool.judge([(gold, answer) for _, gold, answer in undecided], timeout_seconds)
        for (index, _, _), verdict in zip(undecided, verdicts, strict=True):
            scores[index] = _score(verdict.status, scores[index].answer)
        return [scores[index] for index in range(len(texts))]

    def answer_of(self, text: str) -> str | None:
        """The part of `text` that counts, None when there is none."""
        answer = final_answer(text)
        if answer is not None or self.accept == "marked":
            return answer or None
        return text[-MAX_UNMARKED_CHARACTERS:].strip() or None

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty before one was needed."""
        return self._pool.worker_pids

    def close(self) -> None:
        """End the worker processes. A later call starts them again."""
        self._pool.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process has workers of its own."""
        pool = self._pool
        return {**self.__dict__, "_pool": (pool.num_workers, pool.timeout_seconds, pool.memory_megabytes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_pool": VerifierPool(*state["_pool"])}


@lru_cache(maxsize=4096)
def gold_answer(gold: str) -> str:
    """A gold answer as it stands, or what it marks: data sets keep whole solutions, and GSM8K its `####`."""
    return final_answer(gold) or gold


def default_num_workers() -> int:
    """One per core that this process may use, at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


def _score(status: ScoreStatus, answer: str) -> Score:
    return Score(1.0 if status is ScoreStatus.CORRECT else 0.0, status, answer[:MAX_VOTE_CHARACTERS])


def _check(accept: str, timeout_seconds: float, num_workers: int | None, memory_megabytes: int) -> None:
    complaints = []
    if accept not in get_args(Accept):
        complaints.append(
            f"reward.accept={accept} is none of its values; write {' or '.join(get_args(Accept))}"
        )
    if not timeout_seconds > 0:
        complaints.append(
            f"reward.timeout_seconds={timeout_seconds} leaves no time to judge; write a positive number, "
            "e.g. 5"
        )
    if num_workers is not None and num_workers < 1:
        complaints.append(
            f"reward.num_workers={num_workers} are too few; write 1 or more, or null for one per core"
        )
    if memory_megabytes < 64:
        complaints.append(
            f"reward.memory_megabytes={memory_megabytes} is too little for algebra; write 64 or more"
        )
    if complaints:
        raise ConfigError(complaints)
