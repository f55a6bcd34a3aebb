"""Cells of a table: what is text, what are messages, and what is refused by the names of its fields."""

import json

import pytest

from bapo_lightning.data.problems.columns import (
    ColumnMapping,
    UnusableRow,
    gold_answer,
    messages_of,
    number_of,
    text_of,
)
from bapo_lightning.data.problems.table import problem_table
from bapo_lightning.system.errors import DataError

ASKED = [{"role": "user", "content": "1+1?"}]


@pytest.mark.parametrize("cell", [
    ASKED,
    {"role": ["user"], "content": ["1+1?"]},
    [{"from": "human", "value": "1+1?"}],
    [{"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]}],
    json.dumps(ASKED),
    str(ASKED),
    json.dumps([{"from": "human", "value": "1+1?"}]),
])  # fmt: skip
def test_messages_in_any_layout_are_read(cell):
    assert messages_of(cell) == ASKED


@pytest.mark.parametrize(("cell", "named"), [
    ([{"speaker": "me", "text": "1+1?"}], "speaker, text"),
    ({"ground_truth": "4"}, "ground_truth"),
    ([["4"]], "a list"),
    (b"4", "bytes"),
    (object(), "an object"),
    ([{"role": "user", "content": [{"type": "image", "url": "a"}]}], "a part that is not text"),
])  # fmt: skip
def test_what_is_no_text_is_refused_by_its_fields_as_problem_and_as_answer(cell, named):
    mapping = ColumnMapping("problem", "answer")
    with pytest.raises(UnusableRow, match=named):
        mapping.read({"problem": cell, "answer": "2"}, 0, "own")
    if "part" not in named:
        with pytest.raises(UnusableRow, match=named):
            gold_answer([cell], "text", "####", "refuse")


def test_an_answer_in_a_conversation_never_stands_in_the_prompt():
    talk = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]
    with pytest.raises(UnusableRow, match="a conversation"):
        ColumnMapping("talk", "answer").read({"talk": talk, "answer": "2"}, 0, "own")


@pytest.mark.parametrize(("cell", "text"), [(" 4 ", "4"), (4, "4"), (4.0, "4"), (True, "True"), (None, "")])
def test_text_number_and_bool_are_text(cell, text):
    assert text_of(cell) == text


@pytest.mark.parametrize(("cell", "number"), [("3/8", 0.375), ("Level 5", 5.0), (0.25, 0.25), ("none", None)])
def test_a_difficulty_is_the_value_of_its_text(cell, number):
    assert number_of(cell) == number


def test_cells_of_csv_are_what_the_file_has(tmp_path):
    answers = ["0012", "NA", "None", "12345678901234567890", "2024-01-02", "34.0"]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["problem,answer", *(f"p{i},{text}" for i, text in enumerate(answers))]))
    found = problem_table("own", str(path), ColumnMapping("problem", "answer"))
    assert [problem.answer for problem in found] == answers


def test_a_file_of_another_type_is_not_taken_for_a_name_of_the_hub(tmp_path):
    path = tmp_path / "own.xlsx"
    path.write_bytes(b"PK")
    with pytest.raises(DataError, match=r"own\.xlsx is not a table of a known type; they are \.jsonl"):
        problem_table("own", str(path), ColumnMapping("problem", "answer"))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_an_empty_file_is_said_to_be_empty(suffix, tmp_path):
    path = tmp_path / f"own{suffix}"
    path.touch()
    with pytest.raises(DataError, match=rf"own\{suffix} is empty$"):
        problem_table("own", str(path), ColumnMapping("problem", "answer"))


@pytest.mark.parametrize(
    ("name", "text"),
    [("own.jsonl", '{"problem": "caf\xe9", "answer": "1"}\n'), ("own.csv", "problem,answer\ncaf\xe9,1\n")],
)
def test_a_file_that_is_not_utf_8_is_named_with_the_byte(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=rf"{name} is not UTF-8 \(byte 1[79]\); save it as UTF-8"):
        problem_table("own", str(tmp_path / name), ColumnMapping("problem", "answer"))


def test_a_folder_without_tables_is_refused_at_once(tmp_path):
    (tmp_path / "notes.md").touch()
    with pytest.raises(DataError, match=r"no file in it ends with \.jsonl"):
        problem_table("own", str(tmp_path), ColumnMapping("problem", "answer"))


def test_a_name_with_brackets_is_no_pattern(tmp_path):
    path = tmp_path / "own[1].jsonl"
    path.write_text('{"problem": "1+1?", "answer": "2"}\n')
    assert len(problem_table("own", str(path), ColumnMapping("problem", "answer"))) == 1
