"""Turns of the policy, and an environment that answers between them.

    requests -> engine -> a turn has ended -> environment.respond -> feedback tokens -> requests -> ...
                  |                               | is_done, or a limit
                  v                               v
                  the rollout continues in the next pass, or has ended

Sampled text is never tokenised again: feedback is appended to it as tokens. All turns of a pass are sampled
with the same weights, and a pass gives a rollout no more tokens than a pass without turns, so that ages have
the same bounds.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bapo_lightning.data.problems.prompts import decoded
from bapo_lightning.data.rollouts.control_tokens import ControlTokens
from bapo_lightning.data.rollouts.feedback import FeedbackRule
from bapo_lightning.environments.environment import Environment, Turn
from bapo_lightning.rollout.engine import Generation, GenerationRequest, turn_seed
from bapo_lightning.system.errors import FOREIGN, EnvironmentFault, in_words, pass_stops
from bapo_lightning.system.phases import phase
from bapo_lightning.system.printable import read_back, whole_characters
from bapo_lightning.system.run_folder.journal import Journal
from bapo_lightning.system.run_folder.record import read_lines
from bapo_lightning.system.run_folder.shapes import ReplyFields, ReplyRow, shaped
from bapo_lightning.types import Closes, FinishReason, Problem, Reply, Rollout


@dataclass(eq=False)
class Rounds:
    """Rounds of replies that one pass takes together. The last bits of log-probs depend on which responses
    share a forward pass; with threads for the environment that depends on times, so it is recorded.
    """

    # Numbers of the requests to answer in each round; None: those whose replies have come.
    recorded: Sequence[Sequence[int]] | None = None
    _taken: list[list[int]] = field(default_factory=list, init=False)
    _all_at_once: bool = field(default=True, init=False)

    @property
    def taken(self) -> list[list[int]]:
        """Value of `recorded` for a pass that repeats this one; empty if every round took all."""
        return [] if self._all_at_once else self._taken

    def take(self, waiting: dict[int, Future[Reply]], patience: float) -> dict[int, Reply]:
        """Takes the replies of the next round out of `waiting` (by number of their request), in its order,
        and at least one if `waiting` is not empty. After `patience` seconds the replies that have come
        are taken without the others.
        """
        with phase("waiting for the environment"):
            if self.recorded is None:
                numbers = self._there(waiting, patience)
            else:
                place = len(self._taken)
                wanted = self.recorded[place] if place < len(self.recorded) else ()
                # All of them if the content differs from the recorded content.
                numbers = [number for number in waiting if number in wanted] or list(waiting)
            replies = {number: waiting[number].result() for number in numbers}
        for number in numbers:
            del waiting[number]
        self._taken.append(numbers)
        self._all_at_once &= not waiting
        return replies

    def _there(self, waiting: dict[int, Future[Reply]], patience: float) -> list[int]:
        wait(waiting.values(), timeout=patience)
        if not any(future.done() for future in waiting.values()):
            wait(waiting.values(), return_when="FIRST_COMPLETED")
        return [number for number, future in waiting.items() if future.done()]


REPLY_FILE = "replies.jsonl"
MOST_BLANKS, LONGEST_BLANK = 1000, 10_000  # that are kept, and characters of one
_NOT_SHOWN = "(This reply cannot be shown.)"


class ReplyJournal:
    """Replies of an environment that must not get the same turn twice; any thread may call it.

    {"key": "5f0c...", "reply": {"text": "933", "calls": 1, ...}}      a line of `replies.jsonl`

    A run that was killed samples again what came after its checkpoint. Turns that come out as before find
    their replies here and continue in the same way: a tool changes nothing twice.
    """

    def __init__(self, path: Path | None = None) -> None:
        """`path`: of the file; None keeps replies only from a pass that the engine's death ended."""
        self._journal = Journal(path) if path is not None else None
        self._is_read = path is None  # rows of an earlier session are read
        self._known: defaultdict[str, list[Reply]] = defaultdict(list)  # for repeated turns
        self._fresh: list[tuple[str, Reply]] = []  # of the present pass
        self._lock = threading.Lock()
        self._begun = 0  # bytes of replies that a checkpoint certainly holds
        # Replies of a stream come and are taken in any order: those that no rollout has yet, and the others
        # behind `_begun`, each with the bytes before it.
        self._untaken: dict[int, tuple[Rollout, str, int]] = {}
        self._taken: list[tuple[str, int]] = []

    def begin_pass(self) -> None:
        """Notes that a pass begins; the first one reads what an earlier session wrote."""
        self._fresh.clear()
        self._untaken.clear()
        self.begin()
        if self._journal is not None:
            self._begun = self._journal.size

    def begin(self) -> None:
        """Reads what an earlier session wrote, once."""
        if self._journal is not None and not self._is_read:
            self._is_read = True
            self._read(self._journal)

    def undo_pass(self) -> None:
        """Notes that nothing of the pass remains; its turns may come again."""
        with self._lock:
            for key, reply in self._fresh:
                self._known[key].append(reply)
            self._fresh.clear()

    def take(self, rollout: Rollout) -> None:
        """Notes that a rollout of a stream has its reply, or no longer needs one."""
        with self._lock:
            if self._journal is None or (entry := self._untaken.pop(id(rollout), None)) is None:
                return
            self._taken.append(entry[1:])
            self._begun = min((start for *_, start in self._untaken.values()), default=self._journal.size)
            self._taken = [(key, start) for key, start in self._taken if start >= self._begun]

    def known(self, problem: Problem, rollout: Rollout, state: Any) -> Reply | None:
        """Removes and returns a reply that a rollout's last turn got before, if there is one."""
        key = _key(problem, rollout, state)
        with self._lock:
            reply = self._known[key].pop(0) if self._known.get(key) else None
            if reply is not None:
                self._fresh.append((key, reply))
                self._untaken[id(rollout)] = rollout, key, self._begun
        return reply

    def write(self, problem: Problem, rollout: Rollout, state: Any, reply: Reply) -> None:
        """Stores a reply to a rollout's last turn; it is in the file when this returns."""
        key = _key(problem, rollout, state)
        with self._lock:
            self._fresh.append((key, reply))
            if self._journal is not None:
                self._untaken[id(rollout)] = rollout, key, self._journal.size
                self._journal.append([{"key": key, "reply": asdict(reply)}])

    def state_dict(self) -> dict[str, Any]:
        """Returns entries of a checkpoint that show which replies it holds."""
        with self._lock:
            return {"replies_size": self._begun, "replies_taken": [key for key, _ in self._taken]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Skips the replies that a checkpoint holds."""
        self._begun, self._is_read = state.get("replies_size", 0), self._journal is None
        self._taken = [(key, self._begun) for key in state.get("replies_taken", ())]

    def _read(self, journal: Journal) -> None:
        journal.repair()
        rows = read_lines(journal.path, ReplyRow, "cut the file off before it", self._begun)
        taken = Counter(key for key, _ in self._taken)
        with self._lock:
            self._known.clear()
            for row in rows:
                if taken[row["key"]] > 0:
                    taken[row["key"]] -= 1
                else:
                    self._known[row["key"]].append(Reply(**row["reply"]))


def _key(problem: Problem, rollout: Rollout, state: Any) -> str:
    """Returns a key of a rollout's last turn, made from everything that led to it."""
    versions = [segment.version for segment in rollout.segments]
    parts = json.dumps([problem.id, versions, state], sort_keys=True).encode()
    return hashlib.blake2b(parts + rollout.token_ids.tobytes(), digest_size=12).hexdigest()


def _as_restored(reply: Any) -> Reply:
    """Returns the reply as the journal and a checkpoint will restore it. Raises TypeError or ValueError, with
    the name of the field, if they cannot hold it.
    """
    if not isinstance(reply, Reply):
        raise TypeError(f"respond returned {reply!r:.80}; return a bapo_lightning.types.Reply")
    values = {item.name: getattr(reply, item.name) for item in fields(Reply) if item.name != "state"}
    values = {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}
    if isinstance(values["score"], bool):
        values["score"] = float(values["score"])
    if isinstance(values["text"], str):
        values["text"] = whole_characters(values["text"])
    try:
        return Reply(**shaped(ReplyFields, values), state=_state(reply.state, "Reply.state"))
    except ValueError as error:
        raise ValueError(f"Reply.{str(error).removeprefix('Reply.')}") from None


def _state(state: Any, name: str) -> Any:
    """Returns the state as a checkpoint will restore it."""
    try:
        return read_back(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}: {error}; a checkpoint keeps it as JSON") from None


# requests -> generations by number of their request; none if the engine died on the way
Sample = Callable[[Sequence[GenerationRequest]], Mapping[int, Generation]]


@dataclass(eq=False)
class Conversations:
    """Continues rollouts over turns."""

    environment: Environment
    feedback: FeedbackRule
    tokenizer: Any  # a transformers tokenizer
    max_turns: int  # of the policy in one rollout
    max_reply_tokens: int  # of one reply; the rest is cut off
    max_feedback_tokens: int  # of all replies of one rollout together
    max_new_tokens: int  # sampled tokens of one rollout, over all turns
    workers: int  # threads that call the environment; 0: the sampling thread calls it
    ends: tuple[int, ...] = ()  # tokens that end a response, left out of its text
    journal: ReplyJournal = field(default_factory=ReplyJournal)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)
    _blanks: dict[str, list[int]] = field(default_factory=dict, init=False)  # control tokens of empty replies

    def continued(
        self,
        requests: Sequence[GenerationRequest],
        problems: Sequence[Problem],
        rollouts: Sequence[Rollout],
        sample: Sample,
        rounds: Rounds | None = None,
    ) -> dict[int, Rollout]:
        """Returns the rollouts after one pass, by number; none if the engine died.

        `requests` has one for each unfinished rollout, whose limit holds for all tokens of the pass. Replies
        are taken in `rounds`; None: as they come. The others wait for a slow reply no longer than the last
        turn took.
        """
        self.journal.begin_pass()
        running, left = dict(enumerate(rollouts)), [request.max_new_tokens for request in requests]
        pending, waiting = dict(enumerate(requests)), dict[int, Future[Reply]]()
        rounds, patience = rounds or Rounds(), 0.0
        while pending or waiting:
            start = time.perf_counter()
            generations = sample(list(pending.values())) if pending else {}
            if len(generations) < len(pending):
                wait(waiting.values())  # replies on their way belong to the pass as well
                self.journal.undo_pass()
                return {}
            patience = time.perf_counter() - start if pending else patience
            for number, generation in zip(pending, generations.values(), strict=True):
                rollout, segment = running[number], generation.segment
                running[number] = rollout.extended(segment, generation.finish, self.max_new_tokens)
                left[number] -= len(segment.token_ids)
                if generation.finish is FinishReason.STOP:
                    waiting[number] = self.ask(problems[number], running[number])
            pending = {}
            for number, reply in rounds.take(waiting, patience).items():
                running[number] = rollout = self.answered(running[number], reply)
                if rollout.finish is None and left[number] > 0:
                    pending[number] = replace(
                        requests[number],
                        token_ids=rollout.token_ids,
                        max_new_tokens=min(left[number], self.max_new_tokens - rollout.length),
                        seed=turn_seed(requests[number].seed, rollout.length),
                    )
        return running

    def ask(self, problem: Problem, rollout: Rollout) -> Future[Reply]:
        """Requests the environment's reply to a rollout's last turn."""
        if self.workers and self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="environment")
        if self._pool is not None:
            return self._pool.submit(self._reply, problem, rollout)
        done: Future[Reply] = Future()
        done.set_result(self._reply(problem, rollout))
        return done

    def answered(self, rollout: Rollout, reply: Reply) -> Rollout:
        """Returns the rollout after a reply to its last turn: unfinished, or ended."""
        ended = replace(rollout, replies=(*rollout.replies, reply))
        if reply.is_done:
            return replace(ended, finish=FinishReason.STOP)
        if reply.is_lost or self._is_last(rollout):
            return ended.cut()
        feedback = self._feedback(reply.text, is_prompt=reply.after == -1)
        if feedback is None:
            return ended.cut()
        if rollout.num_feedback_tokens + len(feedback) > self.max_feedback_tokens:
            return ended.cut()
        return rollout.answered(reply, feedback)

    def close(self) -> None:
        """Ends threads and the environment's processes. May be called twice."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        if isinstance(self.environment, Closes):
            self.environment.close()

    def _reply(self, problem: Problem, rollout: Rollout) -> Reply:
        number = len(rollout.replies)
        try:
            state = rollout.replies[-1].state if number else _state(self.environment.start(problem), "start")
            is_pure = getattr(self.environment, "is_pure", False)
            if not is_pure and (known := self.journal.known(problem, rollout, state)) is not None:
                return known
            text = decoded(self.tokenizer, [rollout.turns[-1]], self.ends)[0]
            turn = Turn(problem, text, number, self._is_last(rollout), state)
            reply = _as_restored(self.environment.respond(turn))
            if reply.after is not None and not -1 <= reply.after <= number:
                raise ValueError(f"Reply.after is {reply.after}; the turns so far are 0 to {number}, or -1")
            if reply.after == -1 and not getattr(self.feedback, "writes_prompts", False):
                raise ValueError("Reply.after is -1, a whole prompt, which environment.feedback cannot write")
            if not is_pure:
                self.journal.write(problem, rollout, state, reply)
        except FOREIGN as error:
            pass_stops(error)
            raise EnvironmentFault(
                f"the environment failed at turn {number} of problem {problem.id}: {in_words(error)}"
            ) from error
        return reply

    def _is_last(self, rollout: Rollout) -> bool:
        return (
            len(rollout.replies) + 1 >= self.max_turns
            or rollout.length >= self.max_new_tokens
            or rollout.num_feedback_tokens >= self.max_feedback_tokens
        )

    def _feedback(self, text: str, is_prompt: bool = False) -> array[int] | None:
        """Tokens of a reply, cut to its limit; None for a whole prompt that cannot be shown as it is."""
        text = self._controls.removed_from(text)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if len(ids) > self.max_reply_tokens:
            if is_prompt:
                return None
            text = self._controls.removed_from(self.tokenizer.decode(ids[: self.max_reply_tokens]))
        feedback = self.feedback(self.tokenizer, text)
        # A rule that writes several messages has a method that empties them.
        blank = self.feedback.blank(text) if hasattr(self.feedback, "blank") else "0"
        if self._controls.among(feedback) != self._controls_of(blank):  # text and template made a token
            return None if is_prompt else self.feedback(self.tokenizer, _NOT_SHOWN)
        return feedback

    @cached_property
    def _controls(self) -> ControlTokens:
        return ControlTokens(self.tokenizer)

    def _controls_of(self, blank: str) -> list[int]:
        if blank not in self._blanks:
            if len(self._blanks) >= MOST_BLANKS or len(blank) > LONGEST_BLANK:  # programs write their tools
                return self._controls.among(self.feedback(self.tokenizer, blank))
            self._blanks[blank] = self._controls.among(self.feedback(self.tokenizer, blank))
        return self._blanks[blank]
