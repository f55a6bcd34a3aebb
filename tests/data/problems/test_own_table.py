"""A table of one's own, in one line: a part is held out, and the prompt suits the model."""

import json
from types import SimpleNamespace

import pytest
from tests import commands

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.targets import Target
from bapo_lightning.errors import DataError
from bapo_lightning.types import Problem


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"problem": f"{10 + n % 80}+{10 + n // 8}=", "answer": str(n)} for n in range(400)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows + rows[:40]))
    return path


def parts(table, *overrides):
    data = compose_run(["experiment=additions", "data=table", f"data.train.path={table}", *overrides])["data"]
    return Target(data["train"]).make(), Target(data["validation"]["held_out"]).make()


def test_a_tenth_is_held_out_and_equal_problems_are_on_one_side(table):
    train, held_out = parts(table)
    assert len(train) + len(held_out) == 440 and 20 < len(held_out) < 70
    assert {problem.prompt for problem in train}.isdisjoint(problem.prompt for problem in held_out)
    assert train.left_out == {"in the other part": len(held_out)}


def test_the_parts_follow_the_options_of_the_training_set(table):
    train, held_out = parts(table, "data.train.validation_share=0.5", "data.train.limit=100")
    assert len(train) + len(held_out) == 100 and 30 < len(held_out) < 70
    with pytest.raises(DataError, match=r"none of the 2 problems of .* belongs to its part 'validation'"):
        parts(table, "data.train.limit=2", "data.train.validation_share=0.001")


def test_the_prompt_is_a_chat_where_the_model_has_a_format_for_it():
    rule = Target(compose_run(["data=table", "data.train.path=mine.jsonl"])["data"]["prompt"]).make()

    def encode(text, add_special_tokens):
        return list(text.encode())

    def apply_chat_template(messages, **options):
        return list(messages[0]["content"].encode())

    problem = Problem("mine/0", "What is 2 + 3?", "5")
    tokenizer = SimpleNamespace(encode=encode, apply_chat_template=apply_chat_template, chat_template=None)
    assert bytes(rule(tokenizer, problem).tolist()) == b"What is 2 + 3?"
    tokenizer.chat_template = "..."
    assert bytes(rule(tokenizer, problem).tolist()).endswith(rb"put your final answer within \boxed{}.")


def test_one_line_trains_on_it(table, tmp_path):
    done = commands.train("data=table", f"data.train.path={table}", f"run_folder={tmp_path / 'run'}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held out before training: held_out/avg@4" in done.stdout
