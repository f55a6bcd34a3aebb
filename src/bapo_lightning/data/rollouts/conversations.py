"""Turns of the policy, and an environment that answers between them.

    requests -> engine -> a turn has ended -> environment.respond -> feedback tokens -> requests -> ...
                  |                               | is_done, or a limit
                  v                               v
                  the rollout goes on in the next pass, or has ended

What was sampled is never tokenised again: feedback is appended to it as tokens. All turns of a pass are
sampled by the same weights, and a pass gives a rollout no more tokens than one without turns, so that ages
are bounded as they are there.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from bapo_lightning.data.rollouts.feedback import FeedbackRule, harmless
from bapo_lightning.data.rollouts.reply_journal import ReplyJournal
from bapo_lightning.data.rollouts.rounds import Rounds
from bapo_lightning.environments.environment import Environment, Turn
from bapo_lightning.errors import EnvironmentFault
from bapo_lightning.rollout.engine import Generation, GenerationRequest
from bapo_lightning.rollout.seeds import turn_seed
from bapo_lightning.types import Closes, FinishReason, Problem, Reply, Rollout

# requests -> generations by number of their request; none if the engine died on the way
Sample = Callable[[Sequence[GenerationRequest]], Mapping[int, Generation]]


@dataclass(eq=False)
class Conversations:
    """Continues rollouts over turns."""

    environment: Environment
    feedback: FeedbackRule
    tokenizer: Any  # a transformers tokenizer
    max_turns: int  # of the policy in one rollout
    max_reply_tokens: int  # of one reply; the rest of it is cut off
    max_feedback_tokens: int  # of all replies of one rollout together
    max_new_tokens: int  # sampled tokens of one rollout, over all turns
    workers: int  # threads that ask the environment; 0: the thread that samples asks
    journal: ReplyJournal = field(default_factory=ReplyJournal)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)

    def continued(
        self,
        requests: Sequence[GenerationRequest],
        problems: Sequence[Problem],
        rollouts: Sequence[Rollout],
        sample: Sample,
        rounds: Rounds | None = None,
    ) -> dict[int, Rollout]:
        """Returns the rollouts after one pass, by number; none where the engine died.

        A slow reply keeps the others waiting no longer than the last turn took to sample.

        Args:
            requests: one for each of `rollouts`; its limit holds for all tokens of the pass.
            problems: one for each rollout.
            rollouts: unfinished rollouts.
            sample: asks the engine.
            rounds: rounds of replies to take together; None: as they come.
        """
        self.journal.begin_pass()
        running, left = dict(enumerate(rollouts)), [request.max_new_tokens for request in requests]
        pending, waiting = dict(enumerate(requests)), dict[int, Future[Reply]]()
        rounds, patience = rounds or Rounds(), 0.0
        while pending or waiting:
            begun = time.perf_counter()
            made = sample(list(pending.values())) if pending else {}
            if len(made) < len(pending):
                wait(waiting.values())  # replies on their way belong to the pass as well
                self.journal.undo_pass()
                return {}
            patience = time.perf_counter() - begun if pending else patience
            for number, generation in zip(pending, made.values(), strict=True):
                rollout, segment = running[number], generation.segment
                running[number] = rollout.extended(segment, generation.finish, self.max_new_tokens)
                left[number] -= len(segment.token_ids)
                if generation.finish is FinishReason.STOP:
                    waiting[number] = self._asked(problems[number], running[number])
            pending = {}
            for number, reply in rounds.take(waiting, patience).items():
                running[number] = rollout = self._answered(running[number], reply)
                if rollout.finish is None and left[number] > 0:
                    pending[number] = replace(
                        requests[number],
                        token_ids=rollout.token_ids,
                        max_new_tokens=min(left[number], self.max_new_tokens - rollout.length),
                        seed=turn_seed(requests[number].seed, rollout.length),
                    )
        return running

    def close(self) -> None:
        """Ends threads and the environment's processes. Calling it twice is fine."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        if isinstance(self.environment, Closes):
            self.environment.close()

    def _asked(self, problem: Problem, rollout: Rollout) -> Future[Reply]:
        """Hands the last turn of a rollout to the environment."""
        if self.workers and self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="environment")
        if self._pool is not None:
            return self._pool.submit(self._reply, problem, rollout)
        done: Future[Reply] = Future()
        done.set_result(self._reply(problem, rollout))
        return done

    def _reply(self, problem: Problem, rollout: Rollout) -> Reply:
        """Asks the environment unless it has answered this turn before. Raises EnvironmentFault."""
        number = len(rollout.replies)
        try:
            state = rollout.replies[-1].state if number else self.environment.start(problem)
            is_pure = getattr(self.environment, "is_pure", False)
            if not is_pure and (known := self.journal.known(problem, rollout, state)) is not None:
                return known
            text = self.tokenizer.decode(rollout.turns[-1].tolist(), skip_special_tokens=True)
            reply = self.environment.respond(Turn(problem, text, number, self._is_last(rollout), state))
            if not isinstance(reply, Reply):
                raise TypeError(f"respond returned {reply!r}; return a bapo_lightning.types.Reply")
            if not is_pure:
                self.journal.write(problem, rollout, state, reply)
        except Exception as error:
            where = f"turn {number} of problem {problem.id}"
            cause = f"{type(error).__name__}: {error}"
            raise EnvironmentFault(f"the environment failed at {where}: {cause}") from error
        return reply

    def _is_last(self, rollout: Rollout) -> bool:
        """Whether a limit allows no turn after the one that has just ended."""
        return (
            len(rollout.replies) + 1 >= self.max_turns
            or rollout.length >= self.max_new_tokens
            or rollout.num_feedback_tokens >= self.max_feedback_tokens
        )

    def _answered(self, rollout: Rollout, reply: Reply) -> Rollout:
        """Returns the rollout with a reply to the turn that has just ended."""
        ended = replace(rollout, replies=(*rollout.replies, reply))
        if reply.is_done:
            return replace(ended, finish=FinishReason.STOP)
        if self._is_last(rollout):
            return ended.cut()
        feedback = self._feedback(reply.text)
        if rollout.num_feedback_tokens + len(feedback) > self.max_feedback_tokens:
            return ended.cut()
        return rollout.answered(reply, feedback)

    def _feedback(self, text: str) -> array[int]:
        """Token ids of a reply in its surroundings, cut by tokens."""
        text = harmless(self.tokenizer, text)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if len(ids) > self.max_reply_tokens:
            text = self.tokenizer.decode(ids[: self.max_reply_tokens])
        return self.feedback(self.tokenizer, text)
