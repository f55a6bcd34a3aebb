"""What is recorded of an update: metrics, texts, conversations turn by turn, tokens."""

import io
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tests.builders import adaptive, conversation, group, random_policy, rollout, stale_batch, step
from tests.token_tables import table

from bapo_lightning.callbacks.run_bar import RunBar
from bapo_lightning.callbacks.writers import (
    ConsoleLogger,
    MetricsWriter,
    RolloutWriter,
    TokenWriter,
    group_rows,
    to_floats,
    token_records,
)
from bapo_lightning.objectives.surrogate import clipped_mask
from bapo_lightning.system.run_folder.checkpoint import JOURNALS
from bapo_lightning.system.run_folder.record import TOKEN_FILE, read_tokens
from bapo_lightning.types import FinishReason, Reply, Segment


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tensors_become_numbers_and_undefined_values_are_left_out():
    metrics = {"b": torch.tensor(2), "a": 1.5, "nan": torch.tensor(float("nan")), "inf": float("inf")}
    assert to_floats({**metrics, "flag": torch.tensor(True)}) == {"a": 1.5, "b": 2.0, "flag": 1.0}


def test_the_console_shows_this_update_and_a_dash_for_what_it_does_not_have(capsys):
    shown = []
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(broadcast=lambda values: values), callback_metrics={}, loggers=[],
        progress_bar_callback=object(), is_global_zero=True, num_training_batches=2,
    )  # fmt: skip
    module = SimpleNamespace(log_dict=lambda values, **options: shown.append(values))
    for index, share in enumerate((0.4, float("nan"))):
        outputs = {"metrics": {"train/reward": 0.5, "bapo/positive_share": torch.tensor(share)}}
        for callback in (MetricsWriter(), ConsoleLogger(every=1)):
            callback.on_train_batch_end(trainer, module, outputs, None, index)
    first, second = capsys.readouterr().out.splitlines()
    assert "reward 0.500" in first and "positive share 0.400" in first
    assert "reward 0.500" in second and "positive share -" in second
    assert shown[0]["positive share"] == pytest.approx(0.4)
    assert math.isnan(shown[1]["positive share"])  # the bar does not repeat the earlier one


@pytest.mark.parametrize(("age", "printed"), [(29.0, 0), (31.0, 1)])
def test_slow_updates_are_shown_by_time(age, printed, capsys):
    trainer = SimpleNamespace(is_global_zero=True, num_training_batches=10)
    console = ConsoleLogger(every=20, seconds=30.0)
    console._last -= age
    for index in range(2):  # the second follows at once
        console.on_train_batch_end(trainer, None, {"values": {}}, None, index)
    assert capsys.readouterr().out.count("update ") == printed


NUMBERS = {"reward": 0.5, "entropy": 0.25, "share": float("nan"), "high": 3.0, "own": "a text"}


def bar_lines(updates, width=80, before=0):
    bar, trainer = RunBar(48, before, 8), SimpleNamespace(progress_bar_metrics=NUMBERS)
    bar.on_train_start(trainer, None)
    for index in range(updates):
        bar.on_train_batch_end(trainer, None, None, None, index)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(bar)
    return console.file.getvalue().splitlines()


def test_it_counts_updates_knows_those_of_earlier_sessions_and_has_a_dash_for_no_number():
    assert bar_lines(0, before=16)[0].startswith("update 16/48 ")
    first, second = bar_lines(17)
    assert first.startswith("update 17/48 ")
    assert second == "reward 0.500  entropy 0.250  share -  high 3.000  own a text"


@pytest.mark.parametrize("width", [20, 40, 60, 72, 80, 120])
def test_no_line_is_wider_than_the_terminal_or_wrapped(width):
    shown = bar_lines(17, width)
    assert len(shown) == 2 and all(len(line) <= width for line in shown)
    assert shown[1].startswith("reward 0.500") and not shown[1].endswith(" ")


@pytest.mark.parametrize(("every", "has_tokens", "rows"), [(4, True, [3, 7]), (0, True, []), (4, False, [])])
def test_tokens_of_every_nth_update_are_one_line_on_the_rank_that_has_them(tmp_path, every, has_tokens, rows):
    values = torch.tensor([0.5, 0.25])
    behaviour = torch.tensor([0.5, 0.5]).log()
    tokens = table([1.0, -1.0], logp=values.log(), behaviour_logp=behaviour, age=torch.tensor([0, 2]))
    writer = TokenWriter(tmp_path, every)
    for index in range(8):
        writer.on_train_batch_end(None, None, {"tokens": tokens if has_tokens else None}, None, index)
    path = tmp_path / TOKEN_FILE
    assert path.exists() == bool(rows) and TOKEN_FILE in JOURNALS  # which a resume cuts off
    if rows:
        assert [line["step"] for line in lines(path)] == rows
        columns = read_tokens(tmp_path)
        assert columns["ratio"] == [1.0, 0.5, 1.0, 0.5]
        assert columns["probability"] == pytest.approx([0.5, 0.25] * 2, rel=1e-4)
        assert columns["behaviour_probability"] == pytest.approx([0.5] * 4, rel=1e-4)
        assert columns["age"] == [0, 2, 0, 2] and columns["advantage"] == [1, -1, 1, -1]


