import pytest

from bapo_lightning.data.problems.columns import MissingField, UnusableRow, get_path, gold_answer, last_box
from bapo_lightning.data.problems.solutions import require_solutions, solutions
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem


@pytest.mark.parametrize(("text", "box"), [
    (r"so $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"), (r"first \boxed{1}, then \boxed{ 2 }", "2"),
    (r"\fbox{a}", "a"), (r"$\boxed 5$", "5"), (r"$\boxed \frac12$", None),
    (r"\boxed{\left\{ 1, 2 \right\}}", r"\left\{ 1, 2 \right\}"),
    (r"\boxed{never closed", None), (r"\boxed{never closed\}", None), (r"\boxedtext{1}", None),
    ("none", None),
])  # fmt: skip
def test_the_last_box_of_a_solution(text, box):
    assert last_box(text) == box


@pytest.mark.parametrize(("cell", "answer"), [
    ("so\n#### 1,234", "1234"), ("#### 1\n#### -2,345,678.5", "-2345678.5"), ("#### (1,234)", "(1,234)"),
    ("#### 12,34", "12,34"),
])  # fmt: skip
def test_commas_between_thousands_leave_a_number_and_nothing_else(cell, answer):
    assert gold_answer(cell, "behind_marker", "####", "refuse") == answer


@pytest.mark.parametrize("cell", [None, "", "  ", float("nan"), []])
def test_an_empty_cell_has_no_gold_answer(cell):
    with pytest.raises(UnusableRow, match="no gold answer"):
        gold_answer(cell, "text", "####", "refuse")


def test_fields_are_found_by_dotted_paths_even_when_names_have_dots():
    row = {"a": {"b.c": {"d": 1}, "b": {"e": [10, {"f": 2}]}}, "x.y": 3, "n": None}
    found = {"a.b.c.d": 1, "a.b.e.0": 10, "a.b.e.1.f": 2, "x.y": 3, "n.anything": None}
    assert {path: get_path(row, path) for path in found} == found
    missing = {"a.q": ("b.c", "b"), "a.b.e.7": ("0 to 1",), "x.y.z": (), "q": ("a", "x.y", "n")}
    for path, names in missing.items():
        with pytest.raises(MissingField) as error:
            get_path(row, path)
        assert error.value.args == names


@pytest.mark.parametrize(("cell", "texts"), [
    ("ab", ["ab"]), (["ab", "", "c"], ["ab", "c"]), ("", []), (None, []), (7, []),
])  # fmt: skip
def test_a_solution_is_a_text_or_a_list_of_texts(cell, texts):
    problem = Problem("p", "", "", metadata={"solution": cell})
    assert solutions(problem, "solution") == texts
    if texts:
        require_solutions([Problem("q", "", ""), problem], "solution")
    with pytest.raises(DataError, match=r"^column=proof: .*data.train.mapping.keep=\[proof\]"):
        require_solutions([problem], "proof")
