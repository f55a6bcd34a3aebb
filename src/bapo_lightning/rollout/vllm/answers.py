"""Checks vLLM's answers and turns them into generations, with the tokens that could have been sampled at
each place if the run needs them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field

from bapo_lightning.rollout.engine import Generation, GenerationRequest, SamplingParams
from bapo_lightning.system.peers import PeerFault
from bapo_lightning.system.peers.answers import Answer, Json, LogProb, Many, TokenId
from bapo_lightning.system.pretrained import read_model_config
from bapo_lightning.types import Candidates, FinishReason, Segment

TEMPERATURES = 0.01, 2.0  # lowest and highest: vLLM uses 0.01 below the lowest, and refuses higher ones
MOST = 1024  # candidates of a place: vLLM sorts and sends them token by token
TIES = 8  # more than `top_k`, since vLLM keeps all tokens with the logit of the last one
FLOOR = -9000.0  # log-probs below it stand for minus infinity, which JSON does not have
WHOLE = 1 - 1e-4  # of the probability; less than this is known if more tokens tie than were requested
# Largest number of bytes in an answer: in all, for each of its tokens, and for each candidate of a token.
MOST_BYTES, TOKEN_BYTES, CANDIDATE_BYTES = 1 << 20, 2000, 200
ID = "token_id:"  # prefix of a token's number, used in place of its text
Place = Iterable[tuple[int, float]]  # tokens with their log-probs, in any order
Reason = Literal["stop", "length"]  # for the end of a request


class CompletionLogProbs(Answer):
    """Log-probs of a completion's tokens."""

    token_logprobs: Many[LogProb]
    top_logprobs: Many[dict[str, LogProb] | None]


class CompletionChoice(Answer):
    """A completion."""

    finish_reason: Reason
    token_ids: Many[TokenId]
    logprobs: CompletionLogProbs


class CompletionAnswer(Answer):
    """Answer of /v1/completions."""

    choices: Annotated[tuple[CompletionChoice, ...], Field(min_length=1, max_length=1)]


class ScoredToken(Answer):
    """A token with its log-prob."""

    token_id: TokenId
    logprob: LogProb


class Sampled(ScoredToken):
    """A sampled token with its candidates."""

    top_logprobs: Many[ScoredToken] = ()


class Span(Answer):
    """Places in the response of tokens that one version of the weights sampled."""

    version: str
    start: int
    end: int


class StreamedScores(Answer):
    """Log-probs of the tokens of a part."""

    content: Many[Sampled]


class StreamedChoice(Answer):
    """Some tokens of a stream."""

    finish_reason: Reason | None
    token_ids: Many[TokenId]
    logprobs: StreamedScores | None = None
    weight_versions: tuple[Span, ...] | None = None  # with the last tokens


class StreamedLine(Answer):
    """A line of /inference/v1/generate."""

    error: Json = None
    choices: Annotated[tuple[StreamedChoice, ...], Field(max_length=1)] | None = None


def most_bytes(request: GenerationRequest, logprobs: int) -> int:
    """Returns the largest number of bytes of the answer to a request, with `logprobs` at each place."""
    return MOST_BYTES + request.max_new_tokens * (TOKEN_BYTES + CANDIDATE_BYTES * (logprobs + 1))


def check_generation(
    request: GenerationRequest,
    sampling: SamplingParams,
    model_path: str,
    before: int,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    finish_reason: Reason | None,
) -> None:
    """Raises PeerFault for tokens that are impossible after `before` earlier tokens of the response."""
    count, total = len(token_ids), before + len(token_ids)
    if len(logprobs) != count:
        raise PeerFault(f"{count} tokens came with {len(logprobs)} log-probs")
    if (highest := max(token_ids, default=0)) >= (known := vocabulary(model_path)):
        raise PeerFault(f"it sampled token {highest}, but the model has {known} tokens")
    if sampling.temperature and min(logprobs, default=0.0) <= FLOOR:
        raise PeerFault("it sampled a token that has probability 0 or a log-prob that is not a number")
    if total > (most := request.max_new_tokens):
        raise PeerFault(f"it sampled {total} tokens, but at most {most} were requested")
    stops = [place for place, token in enumerate(token_ids) if token in sampling.stop_token_ids]
    if stops != ([count - 1] if finish_reason == "stop" and count else []):
        raise PeerFault(f"it ended with {finish_reason!r}, but its tokens end in another way")
    if (finish_reason == "stop" and not count) or (finish_reason == "length" and total < most):
        raise PeerFault(f"it ended with {finish_reason!r} after {total} tokens of {most}")


