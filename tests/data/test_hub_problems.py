"""Three rows in the shape of GSM8K, as a file, as a folder and as what `hf download` leaves behind."""

from __future__ import annotations

from pathlib import Path

import datasets
import huggingface_hub
import pytest

from bapo_lightning.data.hub_problems import hub_problems
from bapo_lightning.errors import DataError

FILE = Path(__file__).parent / "files" / "word_problems.jsonl"


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch) -> None:
    """No test reads or leaves anything outside its folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "prepared")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def problems(path: object = FILE, **changes):
    options = {"split": "train", "problem_column": "question", "answer_column": "answer", "answer_marker": "####", **changes}
    return hub_problems(str(path), **options)


def test_rows_of_a_file_become_problems_with_the_gold_answer_behind_the_last_mark() -> None:
    loaded = problems()
    assert [problem.answer for problem in loaded] == ["7", "3600", "-3"]
    assert loaded[1].prompt == "A car costs 1,200 and a van twice that. What do both cost?"
    assert [problem.id for problem in loaded] == [f"{FILE}/train/{row}" for row in range(3)]
    assert {problem.source for problem in loaded} == {str(FILE)}


def test_a_limit_takes_the_first_rows() -> None:
    assert [problem.answer for problem in problems(limit=2)] == ["7", "3600"]
    assert len(problems(limit=9)) == 3


def test_without_a_mark_the_whole_column_is_the_answer() -> None:
    assert [problem.answer for problem in problems(answer_column="question", answer_marker=None, limit=2)] == [
        "Ann has 3 pens and buys 4. How many has she?",
        "A car costs 1200 and a van twice that. What do both cost?",
    ]


def test_a_parquet_file_gives_the_same_problems(tmp_path) -> None:
    datasets.Dataset.from_json(str(FILE)).to_parquet(tmp_path / "rows.parquet")
    assert [problem.answer for problem in problems(tmp_path / "rows.parquet")] == ["7", "3600", "-3"]


def test_what_hf_download_fetched_is_found_without_a_network(tmp_path) -> None:
    repository, commit = tmp_path / "hub" / "datasets--someone--sums", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    folder = repository / "snapshots" / commit / "main"
    folder.mkdir(parents=True)
    for split, rows in (("train", 3), ("test", 1)):
        (folder / f"{split}.jsonl").write_text("".join(FILE.read_text().splitlines(keepends=True)[:rows]))
    files = "".join(f"  - {{split: {split}, path: main/{split}.jsonl}}\n" for split in ("train", "test"))
    (folder.parent / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n")
    assert [problem.answer for problem in problems("someone/sums", name="main", split="test")] == ["7"]
    assert [problem.id for problem in problems("someone/sums", name="main")][2] == "someone/sums/train/2"


@pytest.mark.parametrize(
    ("path", "changes", "words"),
    [
        ("openai/gsm8k", {"name": "main"}, "hf download --repo-type dataset openai/gsm8k"),
        (FILE.with_name("absent.jsonl"), {}, "absent.jsonl.*check the file"),
        (FILE, {"problem_column": "text"}, "has no column text; its columns are question, answer"),
        (FILE, {"answer_marker": "=>"}, "row 0 of .*, split train, has no answer_marker '=>'"),
        (FILE, {"answer_marker": "7"}, "row 0 of .* has an empty gold answer"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(path, changes, words) -> None:
    with pytest.raises(DataError, match=words):
        problems(path, **changes)


def test_a_file_that_is_not_what_it_says_is_one_clear_error(tmp_path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": ')
    with pytest.raises(DataError, match=r"rows.jsonl .*could not be loaded .*check the file"):
        problems(tmp_path / "rows.jsonl")
