"""Parquet files whose columns differ in type are one table, whose cells are as each file has them."""

import pyarrow
import pyarrow.parquet
import pytest

from bapo_lightning.data.problems.columns import ColumnMapping
from bapo_lightning.data.problems.table import problem_table
from bapo_lightning.system.errors import DataError

# A column in one file, and the answers that it holds.
COLUMNS = {
    "null": (pyarrow.nulls(1), []),
    "text": (pyarrow.array(["0012"]), ["0012"]),
    "large text": (pyarrow.array(["b"], pyarrow.large_string()), ["b"]),
    "text view": (pyarrow.array(["c"], pyarrow.string_view()), ["c"]),
    "dictionary": (pyarrow.array(["d"]).dictionary_encode(), ["d"]),
    "whole": (pyarrow.array([2**53 + 1]), ["9007199254740993"]),
    "float": (pyarrow.array([0.5]), ["0.5"]),
    "bool": (pyarrow.array([True]), ["True"]),
    "decimal": (pyarrow.array(["1.50"]).cast(pyarrow.decimal128(9, 2)), ["1.50"]),
    "empty list": (pyarrow.array([[]], pyarrow.list_(pyarrow.null())), []),
    "list": (pyarrow.array([["e"]]), ["e"]),
    "none": (None, []),
    "no rows": (pyarrow.array([], pyarrow.null()), []),
}


def write(path, answers, problem="problem"):
    texts = pyarrow.array(["p"] * (1 if answers is None else len(answers)))
    columns = {problem: texts} | ({} if answers is None else {"answer": answers})
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def table(path, answer="answer"):
    return problem_table("own", str(path), ColumnMapping("problem", answer), unusable="leave_out")


@pytest.mark.parametrize("first", COLUMNS)
def test_a_cell_is_what_its_own_file_has(first, tmp_path):
    for number, other in enumerate(set(COLUMNS) - {first}):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, part in (("a", first), ("b", other)):
            write(folder / f"{name}.parquet", COLUMNS[part][0])
        expected = COLUMNS[first][1] + COLUMNS[other][1]
        if expected:
            assert [problem.answer for problem in table(folder / "*.parquet")] == expected, other


def test_fields_of_a_column_may_differ_and_a_folder_is_read_alike(tmp_path):
    cells = {"text": None}, {"text": "4"}, {"text": "5", "style": "rule"}
    for name, cell in zip("abc", cells, strict=True):
        write(tmp_path / f"{name}.parquet", pyarrow.array([cell]))
    assert [problem.answer for problem in table(tmp_path, "answer.text")] == ["4", "5"]


@pytest.mark.parametrize("names", ["a", "ab"])
def test_files_without_rows_are_one_sentence(names, tmp_path):
    for name in names:
        write(tmp_path / f"{name}.parquet", pyarrow.array([], pyarrow.string()))
    with pytest.raises(DataError, match=r"gives no problem \(it has no rows\)"):
        table(tmp_path / "*.parquet" if "b" in names else tmp_path / "a.parquet")


def test_files_that_are_alike_are_left_to_the_general_reader(tmp_path, monkeypatch):
    monkeypatch.setattr("bapo_lightning.data.problems.file_rows.Records", None)
    for name in "ab":
        write(tmp_path / f"{name}.parquet", pyarrow.array([name]))
    assert [problem.answer for problem in table(tmp_path)] == ["a", "b"]


def test_a_file_without_any_of_the_columns_is_named(tmp_path):
    write(tmp_path / "a.parquet", pyarrow.array(["1"]))
    write(tmp_path / "b.parquet", None, problem="question")
    with pytest.raises(DataError, match=r"b\.parquet has none of the columns answer, problem$"):
        table(tmp_path)


@pytest.mark.parametrize("kinds", [["1", None], [None, "1"], [None, None]], ids=str)
def test_a_file_without_rows_adds_none(tmp_path, kinds):
    for name, cell in zip("ab", kinds, strict=True):
        write(tmp_path / f"{name}.parquet", pyarrow.array([cell] if cell else [], pyarrow.string()))
    if not any(kinds):
        with pytest.raises(DataError, match="has no rows"):
            table(tmp_path)
    else:
        assert [problem.answer for problem in table(tmp_path)] == ["1"]
