"""A scripted engine and environments: tokens count up over all turns, those of feedback from 500 on."""

import random
import threading
import time
from array import array
from dataclasses import replace

from tests.data.rollouts.scripted import CUT, STOPPED, NumberTokenizer, ScriptedEngine, sampler, segment

from bapo_lightning.data.rollouts.conversations import Conversations
from bapo_lightning.data.rollouts.feedback import PlainFeedback
from bapo_lightning.rollout.engine import Generation
from bapo_lightning.types import Problem, Reply, Rollout, Sample, Score, ScoreStatus, Segment, WorkItem

FEEDBACK = 500  # tokens from here on are an environment's
ITEM = WorkItem(Problem("4", "", ""), epoch=0)
CALL, FAILED, VOID, ANSWER = Reply(calls=1), Reply(calls=1, errors=1), Reply(is_void=True), Reply()
IN_TURNS = ["environment=calculator", "scale.max_feedback_tokens=32"]


class TurnTokenizer(NumberTokenizer):
    """Numbers, none of which is special."""

    added_tokens_decoder = {}  # noqa: RUF012

    def decode(self, token_ids, skip_special_tokens=False):
        return " ".join(map(str, token_ids))


class TurnEngine(ScriptedEngine):
    """Every turn has `turn` tokens; sampled tokens count up, so that lost and misplaced ones show."""

    turn = 2

    def generation(self, request):
        rest = list(request.token_ids[1:])
        sampled = [token for token in rest if token < FEEDBACK]
        assert sampled == list(range(len(sampled)))
        in_turn = next((n for n, token in enumerate(reversed(rest)) if token >= FEEDBACK), len(rest))
        wanted = self.turn - in_turn
        count = min(request.max_new_tokens, wanted)
        made = segment(count, self.version, start=len(sampled))
        return Generation(made, STOPPED if count == wanted else CUT)


class Counting:
    """Answers turn n with n + 1 feedback tokens, `turns` times; remembers every turn that it got."""

    is_pure = False

    def __init__(self, turns=lambda problem: 3, delay=lambda turn: 0.0):
        self.turns, self.delay, self.seen, self.lock = turns, delay, [], threading.Lock()

    def start(self, problem):
        return {"turns": []}

    def respond(self, turn):
        time.sleep(self.delay(turn))
        with self.lock:
            self.seen.append((turn.problem.id, turn.number, turn.text))
        assert turn.state["turns"] == list(range(turn.number))
        text = " ".join(str(FEEDBACK + turn.number) for _ in range(turn.number + 1))
        is_done = turn.number + 1 >= self.turns(turn.problem)
        state = {"turns": [*turn.state["turns"], turn.number]}
        return Reply(text, is_done, score=1.0 if is_done else None, state=state, calls=1)


def random_turns(problem):
    """How many turns a problem takes."""
    return random.Random(problem.id).randint(1, 4)


def talking(sampler, environment, **changes):
    """The sampler with an environment that answers."""
    limits = {"max_turns": 9, "max_reply_tokens": 9, "max_feedback_tokens": 99}
    options = {"tokenizer": TurnTokenizer(), "max_new_tokens": sampler.max_new_tokens, "workers": 0, **limits}
    found = Conversations(environment, PlainFeedback(), **(options | changes))
    return replace(sampler, conversations=found)


def made(environment=None, max_new_tokens=6, engine=None, **changes):
    """A sampler of conversations, with an engine of version 3."""
    engine = engine or TurnEngine(9)
    engine.load_weights(None, 3)
    source = sampler(engine, max_new_tokens, max_restarts=5)
    source = replace(source, tokenizer=TurnTokenizer())
    return talking(source, environment or Counting(), **changes)


def one_pass(source, groups, tokens=99, once=False):
    """Continues the groups; returns what the pass continued."""
    requests = source.requests(groups, tokens)
    continued = source.continued(requests, groups, once=once)
    for number, rollout in continued.items():
        groups[requests[number].group].rollouts[requests[number].index] = rollout
    return continued


def talk(*replies, finish=STOPPED, cut_off=False, tokens=(1, 2)):
    """A conversation with these replies to its turns, and one more turn if that was cut off."""
    turn = Segment(array("i", tokens), array("f", [-1.0] * len(tokens)), 0)
    segments = [turn]
    for _ in range(len(replies) - 1 + cut_off):
        segments += [Segment.of_feedback(array("i", [500])), turn]
    return Rollout(array("i", [4]), tuple(segments), finish, replies=replies)


def sample(rollout, status=ScoreStatus.WRONG):
    return Sample(rollout, "", Score(0.0, status), 0.0)
