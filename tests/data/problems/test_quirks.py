"""Quirks of data sets that people use, as rows in their layout, and what each row now gives."""

import json

import pytest

from bapo_lightning.data.problems.columns import ColumnMapping
from bapo_lightning.data.problems.table import problem_table
from bapo_lightning.system.errors import DataError

ASKED = [{"role": "user", "content": "1+1?"}]
TOLD = [*ASKED, {"role": "assistant", "content": "2"}]
ANSWER = {"answer": "2"}
VERL = {"reward_model": {"ground_truth": "2", "style": "rule"}}
BEHIND = {"answer_form": "behind_marker"}
NESTED = {"problem": "prompt", "answer": "reward_model.ground_truth"}


def one(tmp_path, row, **mapping):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(row))
    (problem,) = problem_table("own", str(path), ColumnMapping(**{"problem": "q", "answer": "a", **mapping}))
    return problem


@pytest.mark.parametrize(("cell", "mapping", "answer"), [
    ("Half is <<2/2=1>>1 of it.\n#### 1,000", BEHIND, "1000"),  # GSM8K
    ("so\n#### $4.", BEHIND, "$4."),  # read as 4 by reward=math
    (r"x<2 \text{ or } x>3", {}, r"x<2 \text{ or } x>3"),  # DeepScaleR
    (r"It is $\boxed 5$.", {"answer_form": "last_box"}, "5"),  # MATH
    (r"so \boxed{\text{(A)}}, no: \boxed{\frac{1}{2}}", {"answer_form": "last_box"}, r"\frac{1}{2}"),
    ('["34"]', {"answer_form": "json_list"}, "34"),  # SkyWork-OR1
    ("\u2212\u00bd\u200b", {}, "\u2212\u00bd\u200b"),  # a minus, a fraction and an invisible end
    ("e\u0301 \U0001f44d\U0001f3fd", {}, "e\u0301 \U0001f44d\U0001f3fd"),  # combined, not composed anew
    (0.5, {}, "0.5"), (True, {}, "True"), (["4"], {}, "4"),
])  # fmt: skip
def test_an_answer_of_the_field_is_read(cell, mapping, answer, tmp_path):
    assert one(tmp_path, {"q": "1+1?", "a": cell}, **mapping).answer == answer


@pytest.mark.parametrize(("cell", "mapping", "words"), [
    ("proof", {}, "proof instead of a gold answer"),
    ("unknown", {}, "unknown instead of a gold answer"),
    (r"It holds \boxed{proof}", {"answer_form": "last_box"}, "proof instead"),
    ("", {}, "no gold answer"), (None, {}, "no gold answer"), ("####", BEHIND, "no gold answer"),
    (r"\boxed{}", {"answer_form": "last_box"}, "no gold answer"),
    ("[]", {"answer_form": "json_list"}, "no gold answer"),
    ('{"a": 1}', {"answer_form": "json_list"}, "not a JSON list"),
    ([["4"]], {}, "a list"),
    (["1", "2"], {}, "several gold answers"),
])  # fmt: skip
def test_what_is_no_answer_is_refused(cell, mapping, words, tmp_path):
    with pytest.raises(DataError, match=words):
        one(tmp_path, {"q": "1+1?", "a": cell}, **mapping)


@pytest.mark.parametrize(("row", "mapping", "prompt"), [
    ({"prompt": json.dumps(ASKED), **VERL}, NESTED, "1+1?"),  # verl, as text
    ({"prompt": ASKED, **VERL}, NESTED, "1+1?"),
    ({"prompt": [{"from": "human", "value": "1+1?"}], "a": 2}, {"problem": "prompt"}, "1+1?"),  # ORZ
    ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}], "a": 2},
     {"problem": "prompt"}, "1+1?"),
    ({"q": "e\u0301\U0001f600\u200d?", "a": 2}, {}, "e\u0301\U0001f600\u200d?"),
])  # fmt: skip
def test_a_question_of_the_field_is_read(row, mapping, prompt, tmp_path):
    problem = one(tmp_path, row, **mapping)
    assert (problem.prompt, problem.answer) == (prompt, "2")


@pytest.mark.parametrize(("cell", "words"), [
    (TOLD, "a conversation, not one question"), (TOLD + ASKED, "a conversation"), ([], "not text"),
    ([{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}], "a conversation"),
    ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "1?"}]}], "not text"),
    ({"text": "1+1?"}, "text; name a field"), ("", "no problem text"), ("  ", "no problem text"),
    (None, "no problem text"),
])  # fmt: skip
def test_what_is_no_question_is_refused(cell, words, tmp_path):
    with pytest.raises(DataError, match=words):
        one(tmp_path, {"q": cell, "a": "2"})


@pytest.mark.parametrize(("cell", "number"), [
    ("3/8", 0.375), ("Level 5", 5.0), ("Level-5", 5.0), ("Lv.5", 5.0), (None, None), ("n/a", None),
    ("0/0", None), ("1/1e2", 0.01), ("-1/4", -0.25), (1e-05, 1e-05), ("1.5E-7", 1.5e-07),
    (1.5e-300, 1.5e-300), (".5", 0.5), ("-.5", -0.5), ("1,200", 1200.0), ("12,34", 12.0), (1e23, 1e23),
    ("62.5%", 62.5), ("2024-01", 2024.0), (3, 3.0), (2.5, 2.5), (0.25, 0.25), ("0.75", 0.75),
    ("Level ?", None), ("none", None),
])  # fmt: skip
def test_a_difficulty_of_the_field_is_a_number(cell, number, tmp_path):
    assert one(tmp_path, {"q": "p", "a": "2", "d": cell}, difficulty="d").metadata["difficulty"] == number
