"""Cells of a table: what is text, what are messages, and what is refused by the names of its fields."""

import json

import pytest

from bapo_lightning.data.problems.columns import ColumnMapping, UnusableRow, gold_answer, messages_of, text_of

ASKED = [{"role": "user", "content": "1+1?"}]


@pytest.mark.parametrize("cell", [
    ASKED, {"role": ["user"], "content": ["1+1?"]}, [{"from": "human", "value": "1+1?"}],
    [{"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]}],
    json.dumps(ASKED),
    str(ASKED),
    json.dumps([{"from": "human", "value": "1+1?"}]),
])  # fmt: skip
def test_messages_in_any_layout_are_read(cell):
    assert messages_of(cell) == ASKED


@pytest.mark.parametrize(("cell", "named"), [
    ([{"speaker": "me", "text": "1+1?"}], "speaker, text"),
    ({"ground_truth": "4"}, "ground_truth"), ([["4"]], "a list"), (b"4", "bytes"), (object(), "an object"),
    ([{"role": "user", "content": [{"type": "image", "url": "a"}]}], "a part that is not text"),
])  # fmt: skip
def test_what_is_no_text_is_refused_by_its_fields_as_problem_and_as_answer(cell, named):
    mapping = ColumnMapping("problem", "answer")
    with pytest.raises(UnusableRow, match=named):
        mapping.read({"problem": cell, "answer": "2"}, 0, "own")
    if "part" not in named:
        with pytest.raises(UnusableRow, match=named):
            gold_answer([cell], "text", "####", "refuse")


@pytest.mark.parametrize(("cell", "text"), [
    (" 4 ", "4"), (4, "4"), (4.0, "4"), (27.0, "27"), (2.5, "2.5"), (True, "True"), (None, ""),
])  # fmt: skip
def test_text_number_and_bool_are_text(cell, text):
    assert text_of(cell) == text
