"""Tokens that an engine could have sampled."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

NO_CANDIDATE = -1e4  # nats, in place of a candidate that there is not: of no probability, yet finite


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that could have been sampled at each place of a segment, place after place: where the sampling
    distribution was cut, all of those that were left.
    """

    token_ids: array[int]  # typecode "i"
    logprobs: array[float]  # typecode "f": nats, under the distribution that was sampled from
    counts: array[int]  # typecode "i": of each place; 0 where nothing was noted

    @classmethod
    def of_places(cls, places: Iterable[Iterable[tuple[int, float]]]) -> Candidates:
        """Returns the candidates of some places: of each the tokens with their log-probs."""
        own = [list(place) for place in places]
        every = [entry for place in own for entry in place]
        return cls(
            array("i", [token for token, _ in every]),
            array("f", [logprob for _, logprob in every]),
            array("i", map(len, own)),
        )

    def cut(self, places: int) -> Candidates:
        """Returns those of the first places."""
        end = sum(self.counts[:places])
        return Candidates(self.token_ids[:end], self.logprobs[:end], self.counts[:places])


def joined_candidates(parts: Iterable[tuple[int, Candidates | None]]) -> Candidates | None:
    """Returns the candidates of segments one after another, each with its number of tokens; None if nothing
    was noted of any.
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
