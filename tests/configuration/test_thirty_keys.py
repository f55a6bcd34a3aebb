"""The keys that people change first: the page has the code's tables, and names of TRL and verl are known."""

import re
from collections import Counter
from pathlib import Path

import pytest

from bapo_lightning.configuration.compose import compose_run, dotted_keys, meant_key, node_at
from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.configuration.group_names import expanded_overrides
from bapo_lightning.configuration.thirty_keys import HEADINGS, THIRTY_KEYS, table

PLAIN = compose_run(["experiment=own", "model.path=FOLDER", "data.train.path=FILE"])
DEFAULTS = {key: node_at(PLAIN, key.split(".")) for key in dotted_keys(PLAIN)}


def test_the_page_has_the_tables_of_the_code():
    assert table(DEFAULTS) in (Path(__file__).resolve().parents[2] / "docs/thirty_keys.md").read_text()
    assert set(HEADINGS) <= {common.key for common in THIRTY_KEYS}


@pytest.mark.parametrize("common", THIRTY_KEYS, ids=lambda common: common.key.split("=")[0])
def test_a_key_of_the_table_exists(common):
    if common.key.startswith(("+", "make ")):
        return  # test_day_two.py and test_readme.py type these
    for word in common.key.split():
        group, _, choice = word.partition("=")
        names = choice_files(group)
        assert group in DEFAULTS or set(re.findall(r"\w+", choice)) <= {*names}, word


def test_a_name_of_another_program_means_one_key():
    names = Counter(name for each in THIRTY_KEYS for name in f"{each.trl} {each.verl} {each.others}".split())
    assert {name for name, count in names.items() if count > 1} <= {"-", "loss_type"}


@pytest.mark.parametrize(("typed", "meant"), [
    ("num_generations", "scale.group_size"),
    ("actor_rollout_ref.rollout.n", "scale.group_size"),
    ("max_completion_length", "scale.max_new_tokens"),
    ("learning_rate", "optimizer.optimizer.lr"),
    ("optimizer.learning_rate", "optimizer.optimizer.lr"),
    ("staleness", "regime.minibatches"),
    ("algorithm.kl_coef", "docs/day_two.md"),
    ("actor_rollout_ref.actor.clip_ratio_high", "algorithm.bounds.high"),
    ("algorithm.clip_ratio_high", "algorithm.bounds.high"),
    ("clip_ratio_low", "algorithm.bounds.low"),
    ("epsilon", "algorithm.bounds.low"),
    ("ckpt_path", "resume=auto"),
    ("paths.output_dir", "output_root"),
    ("train", "make eval"),
    ("scale.grup_size", "scale.group_size?"),
])  # fmt: skip
def test_the_name_of_another_program_is_answered_with_ours(typed, meant):
    assert meant in meant_key(typed, PLAIN)


@pytest.mark.parametrize(("typed", "placed"), [
    ("data=table", ["data=table"]),
    ("data=nothing", ["data=nothing"]),
    ("data=./mine.jsonl", ["data=table", "data.train.path=./mine.jsonl"]),
    ("data=here.jsonl", ["data=table", "data.train.path=here.jsonl"]),
    ("model=owner/name", ["model.path=owner/name"]),
    ("model=additions", ["model=additions"]),
    ("algorithm=a/b", ["algorithm=a/b"]),
    ("model=a/b,c/d", ["model=a/b,c/d"]),
])  # fmt: skip
def test_a_file_or_folder_stands_for_a_choice_of_data_or_model(typed, placed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.jsonl").write_text("{}")
    assert expanded_overrides([typed]) == placed


if __name__ == "__main__":
    print(table(DEFAULTS))
