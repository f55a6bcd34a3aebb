"""Tokens of a response, their origin, and the tokens that an engine could have sampled instead."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from itertools import groupby, pairwise
from typing import Any

NO_CANDIDATE = -1e4  # nats, in place of a missing candidate: finite, but without probability


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that could have been sampled at each place of a segment, place after place: all remaining tokens
    if the sampling distribution was cut.
    """

    token_ids: array[int]  # typecode "i"
    logprobs: array[float]  # typecode "f": nats, under the distribution that was sampled from
    counts: array[int]  # typecode "i": number at each place; 0 if none were recorded

    @classmethod
    def of_places(cls, places: Iterable[Iterable[tuple[int, float]]]) -> Candidates:
        """Makes candidates from the tokens of each place, with their log-probs."""
        by_place = [list(place) for place in places]
        entries = [entry for place in by_place for entry in place]
        return cls(
            array("i", [token for token, _ in entries]),
            array("f", [logprob for _, logprob in entries]),
            array("i", map(len, by_place)),
        )

    def cut(self, places: int) -> Candidates:
        """Returns the candidates of the first `places` places."""
        end = sum(self.counts[:places])
        return Candidates(self.token_ids[:end], self.logprobs[:end], self.counts[:places])


def joined_candidates(parts: Iterable[tuple[int, Candidates | None]]) -> Candidates | None:
    """Returns the candidates of successive segments with their numbers of tokens; None if none has any."""
    known = list(parts)
    if all(noted is None for _, noted in known):
        return None
    whole = Candidates(array("i"), array("f"), array("i"))
    for length, noted in known:
        if noted is None:
            whole.counts.extend([0] * length)
            continue
        whole.token_ids.extend(noted.token_ids)
        whole.logprobs.extend(noted.logprobs)
        whole.counts.extend(noted.counts)
    return whole


class FinishReason(StrEnum):
    """Reason for the end of a rollout."""

    STOP = "stop"  # the policy wrote an end token (kept as the last token)
    LENGTH = "length"  # the limit of tokens or of turns was reached


class Origin(IntEnum):
    """Origin of a rollout, which determines the meaning of its behaviour log-probs."""

    POLICY = 0  # sampled from the policy, for the batch in which it is trained on
    REPLAYED = 1  # sampled from the policy, for an earlier batch
    TEMPERED = 2  # sampled from the policy at a separate temperature, to which its log-probs refer
    EXPERT = 3  # written by an expert; log-probs are 0 by definition, and it has no policy version


CHUNK = 2048  # tokens of a segment up to which it is copied whenever a few tokens join it
NO_VERSION = -1  # version of tokens that no policy of the run sampled


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens sampled under one policy version, or of an environment's feedback."""

    token_ids: array[int]  # typecode "i"
    logprobs: array[float]  # typecode "f": nats, under the distribution each token was actually sampled from
    version: int  # optimizer updates in the weights that sampled it; NO_VERSION for an expert's
    is_feedback: bool = False  # not sampled: context of later tokens, and never trained on
    candidates: Candidates | None = None  # if the run needs them; see `SamplingParams.num_candidates`
    after: int | None = None  # of feedback, see `Reply.after`

    @classmethod
    def of_feedback(cls, token_ids: array[int], after: int | None = None) -> Segment:
        """Returns an environment's tokens, whose log-probs are 0 by definition."""
        blank = array("f", bytes(4 * len(token_ids)))
        return cls(token_ids, blank, NO_VERSION, is_feedback=True, after=after)

    def goes_on_with(self, later: Segment) -> bool:
        """Whether a later segment continues it with tokens of the same version."""
        return self.version == later.version and self.is_feedback == later.is_feedback is False

    def joined(self, later: Segment) -> Segment:
        """Returns one segment with the tokens of this and of a later segment of the same version."""
        candidates = ((len(part.token_ids), part.candidates) for part in (self, later))
        return Segment(
            self.token_ids + later.token_ids,
            self.logprobs + later.logprobs,
            self.version,
            candidates=joined_candidates(candidates),
        )

    def __reduce__(self) -> tuple[type[Segment], tuple[Any, ...]]:
        """Pickles it by its arguments: a dataclass with slots would look at all its fields each time."""
        placed = self.token_ids, self.logprobs, self.version, self.is_feedback
        return Segment, (*placed, self.candidates, self.after)

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(
                f"a segment needs one log-prob per token, got {len(self.token_ids)} tokens and "
                f"{len(self.logprobs)} log-probs"
            )


