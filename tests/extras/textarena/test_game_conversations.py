"""Games from their first move to their end by the turn taking of a run, with a player for an engine."""

import random
from array import array

import pytest
from tests.extras.textarena.mastermind import CODE, CODES, guess_of, next_guess

from bapo_lightning.data.rollouts.conversations import Conversations
from bapo_lightning.data.rollouts.feedback import PlainFeedback
from bapo_lightning.extras.textarena.games import TextArena
from bapo_lightning.extras.textarena.problems import textarena_problems
from bapo_lightning.rewards.environment_score import environment_score
from bapo_lightning.rollout.engine import Generation, GenerationRequest
from bapo_lightning.types import Completion, FinishReason, Rollout, ScoreStatus, Segment

END = 0  # of a turn


class LetterTokenizer:
    """A token for each letter; the end token is no text."""

    added_tokens_decoder = {}  # noqa: RUF012

    def encode(self, text, add_special_tokens):
        return [ord(letter) for letter in text]

    def decode(self, token_ids, skip_special_tokens=False):
        return "".join(chr(token) for token in token_ids if token != END)


class Players:
    """What the player of each game says to all that was said so far."""

    def __init__(self, player):
        self.player = player

    def __call__(self, requests):
        return {number: self._generation(request) for number, request in enumerate(requests)}

    def _generation(self, request):
        text = LetterTokenizer().decode(request.token_ids)
        before, _, begun = text.rpartition("\n")  # feedback ends with a line break
        ids = [*map(ord, self.player(before)[len(begun) :]), END]
        count = min(len(ids), request.max_new_tokens)
        finish = FinishReason.STOP if count == len(ids) else FinishReason.LENGTH
        return Generation(Segment(array("i", ids[:count]), array("f", [-1.0] * count), 0), finish)


def played(player, problems, pass_tokens=10**6, **changes):
    options = {
        "feedback": PlainFeedback("\n{feedback}\n"), "tokenizer": LetterTokenizer(), "max_turns": 24,
        "max_reply_tokens": 999, "max_feedback_tokens": 9999, "max_new_tokens": 999, "workers": 0,
    }  # fmt: skip
    conversations = Conversations(TextArena(r"\[[^\[\]]*\]"), **(options | changes))
    rollouts = [Rollout(array("i", map(ord, item.prompt + "\n"))) for item in problems]
    try:
        while waiting := [number for number, rollout in enumerate(rollouts) if rollout.finish is None]:
            chosen = [problems[number] for number in waiting]
            begun = [rollouts[number] for number in waiting]
            limits = [min(pass_tokens, conversations.max_new_tokens - each.length) for each in begun]
            parts = zip(begun, limits, waiting, strict=True)
            requests = [GenerationRequest(each.token_ids, limit, seed=seed) for each, limit, seed in parts]
            after = conversations.continued(requests, chosen, begun, Players(player))
            for place, number in enumerate(waiting):
                rollouts[number] = after[place]
    finally:
        conversations.close()
    return rollouts


def score(rollout, problem):
    completion = Completion("", rollout.length, rollout.finish, replies=rollout.replies)
    return environment_score([problem], [completion])[0]


@pytest.fixture(scope="module")
def problems():
    return textarena_problems("Mastermind-v0", 6, "train", CODE)


def thoughtful(before):
    return f"Not [9 9], but {next_guess(before)}"


def careless(before):
    return guess_of(CODES[before.count("Submitted")])


def test_a_game_is_won_in_turns(problems):
    for rollout, problem in zip(played(thoughtful, problems), problems, strict=True):
        assert rollout.finish is FinishReason.STOP
        assert len(rollout.turns) == len(rollout.replies) <= 10
        assert [reply.score for reply in rollout.replies] == [None] * (len(rollout.replies) - 1) + [1.0]
        verdict = score(rollout, problem)
        assert (verdict.value, verdict.status) == (1.0, ScoreStatus.CORRECT)
        text = LetterTokenizer().decode(rollout.token_ids)
        assert text.startswith("You are playing Mastermind.")
        assert text.count("Submitted") == len(rollout.turns) - 1


def test_a_game_is_lost_with_part_of_the_credit(problems):
    (rollout,) = played(careless, problems[:1])
    verdict = score(rollout, problems[0])
    assert len(rollout.turns) == 11 and rollout.finish is FinishReason.STOP
    assert 0 < verdict.value < 1 and verdict.status is ScoreStatus.WRONG


def test_a_game_that_a_limit_ends_has_no_score(problems):
    (rollout,) = played(careless, problems[:1], max_turns=3)
    assert len(rollout.turns) == 3 and rollout.finish is FinishReason.LENGTH
    assert score(rollout, problems[0]).status is ScoreStatus.UNPARSABLE


@pytest.mark.parametrize("changes", [{"workers": 3}, {"pass_tokens": 40}, {"pass_tokens": 7, "workers": 2}])
def test_threads_and_passes_change_nothing(problems, changes):
    random.seed(5)
    before = random.getstate()
    assert played(thoughtful, problems, **changes) == played(thoughtful, problems)
    assert random.getstate() == before
