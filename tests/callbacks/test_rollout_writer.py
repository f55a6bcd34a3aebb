"""The texts of a run, and what an update knew of their tokens."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.builders import adaptive, random_policy, stale_batch, step

from bapo_lightning.callbacks.writers import RolloutWriter, known_tokens
from bapo_lightning.objectives.surrogate import clipped_mask


class Words:
    """A tokenizer that writes numbers."""

    def decode(self, ids):
        return f"<{ids[0]}>"


@pytest.fixture(scope="module")
def update():
    batch = stale_batch(random_policy(), noise=1.0)
    outputs, _ = step(random_policy(), adaptive(target=0.6), batch, micro_batch_tokens=150)
    return batch, outputs["tokens"]


def test_tokens_of_a_response_are_found_wherever_its_micro_batch_put_them(update):
    batch, tokens = update
    assert len(batch.rollouts) == 24
    for number, found in enumerate(known_tokens(batch.rollouts, tokens, Words())):
        rollout, own = batch.rollouts[number], tokens.sequence == number
        assert found["text"] == [f"<{token}>" for token in rollout.response_ids]
        assert found["first"] == 0 and found["age"] == tokens.age[own].tolist() == [3] * rollout.length
        assert tokens.position[own].tolist() == list(range(rollout.length))
        assert tokens.behaviour_logp[own].tolist() == pytest.approx(list(rollout.logprobs))
        assert found["ratio"] == pytest.approx(tokens.ratio[own].tolist(), rel=1e-4)
        assert found["clipped"] == clipped_mask(tokens.slope, tokens.advantage)[own].int().tolist()


def test_a_response_that_is_too_old_to_be_trained_on_has_its_text_alone(update):
    batch, tokens = update
    (found,) = known_tokens(batch.rollouts[:1], replace(tokens, sequence=tokens.sequence + 1), Words())
    assert found["first"] == batch.rollouts[0].length == len(found["text"]) and found["ratio"] == []


def test_every_nth_update_is_written_with_the_tokens_of_its_first_groups(update, tmp_path):
    batch, tokens = update
    trainer = SimpleNamespace(
        is_global_zero=True,
        loggers=[],
        datamodule=SimpleNamespace(sampler=SimpleNamespace(tokenizer=Words())),
    )
    writer = RolloutWriter(str(tmp_path), every=2, num_groups=2)
    for index in range(4):
        writer.on_train_batch_end(trainer, SimpleNamespace(), {"tokens": tokens}, batch, index)
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0] * 8 + [2] * 8
    assert [row["problem"] for row in rows[:8]] == ["p0"] * 4 + ["p1"] * 4
    assert all(len(row["tokens"]["ratio"]) == row["num_tokens"] for row in rows)
