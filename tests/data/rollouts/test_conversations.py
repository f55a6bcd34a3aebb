"""Conversations by hand: what is sampled, what is feedback, and where limits cut."""

import math
from array import array
from dataclasses import replace

import numpy as np
import pytest
from tests.data.rollouts.scripted import segment
from tests.data.rollouts.turns import FEEDBACK, ITEM, Counting, TurnEngine, TurnTokenizer, made, one_pass
from tokenizers import AddedToken

from bapo_lightning.callbacks.monitors.turns import conversation_metrics
from bapo_lightning.data.rollouts.answers import sample_answers
from bapo_lightning.data.rollouts.conversations import ReplyJournal
from bapo_lightning.data.rollouts.group_state import ArrayStore, pack_running, unpack_running
from bapo_lightning.system.errors import DataError, EnvironmentFault
from bapo_lightning.types import NO_VERSION, FinishReason, Reply, Rollout, Score, ScoreStatus


def talked(source):
    """What becomes of one sample of the problem in a pass."""
    (group,) = groups = source.start([ITEM], 1)
    one_pass(source, groups)
    (rollout,) = group.rollouts
    return rollout


def test_turns_and_feedback_stand_in_order_and_only_what_was_sampled_counts():
    source = made()
    (group,) = groups = source.start([ITEM], 1)
    one_pass(source, groups)
    (rollout,) = group.rollouts
    assert list(rollout.token_ids) == [4, 0, 1, FEEDBACK, 2, 3, FEEDBACK + 1, FEEDBACK + 1, 4, 5]
    assert list(rollout.response_ids) == [0, 1, 2, 3, 4, 5] and list(rollout.versions) == [3] * 6
    assert (rollout.length, rollout.num_feedback_tokens, rollout.num_versions) == (6, 3, 1)
    assert [list(turn) for turn in rollout.turns] == [[0, 1], [2, 3], [4, 5]]
    assert list(rollout.logprobs) == [-1.0] * 6 and rollout.finish is FinishReason.STOP
    feedback = rollout.segments[1]
    assert feedback.is_feedback and feedback.version == NO_VERSION and list(feedback.logprobs) == [0.0]
    seen = []
    right = [Score(1.0, ScoreStatus.CORRECT)]
    source = replace(source, reward=lambda problems, asked: seen.extend(asked) or right)
    (scored,) = source.score(groups, 3)
    assert (scored.oldest_version, scored.newest_version, scored.num_tokens) == (3, 3, 6)
    (completion,) = seen
    assert (completion.text, completion.turns) == (scored.samples[0].text, ("0 1", "2 3", "4 5"))
    assert [reply.score for reply in completion.replies] == [None, None, 1.0] and completion.num_tokens == 6
    (answer,) = sample_answers(made(), [(ITEM.problem, 0)])  # held-out problems are answered in turns as well
    assert (answer.text, answer.rollout.replies) == ("4 5", rollout.replies)


def test_an_empty_reply_still_parts_two_turns():
    begun = Rollout(array("i", [4]))
    for token in (0, 1):
        turn = begun.extended(segment(2, 3, start=2 * token), FinishReason.STOP, 9)
        begun = turn.answered(Reply(), array("i"))
    begun = begun.extended(segment(1, 3, start=4), FinishReason.LENGTH, 9)
    assert [list(turn) for turn in begun.turns] == [[0, 1], [2, 3], [4]] and begun.num_feedback_tokens == 0
    begun = begun.extended(segment(1, 3, start=5), FinishReason.STOP, 9)
    assert list(begun.turns[-1]) == [4, 5]


