"""Verdicts on mathematical answers: extract the marked answer, then compare, by algebra only if necessary.

    completion -> final answer (extract) -> equal text or numbers? (quick) -> math-verify and sympy in a
    worker (workers) -> Score

docs/rewards.md has the conventions and the safety model.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import validate_call

from bapo_lightning.extras.math.notation import clean
from bapo_lightning.extras.math.quick import normal_form, quick_verdict
from bapo_lightning.extras.math.sentences import is_prose, value_named
from bapo_lightning.extras.math.texts import states_nothing
from bapo_lightning.extras.math.workers.pool import VerifierPool
from bapo_lightning.rewards.extract import behind_thoughts, final_answer
from bapo_lightning.rewards.scores import UNPARSABLE, all_or_nothing, pairs_of
from bapo_lightning.system.host import num_cores
from bapo_lightning.system.values import Megabytes, Seconds, Workers
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

Accept = Literal["marked", "any"]
Unevaluated = Literal["refuse", "accept"]
MAX_UNMARKED_CHARACTERS = 20_000  # at the end of a text without a mark
MAX_VOTE_CHARACTERS = 200  # of `Score.answer`
MIN_MEMORY_MEGABYTES = 64  # less is too little for algebra
DEFAULT_TIMEOUT_SECONDS = 5.0
_TAG = re.compile(r"</?[A-Za-z]{2,12}\s*/?>")  # `4</think>5`: text after a tag is not part of a formula


class MathReward:
    r"""Callable `(problems, completions) -> scores`, from any thread. Owns worker processes from the first
    call to `close`.

    Args:
        accept: "marked": only answers that are marked as final count (see `extract`), and a response without
            a mark is UNPARSABLE. "any": a text without a mark is the answer itself, or, if it is a sentence,
            its last formula or number is.
        require_stop: makes a response that was cut at the token limit unparsable; otherwise its last mark
            counts.
        unevaluated: "refuse": if the gold answer is a number, an answer that leaves something to compute
            is WRONG (`12 \cdot 13`, see `closed_form`). "accept": any expression with the value is right.
        timeout_seconds: for one answer; an answer that takes longer is TIMEOUT.
        batch_seconds: for all slow answers of one call, those above `server.FIRST_TRY_SECONDS`; answers
            that are still undecided after this time are TIMEOUT.
        num_workers: maximum number of processes; None: one per core, at most 8.
        memory_megabytes: memory that one answer may use in a worker.

    Raises:
        ValueError: pydantic's, with all options whose values cannot work.
    """

    @validate_call
    def __init__(
        self,
        accept: Accept = "marked",
        require_stop: bool = False,
        unevaluated: Unevaluated = "refuse",
        timeout_seconds: Seconds = DEFAULT_TIMEOUT_SECONDS,
        batch_seconds: Seconds = 60.0,
        num_workers: Workers | None = None,
        memory_megabytes: Annotated[Megabytes, Ge(MIN_MEMORY_MEGABYTES)] = 512,
    ) -> None:
        self.accept, self.require_stop = accept, require_stop
        self.refuse_unevaluated = unevaluated == "refuse"
        limits = timeout_seconds, memory_megabytes, batch_seconds
        self._pool = VerifierPool(num_workers or min(num_cores(), 8), *limits, self.refuse_unevaluated)

    def __call__(self, problems: list[Problem], completions: list[Completion]) -> list[Score]:
        """Scores each completion against the problem at the same index: 1.0 for CORRECT, 0.0 otherwise."""
        golds, texts = [], []
        for problem, completion in pairs_of(problems, completions):
            is_cut = self.require_stop and completion.finish is not FinishReason.STOP
            golds.append(problem.answer)
            texts.append("" if is_cut else completion.text)
        return self.score_texts(golds, texts)

    def score_texts(
        self, golds: list[str], texts: list[str], timeout_seconds: float | None = None
    ) -> list[Score]:
        """Scores each text by its gold answer. `timeout_seconds` replaces the limits of answer and call."""
        scores: dict[int, Score] = {}
        undecided: dict[tuple[str, str], list[int]] = {}  # equal pairs are judged once
        for index, (gold, text) in enumerate(zip(golds, texts, strict=True)):
            answer = self.answer_of(text)
            if answer is None:
                scores[index] = UNPARSABLE
                continue
            expected = gold_answer(gold)
            equal, answer, cleaned = self._quick_verdict(expected, answer, text)
            if equal is None:
                undecided.setdefault((expected, answer), []).append(index)
            scores[index] = all_or_nothing(equal is True, normal_form(cleaned)[:MAX_VOTE_CHARACTERS])
        verdicts = self._pool.judge(list(undecided), timeout_seconds)
        for indices, verdict in zip(undecided.values(), verdicts, strict=True):
            value = float(verdict.status is ScoreStatus.CORRECT)
            for index in indices:
                scores[index] = Score(value, verdict.status, scores[index].answer)
        return [scores[index] for index in range(len(texts))]

    def answer_of(self, text: str) -> str | None:
        """Returns the part of `text` that counts as its answer, or None."""
        answer = final_answer(text)
        if answer is not None or self.accept == "marked":
            return answer or None
        return behind_thoughts(text)[-MAX_UNMARKED_CHARACTERS:].strip() or None

    def _quick_verdict(self, gold: str, answer: str, text: str) -> tuple[bool | None, str, str]:
        """Returns whether `answer` is right, None if that takes algebra; and the answer, or the value that
        it names if it is a sentence after a mark in `text`, as written and cleaned.
        """
        expected, cleaned = clean(gold), clean(answer)
        if states_nothing(expected) or (_TAG.search(cleaned) and expected != cleaned):
            return False, answer, cleaned
        if answer.endswith("!") and "!" not in gold + answer[:-1] and not re.search(r"!\s*\}", text):
            cleaned = clean(answer := answer[:-1].strip())  # an exclamation: boxes have factorials
        if expected != cleaned and is_prose(answer) and final_answer(text) is not None:
            named = value_named(answer)
            if named is None:
                return False, answer, cleaned
            answer, cleaned = named, clean(named)
        return quick_verdict(expected, cleaned, self.refuse_unevaluated), answer, cleaned

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty before the first answer that needs algebra."""
        return self._pool.worker_pids

    def close(self) -> None:
        """Ends the worker processes. A later call starts them again."""
        self._pool.close()


@lru_cache(maxsize=4096)
def gold_answer(gold: str) -> str:
    """Returns the answer that `gold` marks (data sets keep whole solutions, GSM8K its `####`), or `gold`."""
    return final_answer(gold) or gold
