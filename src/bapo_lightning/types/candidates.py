"""Tokens that an engine could have sampled."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

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
        own = [list(place) for place in places]
        every = [entry for place in own for entry in place]
        return cls(
            array("i", [token for token, _ in every]),
            array("f", [logprob for _, logprob in every]),
            array("i", map(len, own)),
        )

    def cut(self, places: int) -> Candidates:
        """Returns the candidates of the first `places` places."""
        end = sum(self.counts[:places])
        return Candidates(self.token_ids[:end], self.logprobs[:end], self.counts[:places])


def joined_candidates(parts: Iterable[tuple[int, Candidates | None]]) -> Candidates | None:
    """Returns the candidates of successive segments, given with their numbers of tokens; None if no segment
    has any.
    """
    own = list(parts)
    if all(noted is None for _, noted in own):
        return None
    whole = Candidates(array("i"), array("f"), array("i"))
    for length, noted in own:
        if noted is None:
            whole.counts.extend([0] * length)
            continue
        whole.token_ids.extend(noted.token_ids)
        whole.logprobs.extend(noted.logprobs)
        whole.counts.extend(noted.counts)
    return whole
