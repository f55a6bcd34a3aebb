"""Which tokens are recorded, when, and that a resume takes back what it will write again."""

import json
from types import SimpleNamespace

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.callbacks.writers import TokenWriter
from bapo_lightning.run_folder.checkpoint import JOURNALS
from bapo_lightning.run_folder.record import TOKEN_FILE, read_tokens


def outputs():
    values = torch.tensor([0.5, 0.25])
    tokens = table(
        [1.0, -1.0],
        logp=values.log(),
        behaviour_logp=torch.tensor([0.5, 0.5]).log(),
        age=torch.tensor([0, 2]),
    )
    return {"tokens": tokens}


def test_every_nth_update_is_one_line_with_its_tokens(tmp_path):
    record = TokenWriter(tmp_path, every=4)
    for index in range(8):
        record.on_train_batch_end(SimpleNamespace(), SimpleNamespace(), outputs(), SimpleNamespace(), index)
    lines = [json.loads(line) for line in (tmp_path / TOKEN_FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 7]
    columns = read_tokens(tmp_path)
    assert columns["ratio"] == [1.0, 0.5, 1.0, 0.5]
    assert columns["probability"] == pytest.approx([0.5, 0.25] * 2, rel=1e-4)
    assert columns["behaviour_probability"] == pytest.approx([0.5] * 4, rel=1e-4)
    assert columns["age"] == [0, 2, 0, 2] and columns["advantage"] == [1, -1, 1, -1]


@pytest.mark.parametrize("every", [0, 4])
def test_nothing_is_written_when_it_is_off_or_on_a_rank_without_the_tokens(tmp_path, every):
    record = TokenWriter(tmp_path, every)
    for index in range(4):
        record.on_train_batch_end(
            SimpleNamespace(), SimpleNamespace(), {"tokens": None}, SimpleNamespace(), index
        )
    assert not (tmp_path / TOKEN_FILE).exists()


def test_checkpoints_know_the_length_of_the_record():
    assert TOKEN_FILE in JOURNALS
