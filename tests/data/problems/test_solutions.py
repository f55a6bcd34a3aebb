"""What a problem's metadata says of a solution."""

import pytest

from bapo_lightning.data.problems.solutions import require_solutions, solutions
from bapo_lightning.errors import DataError
from bapo_lightning.types import Problem


def problem(cell):
    return Problem("p", "", "", metadata={"solution": cell})


@pytest.mark.parametrize(
    ("cell", "texts"), [("ab", ["ab"]), (["ab", "", "c"], ["ab", "c"]), ("", []), (None, []), (7, [])]
)
def test_a_solution_is_a_text_or_a_list_of_texts(cell, texts):
    assert solutions(problem(cell), "solution") == texts


def test_a_column_without_any_solution_is_refused():
    problems = [problem(None), problem("a")]
    require_solutions(problems, "solution")
    with pytest.raises(DataError, match=r"^column=proof: .*data.train.mapping.keep=\[proof\]"):
        require_solutions(problems, "proof")
