"""Rows of text files are what the files have, in every packing, and what is no table is one sentence."""

import bz2
import gzip
import json

import pyarrow
import pytest

from bapo_lightning.data.problems.columns import ColumnMapping
from bapo_lightning.data.problems.table import problem_table
from bapo_lightning.system.errors import DataError

ROW = '{"problem": "p", "answer": %s}\n'


def table(path, **options):
    return problem_table("own", str(path), ColumnMapping("problem", "answer"), **options)


@pytest.mark.parametrize(("cell", "answer"), [
    ('"2024-01-02"', "2024-01-02"), ('"12:30:00"', "12:30:00"), ('"1.0"', "1.0"), ('"0012"', "0012"),
    ('"null"', "null"), ("9007199254740993", "9007199254740993"),
    ("12345678901234567890", "12345678901234567890"),
    ("1e400", "1e400"), ("0.12345678901234567890123", "0.12345678901234567890123"), ("0.1", "0.1"),
    ("34.0", "34"), ("1e23", "1" + "0" * 23), ('"\\u00e9 \\ud83d\\ude00"', "\u00e9 \U0001f600"),
    ('["4"]', "4"),
])  # fmt: skip
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_an_answer_is_what_the_file_has(cell, answer, suffix, tmp_path):
    path, rows = tmp_path / f"own{suffix}", [ROW % '"a"', ROW % cell, ROW % "0.5"]  # beside text and decimals
    path.write_text("".join(rows) if suffix == ".jsonl" else f"[{','.join(rows)}]")
    assert [problem.answer for problem in table(path)] == ["a", answer, "0.5"]


def test_cells_of_csv_are_what_the_file_has(tmp_path):
    answers = ["0012", "NA", "None", "12345678901234567890", "2024-01-02", "34.0"]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["problem,answer", *(f"p{i},{text}" for i, text in enumerate(answers))]))
    assert [problem.answer for problem in table(path)] == answers


@pytest.mark.parametrize("suffix", [".jsonl", ".JSONL", ".ndjson", ".jsonl.gz", ".json.bz2", ".jsonl.zst"])
def test_files_of_every_packing_are_read(suffix, tmp_path):
    path, text = tmp_path / f"own{suffix}", ("\ufeff" + ROW % '"2"' * 3).encode()
    packers = {".gz": gzip.compress, ".bz2": bz2.compress}
    packers[".zst"] = lambda data: pyarrow.compress(data, codec="zstd", asbytes=True)
    path.write_bytes(packers.get(path.suffix, bytes)(text))
    assert [problem.answer for problem in table(path)] == ["2"] * 3


def test_a_column_may_begin_with_nulls_and_a_row_may_lack_a_field(tmp_path):
    path = tmp_path / "own.jsonl"
    nulls = "".join(json.dumps({"problem": "p", "answer": None}) + "\n" for _ in range(3000))
    path.write_text(nulls + '{"problem": "q"}\n' + ROW % '"2024-01-02"')
    found = table(path, unusable="leave_out")
    assert [problem.answer for problem in found] == ["2024-01-02"]
    assert found.left_out == {"no gold answer": 3001}


def test_several_csv_files_have_columns_in_any_order_and_rows_may_end_early(tmp_path):
    (tmp_path / "a.csv").write_text('problem,answer,level\np,"1,000",2\nq,7\n')
    (tmp_path / "b.csv").write_text("answer,problem\nNA,r\n")
    assert [problem.answer for problem in table(tmp_path / "*.csv")] == ["1,000", "7", "NA"]


TORN = r"could not be loaded \(line %d of own\.jsonl is not JSON: %s.*, at character %d\); check"


@pytest.mark.parametrize(("name", "text", "words"), [
    ("own.csv", "problem,answer\n1,2,3\n", "line 2 has 3 cells for 2 columns"),
    ("own.csv", "problem,problem\n1,2\n", "two columns have the same name"),
    ("own.csv", 'problem,answer\n1,"2\n', "line 2: unexpected end of data"),
    ("own.csv", "problem,answer\n", "it has no rows"),
    ("own.jsonl", "[1, 2]\n", r"item 0 of own\.jsonl is not a JSON object with names"),
    ("own.jsonl", ROW % '"1"' + "[]\n", r"line 2 of own\.jsonl is not a JSON object with names"),
    ("own.jsonl", "\n" + ROW % '"1"' + '\n{"problem": \n', TORN % (4, "Expecting value", 13)),
    ("own.json", '[{"problem": "1"\n"answer": 2}]', TORN.replace("jsonl", "json") % (2, "Expecting", 1)),
    ("own.jsonl", "[" * 100_000, r"line 1 of own\.jsonl is nested too deep"),
    ("own.jsonl", ROW % '"\\ud800"', "half a character"),
    ("own", ROW % '"1"', "not a table of a known type"),
    ("own.parquet.gz", "x", "not a table of a known type"),
    ("own.xlsx", "PK", r"own\.xlsx is not a table of a known type; they are \.jsonl"),
    ("own.jsonl", "", r"own\.jsonl is empty$"),
    ("own.csv", "", r"own\.csv is empty$"),
    ("own.parquet", "", r"own\.parquet is empty$"),
])  # fmt: skip
def test_what_cannot_be_used_is_one_sentence(name, text, words, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words):
        table(tmp_path / name)


@pytest.mark.parametrize(("name", "text"), [
    ("own.jsonl", '{"problem": "caf\xe9", "answer": "1"}\n'), ("own.csv", "problem,answer\ncaf\xe9,1\n"),
])  # fmt: skip
def test_a_file_that_is_not_utf_8_is_named_with_the_byte(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=rf"{name} is not UTF-8 \(byte 1[79]\); save it as UTF-8"):
        table(tmp_path / name)


def test_a_folder_without_tables_is_refused_at_once(tmp_path):
    (tmp_path / "notes.md").touch()
    with pytest.raises(DataError, match=r"no file in it ends with \.jsonl"):
        table(tmp_path)


def test_a_name_with_brackets_is_no_pattern(tmp_path):
    path = tmp_path / "own[1].jsonl"
    path.write_text(ROW % '"2"')
    assert len(table(path)) == 1
