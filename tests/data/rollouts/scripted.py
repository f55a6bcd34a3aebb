"""A rollout engine that follows a script instead of a model, so that flows can be tested by the thousand."""

import random
from array import array
from dataclasses import replace

from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.collector import scheduler_kind
from bapo_lightning.data.rollouts.rules import GroupRule, Rules
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.rollout import engine as engines
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, EngineDied, Generation, Streamed
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import Proof, SyncReport
from bapo_lightning.types import (
    NO_VERSION,
    FinishReason,
    Origin,
    Problem,
    Rollout,
    Score,
    ScoreStatus,
    Segment,
)

STOP = 9
ROWS = 5  # of a stream
STOPPED, CUT = FinishReason.STOP, FinishReason.LENGTH
OVERLONG = "too long to be drawn"


def segment(count, version=0, start=0):
    """Tokens that count up from `start`."""
    return Segment(array("i", range(start, start + count)), array("f", [-1.0] * count), version)


class ScriptedEngine(engines.RolloutEngine):
    """The length of a response is drawn from its problem; tokens count up, so that lost ones show."""

    def __init__(self, longest, seed=0, dies=lambda: False):
        self.version = UNSYNCED_VERSION
        self.longest, self.seed, self.dies = longest, seed, dies
        self.running = {}  # what the requests of a stream will get, and how much they have

    def load_weights(self, source, version):
        self.version = version

    def restart(self):
        self.version = UNSYNCED_VERSION
        self.running.clear()

    def generate(self, requests, sampling):
        assert self.version != UNSYNCED_VERSION
        made = {}
        for place, request in enumerate(requests):
            if self.dies():
                self.version = UNSYNCED_VERSION
                raise EngineDied("the script says so", made)
            made[place] = self.generation(request)
        return [made[place] for place in range(len(requests))]

    def stream(self, call, sampling):
        """One token of each of the first `ROWS` requests."""
        assert self.version != UNSYNCED_VERSION
        for number in call.given_up:
            self.running.pop(number, None)
        self.running |= {number: [self.generation(request), 0] for number, request in call.begun.items()}
        if self.dies():
            self.version = UNSYNCED_VERSION
            self.running.clear()
            raise EngineDied("the script says so")
        made = {}
        for number, (whole, place) in list(self.running.items())[:ROWS]:
            tokens = whole.segment.token_ids[place : place + 1]
            is_last = place + 1 == len(whole.segment.token_ids)
            segment = Segment(tokens, array("f", [-1.0]), self.version)
            made[number] = Streamed((segment,), whole.finish if is_last else None)
            self.running[number][1] += 1
            if is_last:
                del self.running[number]
        return made

    def generation(self, request):
        prompt, *sampled = request.token_ids
        assert sampled == list(range(len(sampled)))
        length = random.Random(f"{self.seed}/{prompt}").randint(1, self.longest)
        count = min(request.max_new_tokens, max(length - len(sampled), 1))
        ended = len(sampled) + count >= length
        return Generation(segment(count, self.version, start=len(sampled)), STOPPED if ended else CUT)


class ScriptedSync:
    """Pushes weights without a proof."""

    def load(self, source, engine, version, vocab_size):
        engine.load_weights(source, version)
        return Proof(source, version, [], {}, {}, 0.0, 0.0, 0.0)

    def prove(self, proof):
        return SyncReport(proof.version, 0.0, 0.0, 0.0, 0.0)


class NumberTokenizer:
    """Text and token ids are numbers already."""

    vocab_size = 1000
    eos_token_id = STOP

    def encode(self, text, add_special_tokens):
        return [int(word) for word in text.split()]

    def decode(self, token_ids, skip_special_tokens):
        return " ".join(map(str, token_ids))


def ruled(**methods):
    """One rule, whose methods are these functions."""
    rule = GroupRule()
    vars(rule).update(methods)
    return Rules({"own": rule})


class Expert(GroupRule):
    """Answers every problem."""

    def open(self, tokenizer, problem, start):
        segment = Segment(array("i", [7, 8, STOP]), array("f", [0.0] * 3), NO_VERSION)
        return [Rollout(start.prompt_ids, (segment,), FinishReason.STOP, Origin.EXPERT)]


class Hints(GroupRule):
    """Three hints for a group without a right answer, one after another."""

    def retry(self, group, encode):
        hint = group.hint + 0.25
        is_solved = any(sample.score.value > 0 for sample in group.samples)
        return None if is_solved or hint > 0.75 else (hint, encode(group.problem))


def number_prompt(tokenizer, problem):
    return array("i", [int(problem.id)])


def reward_by_length(problems, completions):
    """Some groups are uniform: every third problem is always answered wrongly."""
    pairs = zip(problems, completions, strict=True)
    verdicts = [done.num_tokens % 2 == 0 and int(problem.id) % 3 > 0 for problem, done in pairs]
    return [Score(float(right), ScoreStatus.CORRECT if right else ScoreStatus.WRONG) for right in verdicts]


def sampler(engine, max_new_tokens, max_restarts):
    tokenizer, sampling = NumberTokenizer(), engines.SamplingParams(1.0, (STOP,))
    source = RestartingEngine(engine, ScriptedSync(), tokenizer.vocab_size, max_restarts)
    return RolloutSampler(
        source, tokenizer, number_prompt, reward_by_length, sampling, max_new_tokens, seed=0
    )


def scheduler(
    engine, regime, groups_per_batch, num_batches, num_problems=40, observers=(), rules=None,
    max_restarts=10_000,
):  # fmt: skip
    problems = [Problem(str(index), "", "") for index in range(num_problems)]
    stream = ProblemStream(problems, seed=0, overlong=[Problem(OVERLONG, "", "")])
    source = replace(sampler(engine, regime.max_new_tokens, max_restarts), rules=Rules(rules or {}))
    kind = scheduler_kind(regime)
    return kind(stream, source, regime, 2, groups_per_batch, num_batches, observers)