@dataclass(frozen=True, slots=True)
class Reply:
    """An environment's answer to a turn of the policy."""

    text: str = ""  # feedback, which the policy reads before its next turn
    is_done: bool = False  # the conversation ends with the turn; the text is not read
    score: float | None = None  # of the whole conversation, for reward=environment
    state: Any = None  # JSON that the environment needs at the next turn
    calls: int = 0  # number of tool calls in the turn
    errors: int = 0  # number of calls that failed
    is_void: bool = False  # the turn had neither a call nor an answer
    is_lost: bool = False  # the environment cannot continue: the conversation is cut here
    # Number of the turn that the text follows, in a new branch of the conversation; -1: none, since the text
    # is a whole prompt; None: the last turn.
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """One response to a prompt, finished or still running. It has several segments if it was stopped and
    resumed under newer weights, or if an environment answered between its turns.
    """

    prompt_ids: array[int]
    segments: tuple[Segment, ...] = ()
    finish: FinishReason | None = None  # None: still running
    origin: Origin = Origin.POLICY
    replies: tuple[Reply, ...] = ()  # of the environment, one to each turn that ended
    branch: int = 0  # number of the branch of the conversation that it is, see `branches`
    parent: int | None = None  # number of the branch that it continues; None: it begins with its own prompt

    def extended(self, segment: Segment, finish: FinishReason | None, max_new_tokens: int) -> Rollout:
        """Returns the rollout with the tokens of one more generation pass, and the reason for its end, if it
        ended; after `LENGTH` the rollout continues until the whole response has `max_new_tokens`.

        New tokens join the last segment if their version is the same, but only up to `CHUNK` tokens while the
        response runs: a stream brings few tokens at a time, and copying a long response for each few would
        take longer than sampling them.
        """
        earlier = self.segments
        if earlier and len(earlier[-1].token_ids) < CHUNK and earlier[-1].goes_on_with(segment):
            segment = earlier[-1].joined(segment)
            earlier = earlier[:-1]
        prompt_ids, origin, replies = self.prompt_ids, self.origin, self.replies
        # Faster than `replace`, for each call of a stream.
        longer = Rollout(prompt_ids, (*earlier, segment), self.finish, origin, replies)
        if finish is not FinishReason.STOP and longer.length < max_new_tokens:
            return longer
        return Rollout(prompt_ids, _joined_segments(longer.segments), finish, origin, replies)

    @property
    def is_sampled(self) -> bool:
        """Whether its log-probs come from a policy version at the temperature of the run."""
        return self.origin <= Origin.REPLAYED

    def answered(self, reply: Reply, feedback: array[int]) -> Rollout:
        """Returns the unfinished rollout with a reply to its last turn and the tokens of its feedback."""
        segments = (*self.segments, Segment.of_feedback(feedback, reply.after))
        return replace(self, segments=segments, replies=(*self.replies, reply), finish=None)

    def cut(self) -> Rollout:
        """Returns the rollout as ended by a limit, without feedback after the last turn."""
        segments = self.segments
        if segments and segments[-1].is_feedback:
            segments = segments[:-1]
        return replace(self, segments=_joined_segments(segments), finish=FinishReason.LENGTH)

    @property
    def awaits_reply(self) -> bool:
        """Whether its last turn has ended and got no reply; meaningful if an environment answers."""
        if self.finish is not FinishReason.STOP or self.origin is Origin.EXPERT:
            return False
        return len(self.replies) == sum(segment.is_feedback for segment in self.segments)

    @property
    def sampled_segments(self) -> tuple[Segment, ...]:
        """The segments without an environment's feedback."""
        if not self.replies:
            return self.segments
        return tuple(segment for segment in self.segments if not segment.is_feedback)

    @property
    def aging_segments(self) -> tuple[Segment, ...]:
        """The segments that a policy version sampled, and which therefore have an age."""
        return () if self.origin is Origin.EXPERT else self.sampled_segments

    @property
    def num_versions(self) -> int:
        """Number of policy versions that sampled it, one after another; 1 for an expert's rollout."""
        sampled = self.sampled_segments
        return 0 if not sampled else 1 + sum(a.version != b.version for a, b in pairwise(sampled))

    def num_tokens_before(self, version: int) -> int:
        """Number of tokens that older policy versions sampled."""
        return sum(len(segment.token_ids) for segment in self.aging_segments if segment.version < version)

    @property
    def branches(self) -> tuple[Rollout, ...]:
        """A rollout for each branch, in the order in which they began. A sampled token is in one of them; the
        prompts of later branches hold the context that they share with earlier ones.
        """
        if all(segment.after is None for segment in self.segments):
            return (self,)
        replies, rollouts = list(self.replies), list[Rollout]()
        contexts: list[array[int]] = []  # at the end of each turn
        owners: list[int] = []  # branches of the turns
        now = replace(self, segments=(), replies=(), finish=FinishReason.STOP)
        for segment in self.segments:
            if not segment.is_feedback:
                now = replace(now, segments=(*now.segments, segment))
                continue
            contexts.append(now.token_ids)
            owners.append(now.branch)
            now = replace(now, replies=(*now.replies, replies.pop(0)))
            if segment.after is None:
                now = replace(now, segments=(*now.segments, segment))
                continue
            rollouts.append(now)
            has_parent = segment.after >= 0
            now = Rollout(
                (contexts[segment.after] if has_parent else array("i")) + segment.token_ids,
                finish=FinishReason.STOP,
                origin=self.origin,
                branch=len(rollouts),
                parent=owners[segment.after] if has_parent else None,
            )
        return (*rollouts, replace(now, replies=(*now.replies, *replies), finish=self.finish))

    @property
    def token_ids(self) -> array[int]:
        """Prompt, sampled tokens and feedback in order, of the last branch."""
        if (last := self.branches[-1]) is not self:
            return last.token_ids
        return _joined("i", [self.prompt_ids, *(segment.token_ids for segment in self.segments)])

    @property
    def response_ids(self) -> array[int]:
        """All sampled tokens in order."""
        return _joined("i", [segment.token_ids for segment in self.sampled_segments])

    @property
    def logprobs(self) -> array[float]:
        """Behaviour log-probs of `response_ids`, in nats."""
        return _joined("f", [segment.logprobs for segment in self.sampled_segments])

    @property
    def versions(self) -> array[int]:
        """Policy version of each token of `response_ids`."""
        return _joined(
            "i", [array("i", [segment.version]) * len(segment.token_ids) for segment in self.sampled_segments]
        )

    @property
    def candidates(self) -> Candidates | None:
        """Tokens that could have been sampled in place of `response_ids`; None if none were recorded."""
        return joined_candidates(
            (len(segment.token_ids), segment.candidates) for segment in self.sampled_segments
        )

    @property
    def length(self) -> int:
        """Number of sampled tokens."""
        if len(self.segments) == 1:  # the usual case of a frequent call
            return len(self.segments[0].token_ids)
        return sum(len(segment.token_ids) for segment in self.sampled_segments)

    @property
    def num_feedback_tokens(self) -> int:
        """Number of tokens that an environment wrote."""
        return sum(len(segment.token_ids) for segment in self.segments if segment.is_feedback)

    @property
    def turns(self) -> tuple[array[int], ...]:
        """Sampled tokens of each of the policy's turns; one turn if no environment answers."""
        runs = groupby(self.segments, key=lambda segment: segment.is_feedback)
        return tuple(
            _joined("i", [segment.token_ids for segment in run])
            for is_feedback, run in runs
            if not is_feedback
        )


def _joined_segments(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Returns the segments, with successive segments of one version joined."""
    joined: list[Segment] = []
    for segment in segments:
        if joined and joined[-1].goes_on_with(segment):
            joined[-1] = joined[-1].joined(segment)
        else:
            joined.append(segment)
    return tuple(joined)


def _joined(typecode: str, parts: list[array[Any]]) -> array[Any]:
    if len(parts) == 1:
        return array(typecode, parts[0])
    joined: array[Any] = array(typecode)
    for part in parts:
        joined.extend(part)
    return joined