class Words:
    """A tokenizer that writes numbers."""

    def decode(self, ids):
        return " ".join(f"<{token}>" for token in ids)


@pytest.fixture(scope="module")
def update():
    batch = stale_batch(random_policy(), noise=1.0)
    outputs, _ = step(random_policy(), adaptive(target=0.6), batch, micro_batch_tokens=150)
    return batch, outputs["tokens"]


def test_tokens_of_a_response_are_found_wherever_its_micro_batch_put_them(update):
    batch, tokens = update
    assert len(batch.rollouts) == 24
    for number, found in enumerate(token_records(batch.rollouts, tokens, Words())):
        sampled, own = batch.rollouts[number], tokens.sequence == number
        assert found["text"] == [f"<{token}>" for token in sampled.response_ids]
        assert found["first"] == 0 and found["age"] == tokens.age[own].tolist() == [3] * sampled.length
        assert tokens.position[own].tolist() == list(range(sampled.length))
        assert tokens.behaviour_logp[own].tolist() == pytest.approx(list(sampled.logprobs))
        assert found["ratio"] == pytest.approx(tokens.ratio[own].tolist(), rel=1e-4)
        assert found["clipped"] == clipped_mask(tokens.slope, tokens.advantage)[own].int().tolist()


def test_a_response_that_is_too_old_to_be_trained_on_has_its_text_alone(update):
    batch, tokens = update
    (found,) = token_records(batch.rollouts[:1], replace(tokens, sequence=tokens.sequence + 1), Words())
    assert found["first"] == batch.rollouts[0].length == len(found["text"]) and found["ratio"] == []


def test_every_nth_update_is_written_with_the_tokens_of_its_first_groups(update, tmp_path):
    batch, tokens = update
    data_module = SimpleNamespace(sampler=SimpleNamespace(tokenizer=Words()))
    trainer = SimpleNamespace(is_global_zero=True, loggers=[], datamodule=data_module)
    writer = RolloutWriter(str(tmp_path), every=2, num_groups=2)
    for index in range(4):
        writer.on_train_batch_end(trainer, None, {"tokens": tokens}, batch, index)
    rows = lines(tmp_path / "rollouts.jsonl")
    assert [row["step"] for row in rows] == [0] * 8 + [2] * 8
    assert [row["problem"] for row in rows[:8]] == ["p0"] * 4 + ["p1"] * 4
    assert all(len(row["tokens"]["ratio"]) == row["num_tokens"] for row in rows)


TALK = conversation(
    [5, 6], [90, 91], [7], [92], [8, 9],
    replies=[Reply("a", calls=2, errors=1), Reply("b", is_void=True)], finish=FinishReason.LENGTH,
)  # fmt: skip
SINGLE = rollout([1], [5, 6], [-1.0, -1.0])


def row_of(answered):
    (row,) = group_rows(group("p", [answered], [1.0], [0.0]), Words())
    return row


def test_turns_are_written_one_by_one_with_what_each_led_to():
    row = row_of(TALK)
    assert row["turns"] == [
        {"by": "policy", "text": "<5> <6>", "calls": 2, "errors": 1},
        {"by": "environment", "text": "<90> <91>"},
        {"by": "policy", "text": "<7>", "void": True},
        {"by": "environment", "text": "<92>"},
        {"by": "policy", "text": "<8> <9>"},  # a limit ended it, and nobody replied
    ]
    assert (row["num_tokens"], row["versions"]) == (5, [0, 0, 0])
    only = row_of(conversation([5], replies=[Reply("right", is_done=True, calls=1)]))
    assert only["turns"] == [{"by": "policy", "text": "<5>", "calls": 1}]
    assert "turns" not in row_of(SINGLE) and row_of(SINGLE)["versions"] == [0]


def test_a_turn_that_was_resumed_under_newer_weights_is_one_turn():
    first, *rest = TALK.segments
    row = row_of(replace(TALK, segments=(first, replace(first, version=3), *rest)))
    assert row["turns"][0]["text"] == "<5> <6> <5> <6>" and len(row["turns"]) == 5
    assert row["versions"] == [0, 3, 0, 0]


def test_feedback_of_no_tokens_still_separates_turns():
    first, feedback, *rest = TALK.segments
    row = row_of(replace(TALK, segments=(first, Segment.of_feedback(feedback.token_ids[:0]), *rest)))
    assert [turn["text"] for turn in row["turns"]] == ["<5> <6>", "", "<7>", "<92>", "<8> <9>"]


def test_texts_of_the_environment_have_a_place_among_the_sampled_tokens():
    sequence, position = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([1, 2, 3, 4, 0, 1])
    tokens = table(torch.ones(6), sequence=sequence, position=position)
    talk, single = token_records([TALK, SINGLE], tokens, Words())
    assert talk["text"] == ["<5>", "<6>", "<7>", "<8>", "<9>"] and talk["first"] == 1
    assert talk["feedback_at"] == [2, 3] and len(talk["ratio"]) == 4
    assert "feedback_at" not in single and single["text"] == ["<5>", "<6>"]
