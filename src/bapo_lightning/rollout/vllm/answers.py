"""vLLM's answers as generations, with the tokens that it could have sampled at each place where the run
needs them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from transformers import AutoConfig

from bapo_lightning.rollout.engine import Generation, SamplingParams
from bapo_lightning.types import Candidates, FinishReason, Segment

MOST = 1024  # candidates of a place: vLLM sorts and sends them token by token
TIES = 8  # beyond `top_k`, as vLLM keeps all tokens whose logit is that of the last one
FLOOR = -9000.0  # log-probs below it stand for minus infinity, which JSON does not have
WHOLE = 1 - 1e-4  # of the probability; less is missing where more tokens tie than were asked for
Place = Iterable[tuple[int, float]]  # tokens with their log-probs, in any order


@cache
def vocabulary(model_path: str) -> int:
    """Number of tokens of a model, beyond which vLLM refuses to name any."""
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
    return int(config.get_text_config().vocab_size)


def candidates_wanted(sampling: SamplingParams, model_path: str) -> int:
    """Number of tokens to note at each place."""
    wanted = min(sampling.noted, sampling.top_k + TIES) if sampling.top_k else sampling.noted
    return min(wanted, vocabulary(model_path)) if wanted else 0


def logprobs_asked(sampling: SamplingParams, model_path: str) -> int:
    """The parameter `logprobs`: one more than is noted, since the sampled token, which always comes, may take
    the place of the last one.
    """
    wanted = candidates_wanted(sampling, model_path)
    return min(wanted + 1, vocabulary(model_path)) if wanted else 0


def generation_of_output(output: Any, sampling: SamplingParams, version: int) -> Generation:
    """Converts a `CompletionOutput` with flat log-probs, the sampled token's first at each place."""
    flat = output.logprobs
    firsts = flat.start_indices
    places = (
        zip(flat.token_ids[start:end], flat.logprobs[start:end], strict=True)
        for start, end in zip(firsts, flat.end_indices, strict=True)
    )
    own = [flat.logprobs[first] for first in firsts]
    return generation_of(output.token_ids, own, output.finish_reason, sampling, version, places)


def generation_of(
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    finish_reason: str | None,
    sampling: SamplingParams,
    version: int,
    places: Iterable[Place] = (),
) -> Generation:
    """Converts an answer. Greedy tokens have log-prob 0: all mass was on them.

    Args:
        token_ids: sampled tokens.
        logprobs: their log-probs.
        finish_reason: vLLM's word for why it ended.
        sampling: distribution that was asked for.
        version: policy version of the weights.
        places: tokens with their log-probs at each place, which are read if some are to be noted.
    """
    values, candidates = array("f", logprobs), None
    if sampling.temperature == 0:
        values = array("f", bytes(4 * len(token_ids)))
    elif sampling.noted:
        values, candidates = sampled_and_noted(token_ids, logprobs, places, sampling)
    segment = Segment(array("i", token_ids), values, version, candidates=candidates)
    return Generation(segment, FinishReason.STOP if finish_reason == "stop" else FinishReason.LENGTH)


def sampled_and_noted(
    token_ids: Sequence[int], logprobs: Sequence[float], places: Iterable[Place], sampling: SamplingParams
) -> tuple[array[float], Candidates]:
    """Returns the log-probs of the sampled tokens, and the candidates of each place.

    Of a distribution that is not cut these are the likeliest, whichever was sampled. Of one that is cut, they
    are all; where more tie than were asked for, both are of the distribution among those that came.
    """
    wanted = sampling.top_k + TIES if sampling.top_k else sampling.noted
    own, noted = array("f"), []
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
        own.append(logprob - missing)
        noted.append([(each, value - missing) for each, value in likeliest])
    return own, Candidates.of_places(noted)
