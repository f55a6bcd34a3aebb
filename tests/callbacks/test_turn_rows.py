"""What rollouts.jsonl has of conversations, and that it has nothing of them elsewhere."""

from dataclasses import replace

import torch
from tests.builders import group, rollout
from tests.callbacks.conversations import conversation
from tests.token_tables import table

from bapo_lightning.callbacks.writers import group_rows, known_tokens
from bapo_lightning.types import FinishReason, Reply, Segment


class Words:
    """A tokenizer that writes numbers."""

    def decode(self, ids):
        return " ".join(f"<{token}>" for token in ids)


TALK = conversation(
    [5, 6], [90, 91], [7], [92], [8, 9],
    replies=[Reply("a", calls=2, errors=1), Reply("b", is_void=True)], finish=FinishReason.LENGTH,
)  # fmt: skip
SINGLE = rollout([1], [5, 6], [-1.0, -1.0])


def rows(*rollouts):
    made = group("p", list(rollouts), [1.0] * len(rollouts), [0.0] * len(rollouts))
    return list(group_rows(made, Words()))


def test_turns_are_written_one_by_one_with_what_each_led_to():
    (row,) = rows(TALK)
    assert row["turns"] == [
        {"by": "policy", "text": "<5> <6>", "calls": 2, "errors": 1},
        {"by": "environment", "text": "<90> <91>"},
        {"by": "policy", "text": "<7>", "void": True},
        {"by": "environment", "text": "<92>"},
        {"by": "policy", "text": "<8> <9>"},  # a limit ended it, and nobody replied
    ]
    assert (row["num_tokens"], row["versions"]) == (5, [0, 0, 0])


def test_a_turn_that_was_resumed_under_newer_weights_is_one_turn():
    first, *rest = TALK.segments
    newer = replace(first, version=3)
    resumed = replace(TALK, segments=(first, newer, *rest))
    (row,) = rows(resumed)
    assert row["turns"][0]["text"] == "<5> <6> <5> <6>" and len(row["turns"]) == 5
    assert row["versions"] == [0, 3, 0, 0]


def test_a_reply_to_the_only_turn_is_a_mark_of_that_turn():
    (row,) = rows(conversation([5], replies=[Reply("right", is_done=True, calls=1)]))
    assert row["turns"] == [{"by": "policy", "text": "<5>", "calls": 1}]


def test_a_response_that_nobody_answered_has_no_turns():
    (row,) = rows(SINGLE)
    assert "turns" not in row and row["versions"] == [0]


def test_texts_of_the_environment_have_a_place_among_the_sampled_tokens():
    made = table(
        torch.ones(6), sequence=torch.tensor([0, 0, 0, 0, 1, 1]), position=torch.tensor([1, 2, 3, 4, 0, 1])
    )
    talk, single = known_tokens([TALK, SINGLE], made, Words())
    assert talk["text"] == ["<5>", "<6>", "<7>", "<8>", "<9>"] and talk["first"] == 1
    assert talk["feedback_at"] == [2, 3] and len(talk["ratio"]) == 4
    assert "feedback_at" not in single and single["text"] == ["<5>", "<6>"]


def test_feedback_of_no_tokens_still_separates_turns():
    segments = (TALK.segments[0], Segment.of_feedback(TALK.segments[1].token_ids[:0]), *TALK.segments[2:])
    empty = replace(TALK, segments=segments)
    (row,) = rows(empty)
    assert [turn["text"] for turn in row["turns"]] == ["<5> <6>", "", "<7>", "<92>", "<8> <9>"]
