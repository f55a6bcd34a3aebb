"""Requests of a stream on the members of a fleet. Requests of a lost member continue elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from bapo_lightning.extras.ray.fleet import MOST_LOSSES, Fleet, NoneLeft
from bapo_lightning.extras.ray.members import Member
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams, StreamCall, Streamed, turn_seed


@dataclass(eq=False)
class FleetStreams:
    """Which member samples which requests."""

    _requests: dict[int, GenerationRequest] = field(default_factory=dict, init=False)  # for what remains
    _members: dict[int, Member] = field(default_factory=dict, init=False)  # that have them
    _losses: Counter[int] = field(default_factory=Counter, init=False)  # number of members that had them

    def run(
        self, fleet: Fleet, call: StreamCall, sampling: SamplingParams, version: int
    ) -> dict[int, Streamed]:
        """The same steps on all members that have requests; see `RolloutEngine.stream`. Raises NoneLeft."""
        for number in call.given_up:
            self._requests.pop(number, None)
            self._members.pop(number, None)
        self._requests |= call.begun
        placed = self._placed(fleet)
        calls = {
            member: (replace(call, begun=placed.get(member, {})), sampling, version)
            for member in fleet.ready
            if call.given_up or member in self._members.values()
        }
        answers = fleet.each("stream", calls) if calls else {}
        results = {number: each for part in answers.values() for number, each in part.items()}
        for number, each in results.items():
            self._note(number, each)
        self._take_from_lost(fleet)
        return results

    def _take_from_lost(self, fleet: Fleet) -> None:
        for number in [number for number, member in self._members.items() if member not in fleet.members]:
            del self._members[number]
            fleet.counts["reissued"] += 1
            self._losses[number] += 1
        if self._losses and max(self._losses.values()) >= MOST_LOSSES:
            self._losses.clear()
            raise NoneLeft(f"{MOST_LOSSES} engines were lost with the same requests")

    def _placed(self, fleet: Fleet) -> dict[Member, dict[int, GenerationRequest]]:
        """Gives unassigned requests to the members with the fewest; returns what each gets."""
        placed: dict[Member, dict[int, GenerationRequest]] = {}
        loads = Counter(member.number for member in self._members.values())
        for number, request in self._requests.items():
            if number in self._members:
                continue
            if not fleet.ready:
                raise NoneLeft("no engine of the fleet is left")
            member = min(fleet.ready, key=lambda member: loads[member.number])
            loads[member.number] += 1
            self._members[number] = member
            placed.setdefault(member, {})[number] = request
        return placed

    def _note(self, number: int, streamed: Streamed) -> None:
        if streamed.finish is not None:
            del self._requests[number], self._members[number], self._losses[number]
            return
        request = self._requests[number]
        tokens = request.token_ids[:]
        for segment in streamed.segments:
            tokens += segment.token_ids
        left = request.max_new_tokens - (len(tokens) - len(request.token_ids))
        # On another member it must not repeat its first random numbers.
        self._requests[number] = replace(
            request, token_ids=tokens, max_new_tokens=left, seed=turn_seed(request.seed, len(tokens))
        )