def named_tokens(place: Mapping[str, float] | None) -> Place:
    """Returns the tokens of a place, named by their numbers. Raises PeerFault for other names."""
    try:
        return [(int(name.removeprefix(ID)), value) for name, value in (place or {}).items()]
    except ValueError:
        raise PeerFault("it does not name tokens by their numbers") from None


def checked_places(places: Iterable[Place], model_path: str) -> Iterator[Place]:
    """Yields places unchanged. Raises PeerFault for tokens that the model does not have."""
    known = vocabulary(model_path)
    for place in places:
        entries = list(place)
        if not all(0 <= token < known for token, _ in entries):
            raise PeerFault(f"it names candidates that the model, which has {known} tokens, does not have")
        yield entries


@cache
def vocabulary(model_path: str) -> int:
    """Returns the number of tokens of a model, which bounds the tokens that vLLM names."""
    return int(read_model_config(model_path).get_text_config().vocab_size)


def num_logprobs(sampling: SamplingParams, model_path: str) -> int:
    """Returns the parameter `logprobs`: one more than recorded, as the sampled token may take a place."""
    wanted = sampling.num_candidates
    if sampling.top_k:
        wanted = min(wanted, sampling.top_k + TIES)
    return min(wanted + 1, vocabulary(model_path)) if wanted else 0


def generation_of_output(output: Any, sampling: SamplingParams, version: int) -> Generation:
    """Converts a `CompletionOutput` with flat log-probs; the sampled token is first at each place."""
    flat = output.logprobs
    firsts = flat.start_indices
    places = (
        zip(flat.token_ids[start:end], flat.logprobs[start:end], strict=True)
        for start, end in zip(firsts, flat.end_indices, strict=True)
    )
    sampled = [flat.logprobs[first] for first in firsts]
    return generation_of(output.token_ids, sampled, output.finish_reason, sampling, version, places)


def generation_of(
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    finish_reason: str | None,
    sampling: SamplingParams,
    version: int,
    places: Iterable[Place] = (),
) -> Generation:
    """Converts an answer of weights of a policy `version`. Greedy tokens have log-prob 0, since all mass was
    on them. `places`: tokens with their log-probs at each place, read if candidates are to be recorded.
    """
    values, candidates = array("f", logprobs), None
    if sampling.temperature == 0:
        values = array("f", bytes(4 * len(token_ids)))
    elif sampling.num_candidates:
        values, candidates = logprobs_and_candidates(token_ids, logprobs, places, sampling)
    segment = Segment(array("i", token_ids), values, version, candidates=candidates)
    return Generation(segment, FinishReason.STOP if finish_reason == "stop" else FinishReason.LENGTH)


def logprobs_and_candidates(
    token_ids: Sequence[int], logprobs: Sequence[float], places: Iterable[Place], sampling: SamplingParams
) -> tuple[array[float], Candidates]:
    """Returns the log-probs of the sampled tokens, and the candidates of each place.

    Candidates of an uncut distribution are the likeliest tokens, whichever was sampled, and all tokens of a
    cut one; if more of these tie than were requested, both refer to the distribution among those received.
    """
    wanted = sampling.top_k + TIES if sampling.top_k else sampling.num_candidates
    sampled, noted = array("f"), []
    for token, logprob, place in zip(token_ids, logprobs, places, strict=True):
        known = {each: value for each, value in place if value > FLOOR}
        missing = 0.0
        if sampling.is_cut:
            known.setdefault(token, logprob)
            mass = math.fsum(map(math.exp, known.values()))
            missing = math.log(mass) if mass < WHOLE else 0.0
        likeliest = sorted(known.items(), key=lambda entry: -entry[1])
        if not sampling.is_cut:
            likeliest = likeliest[:wanted]
        sampled.append(logprob - missing)
        noted.append([(each, value - missing) for each, value in likeliest])
    return sampled, Candidates.of_places(noted)