def test_a_conversation_goes_on_in_the_next_pass_wherever_the_pass_stopped():
    whole = made()
    groups = whole.start([ITEM], 1)
    one_pass(whole, groups)
    for tokens in range(1, 6):
        source = made()
        (group,) = begun = source.start([ITEM], 1)
        version = 3
        while not group.is_finished:
            before = group.num_tokens
            source.engine.load_weights(None, version := version + 1)
            one_pass(source, begun, tokens)
            assert group.num_tokens == min(before + tokens, 6)  # no pass gives fewer, so ages stay bounded
            state = ArrayStore()
            packed = pack_running(state, group)
            restored = ArrayStore.from_state_dict(state.state_dict())
            assert unpack_running(restored, packed, lambda _: ITEM.problem) == group
        (rollout,), (expected,) = group.rollouts, groups[0].rollouts
        assert rollout.token_ids == expected.token_ids and rollout.replies == expected.replies
        assert list(rollout.versions) == [4 + token // tokens for token in range(6)]
        assert [list(turn) for turn in rollout.turns] == [[0, 1], [2, 3], [4, 5]]


def test_seeds_differ_by_turn_and_are_the_same_however_replies_come():
    def seeds(workers):
        engine, asked = TurnEngine(9), {}
        source = made(engine=engine, workers=workers)
        groups = source.start([ITEM, replace(ITEM, epoch=1)], 3)
        whole = engine.generate

        def generate(requests, sampling):
            asked.update({(item.group, item.index, len(item.token_ids)): item.seed for item in requests})
            return whole(requests, sampling)

        engine.generate = generate
        one_pass(source, groups)
        source.conversations.close()
        return asked

    found = seeds(workers=0)
    assert len(set(found.values())) == len(found) == 18 and seeds(workers=3) == found


@pytest.mark.parametrize(("changes", "tokens", "replies"), [
    ({"max_turns": 2}, 4, 2),  # the last turn is answered, and nobody reads it
    ({"max_feedback_tokens": 1}, 4, 2),  # no room for anything after the first reply
    ({"max_feedback_tokens": 2}, 4, 2),  # the second reply has two tokens, and one would fit
    ({"max_new_tokens": 4}, 4, 2),
    ({"max_new_tokens": 3}, 3, 1),  # cut within a turn, which nobody answers
])  # fmt: skip
def test_limits_cut_a_conversation(changes, tokens, replies):
    environment = Counting()
    source = made(environment, **changes)
    rollout = talked(replace(source, max_new_tokens=changes.get("max_new_tokens", 6)))
    assert (rollout.length, len(rollout.replies), len(environment.seen)) == (tokens, replies, replies)
    assert rollout.finish is FinishReason.LENGTH and not rollout.segments[-1].is_feedback


def test_a_conversation_whose_environment_is_lost_is_cut():
    class Lost(Counting):
        def respond(self, turn):
            return replace(super().respond(turn), is_lost=turn.number == 1)

    rollout = talked(made(Lost()))
    assert (rollout.length, len(rollout.replies), rollout.finish) == (4, 2, FinishReason.LENGTH)
    assert conversation_metrics([rollout])["turns/lost_share"] == 1.0
    assert rollout.replies[-1].is_lost and not rollout.segments[-1].is_feedback


def test_a_turn_knows_when_it_is_the_last():
    last = []

    class Asking(Counting):
        def respond(self, turn):
            last.append(turn.is_last)
            return super().respond(turn)

    talked(made(Asking(turns=lambda problem: 9), max_turns=2))
    talked(made(Asking(turns=lambda problem: 9)))  # six tokens, in turns of two
    assert last == [False, True, False, False, True]


def test_a_long_reply_is_cut_by_tokens_and_special_tokens_are_left_out():
    class Special(TurnTokenizer):
        added_tokens_decoder = {99: AddedToken("</s>", special=True)}  # noqa: RUF012
        special_tokens_map = {"eos_token": "</s>"}  # noqa: RUF012
        chat_template = unk_token_id = None

    class Long(Counting):
        def respond(self, turn):
            text = " ".join(str(FEEDBACK + place) for place in range(20))
            return replace(super().respond(turn), text="</</s>s>" + text)

    rollout = talked(made(Long(), max_reply_tokens=4, tokenizer=Special()))
    assert list(rollout.segments[1].token_ids) == [500, 501, 502, 503]


def test_nothing_of_a_pass_remains_when_its_engine_dies_and_no_turn_is_answered_twice():
    environment, alive = Counting(), iter([True, False])
    engine = TurnEngine(9, dies=lambda: not next(alive, True))
    source = made(environment, engine=engine)
    groups = source.start([ITEM], 1)
    assert one_pass(source, groups, once=True) == {}
    assert groups[0].num_tokens == 0 and len(environment.seen) == 1
    source.engine.restart()
    source.engine.load_weights(None, 3)
    one_pass(source, groups, once=True)
    assert groups[0].is_finished and len(environment.seen) == 3  # the first reply was kept


def test_a_killed_run_finds_the_replies_after_its_checkpoint(tmp_path):
    path, environment = tmp_path / "replies.jsonl", Counting()
    source = made(environment)
    source.conversations.journal = ReplyJournal(path)
    groups = source.start([ITEM], 2)  # both samples say the same, and are answered one by one
    one_pass(source, groups, tokens=3)
    saved = source.journal.state_dict()
    store = ArrayStore()
    packed = pack_running(store, groups[0])
    one_pass(source, groups, tokens=2)
    assert len(environment.seen) == 4
    with path.open("a") as file:
        file.write('{"key": "torn')
    again = made(environment)
    again.conversations.journal = ReplyJournal(path)
    again.journal.load_state_dict(saved)
    resumed = [unpack_running(store, packed, lambda _: ITEM.problem)]
    one_pass(again, resumed, tokens=2)
    assert resumed[0].rollouts == groups[0].rollouts and len(environment.seen) == 4
    again.engine.load_weights(None, 4)  # other weights: the same tokens are another turn
    one_pass(again, resumed)
    assert resumed[0].is_finished and len(environment.seen) == 6


@pytest.mark.parametrize("row", ["[]", '{"key": 7}', '{"key": "a", "reply": {"calls": "x"}}', "[" * 100_000])
def test_a_reply_that_is_none_is_reported_with_its_line(row, tmp_path):
    path, environment = tmp_path / "replies.jsonl", Counting()
    path.write_text(f'{{"key": "a", "reply": {{}}}}\n{row}\n')
    source = made(environment)
    source.conversations.journal = ReplyJournal(path)
    source.journal.load_state_dict({"replies_size": len('{"key": "a", "reply": {}}\n')})
    with pytest.raises(DataError, match=r"line 2 of .*replies\.jsonl is corrupt .*; cut the file off"):
        one_pass(source, source.start([ITEM], 1), tokens=3)


def test_a_run_that_was_killed_before_its_first_checkpoint_finds_all_replies(tmp_path):
    environment, answered = Counting(), []
    for source in (made(environment), made(environment)):
        source.keep_replies(tmp_path)
        groups = source.start([ITEM], 2)
        one_pass(source, groups)
        answered.append(groups[0].rollouts)
    assert answered[0] == answered[1]
    assert len(environment.seen) == sum(len(one.replies) for one in answered[0])


def test_a_fault_of_the_environment_names_the_turn():
    class Broken(Counting):
        def respond(self, turn):
            return 1 / 0

    class Mistyped(Counting):
        def respond(self, turn):
            return "four"

    for environment, message in [(Broken(), "ZeroDivisionError"), (Mistyped(), "return a bapo_lightning")]:
        with pytest.raises(EnvironmentFault, match=f"turn 0 of problem 4: .*{message}"):
            talked(made(environment))


def replying(**fields):
    """What a conversation keeps of a first reply with these fields."""

    class Replying(Counting):
        is_pure = True  # or a journal would judge it as well

        def respond(self, turn):
            return Reply(**{"text": "500", **fields}) if turn.number == 0 else Reply(is_done=True)

    return talked(made(Replying())).replies[0]


@pytest.mark.parametrize(("name", "value"), [
    *(("text", value) for value in (5, None, {"a": 1}, [{"type": "text", "text": "a"}], b"a")),
    *(("score", value) for value in ("5", [1], math.nan, math.inf, 10**400, 1e200, {})),
    *(("is_done", value) for value in ("false", 1, None)),
    *(("calls", value) for value in ("1", -1, 1.5, None)),
    ("is_lost", "no"),
])  # fmt: skip
def test_a_reply_of_other_types_is_a_fault_that_names_the_field(name, value):
    with pytest.raises(EnvironmentFault, match=rf"turn 0 of problem 4: .*Reply\.{name}: ") as caught:
        replying(**{name: value})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("state", [object(), {"a": math.nan}, b"a", {(1, 2): 3}, {1}])
def test_a_state_that_json_cannot_hold_is_a_fault_that_names_it(state):
    with pytest.raises(EnvironmentFault, match=r"turn 0 of problem 4: .*Reply\.state: "):
        replying(state=state)


def test_a_reply_is_at_once_what_a_checkpoint_gives_back():
    kept = replying(state={"pair": (1, 2), 3: "a\ud800"}, score=np.float32(0.5), calls=np.int64(2))
    assert kept.state == {"pair": [1, 2], "3": "a\ufffd"} and (kept.score, kept.calls) == (0.5, 2)
    assert type(kept.score) is float and type(kept.calls) is int


def test_halves_of_a_character_in_a_reply_are_joined_or_replaced(tmp_path):
    class Halves(Counting):
        def respond(self, turn):
            return replace(super().respond(turn), text="\ud83d\ude00 \ud800 \udc00")

    class Unicode(TurnTokenizer):
        def encode(self, text, **options):
            return [FEEDBACK] * (len(text.encode()) > 0)  # as a real one, which takes whole characters alone

    read = []
    for environment in (Halves(), Halves(lambda problem: 1 / 0)):  # nobody asks the second one
        source = made(environment, tokenizer=Unicode())
        source.keep_replies(tmp_path)
        groups = source.start([ITEM], 1)
        one_pass(source, groups)
        read.append(groups[0].rollouts)
    assert read[0] == read[1] and read[0][0].replies[0].text == "\U0001f600 \ufffd \ufffd"


def test_a_cut_rollout_has_no_feedback_that_nobody_read():
    begun = Rollout(array("i", [4])).extended(segment(2), FinishReason.STOP, 6)
    answered = begun.answered(Reply("500"), array("i", [500]))
    assert answered.finish is None and answered.num_feedback_tokens == 1
    assert answered.cut().num_feedback_tokens == 0 and answered.cut().finish is FinishReason.LENGTH
