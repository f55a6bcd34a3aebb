"""The promises of `RolloutEngine.stream`, as tests that every engine's own test class inherits beside those
of `tests.rollout.contract`, with the same fixture `engine`.
"""

from array import array
from functools import reduce

import pytest
import torch
from tests.builders import random_policy
from tests.rollout.contract import NOTING, SAMPLING, TOLERANCE, assert_noted, requests, tokens
from tests.rollout.faults import scale

from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams, StreamCall
from bapo_lightning.types import FinishReason, Segment

GREEDY = SamplingParams(temperature=0.0, stop_token_ids=())


class Stream:
    """What an engine's stream has given so far, by number."""

    def __init__(self, engine, sampling=SAMPLING, context="keep"):
        self.engine, self.sampling, self.context = engine, sampling, context
        self.tokens, self.logprobs, self.versions, self.segments = {}, {}, {}, {}
        self.ended, self.numbers = {}, set()

    def call(self, begun=None, given_up=(), steps=3):
        self.numbers |= {*(begun or {})}
        self.numbers -= {*given_up}
        made = self.engine.stream(StreamCall(begun or {}, given_up, steps, self.context), self.sampling)
        for number, each in made.items():
            assert number in self.numbers and number not in self.ended
            for segment in each.segments:
                count = len(segment.token_ids)
                assert segment.version <= self.engine.version and count > 0
                self.segments.setdefault(number, []).append(segment)
                self.tokens.setdefault(number, array("i")).extend(segment.token_ids)
                self.logprobs.setdefault(number, array("f")).extend(segment.logprobs)
                self.versions.setdefault(number, array("i")).extend([segment.version] * count)
            if each.finish is not None:
                self.ended[number] = each.finish
        return made

    def to_the_end(self, steps=3):
        for _ in range(1000):
            if self.numbers <= {*self.ended}:
                return
            self.call(steps=steps)
        raise AssertionError(f"never ended: {self.numbers - {*self.ended}}")


def by_number(wanted):
    return dict(enumerate(wanted))


def logprobs_of(model, tokens, cache=None):
    """Log-probs [len(tokens), V] of what follows each token, and the cache."""
    with torch.no_grad():
        made = model(torch.tensor([list(tokens)]), past_key_values=cache, use_cache=True)
    return made.logits[0].log_softmax(-1), made.past_key_values


class StreamContract:
    stops_after_a_call = True  # so that short responses see new weights as well

    @pytest.mark.parametrize("sampling", NOTING, ids=["top_k", "top_p", "a head"])
    def test_a_stream_notes_the_tokens_that_could_have_been_sampled(self, engine, sampling):
        wanted = requests(12, limit=9)
        stream = Stream(engine, sampling)
        stream.call(by_number(wanted))
        stream.to_the_end()
        made = [reduce(Segment.joined, stream.segments[number]) for number in range(len(wanted))]
        assert_noted(random_policy(), wanted, made, sampling)

    @pytest.mark.parametrize("steps", [1, 3, 50])
    def test_a_stream_samples_what_a_pass_does_however_many_steps_a_call_has(self, engine, steps):
        wanted = requests(20, limit=9)
        expected = engine.generate(wanted, SAMPLING)
        stream = Stream(engine)
        stream.call(by_number(wanted), steps=steps)
        stream.to_the_end(steps)
        for number, generation in enumerate(expected):
            assert stream.tokens[number] == generation.segment.token_ids
            assert list(stream.logprobs[number]) == pytest.approx(list(generation.segment.logprobs), abs=1e-4)
            assert stream.ended[number] is generation.finish

    def test_requests_come_and_go_without_a_change_to_others(self, engine):
        wanted = requests(24, limit=12)
        expected = engine.generate(wanted, SAMPLING)
        stream = Stream(engine)
        gone = {2, 9, 10, 17}
        for number, request in enumerate(wanted):
            stream.call({number: request}, given_up=[number - 1] if number - 1 in gone else (), steps=2)
        other = [engine.generate(requests(5, limit=4), SAMPLING) for _ in range(2)]  # calls in between
        assert tokens(other[0]) == tokens(other[1])
        stream.to_the_end()
        assert {*range(24)} - gone <= {*stream.ended}
        for number in {*range(24)} - gone:
            segment = expected[number].segment
            assert stream.tokens[number] == segment.token_ids
            assert list(stream.logprobs[number]) == pytest.approx(list(segment.logprobs), abs=1e-4)

    @pytest.mark.parametrize("sampling", [*NOTING, GREEDY], ids=["top_k", "top_p", "a head", "greedy"])
    def test_another_call_gets_the_same_alongside_a_stream_and_leaves_it_what_it_gets(self, engine, sampling):
        wanted, others = requests(16, limit=14), requests(5, limit=6)
        expected, alone = engine.generate(wanted, SAMPLING), engine.generate(others, sampling)
        stream = Stream(engine)
        stream.call(by_number(wanted), steps=2)
        for _ in range(2):
            beside = engine.generate(others, sampling)
            assert [each.finish for each in beside] == [each.finish for each in alone]
            for one, other in zip(beside, alone, strict=True):
                assert one.segment.token_ids == other.segment.token_ids
                assert list(one.segment.logprobs) == pytest.approx(list(other.segment.logprobs), abs=1e-4)
                assert (one.segment.candidates is None) is (not sampling.num_candidates)
            stream.call(steps=1)
        stream.to_the_end()
        for number, generation in enumerate(expected):
            assert stream.tokens[number] == generation.segment.token_ids
            assert stream.ended[number] is generation.finish

    @pytest.mark.parametrize("beside", [False, True], ids=["", "beside a probe"])
    @pytest.mark.parametrize("context", ["keep", "recompute"])
    def test_weights_come_between_two_steps_and_each_token_has_its_version_and_its_log_prob(
        self, engine, context, beside
    ):
        wanted = [GenerationRequest(array("i", [5, 7, 2 + row] * (row + 6)), 30, row) for row in range(3)]
        stream = Stream(engine, context=context)
        policies = {version: random_policy() for version in (3, 4, 5)}
        for version in (4, 5):
            scale(policies[version], 1 + 0.2 * (version - 3))
        stream.call(by_number(wanted), steps=6)
        for version in (4, 5):
            engine.load_weights(policies[version], version)
            if beside:
                engine.generate(requests(4, limit=4), GREEDY)
            if not beside or version == 5:
                stream.call(steps=6)
        engine.load_weights(random_policy(), version=3)
        stream.call(given_up=range(3))
        if self.stops_after_a_call:
            assert len({version for versions in stream.versions.values() for version in versions}) > 1
        for number, request in enumerate(wanted):
            made, versions, found = (getattr(stream, n)[number] for n in ("tokens", "versions", "logprobs"))
            if stream.ended.get(number) is not FinishReason.STOP:
                assert len(made) >= 12
            cache, pending = None, array("i", request.token_ids)
            for place, (token, version) in enumerate(zip(made, versions, strict=True)):
                if context == "recompute":
                    pending, cache = request.token_ids + made[:place], None
                scores, cache = logprobs_of(policies[version].model, pending, cache)
                assert found[place] == pytest.approx(float(scores[-1, token]), abs=TOLERANCE)
                pending = array("i", [token])

    def test_what_waits_for_room_begins_under_the_weights_of_its_first_token(self, engine):
        stream = Stream(engine)
        stream.call(by_number(requests(30, limit=6)), steps=1)
        engine.load_weights(random_policy(), version=4)
        stream.to_the_end()
        assert {versions[0] for versions in stream.versions.values()} <= {3, 4}
        engine.load_weights(random_policy(), version=3)
