"""Tables in the layouts of the field, written by the tests: GSM8K's, verl's, SkyWork's, MATH's,
OlympiadBench's.
"""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import huggingface_hub
import pytest
from hydra.utils import instantiate

from bapo_lightning.data.problems.columns import ColumnMapping
from bapo_lightning.data.problems.table import problem_table
from bapo_lightning.errors import DataError

FILE = Path(__file__).parent / "files" / "word_problems.jsonl"
GSM8K = {"problem": "question", "answer": "answer", "answer_form": "behind_marker"}
DAPO_WRAPPER = "Solve this. The last line is Answer: $Answer.\n\n{problem}\n\nRemember the line."


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch) -> None:
    """No test reads or leaves anything outside its folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "prepared")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def table(path=FILE, mapping=None, **options):
    return problem_table("sums", str(path), ColumnMapping(**(mapping or GSM8K)), **options)


def written(folder: Path, rows: list[dict], suffix: str = "parquet") -> Path:
    path = folder / f"rows.{suffix}"
    if suffix == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def verl_row(question: str, answer: str, index: int, **changes) -> dict:
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": question}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"index": index, "model_difficulty": {"R1-Qwen-1.5B": 16, "R1-Qwen-7B": index}},
        **changes,
    }


VERL = {"problem": "prompt", "answer": "reward_model.ground_truth", "source": "data_source"}


def test_rows_of_a_file_become_problems_with_the_gold_answer_behind_the_last_mark() -> None:
    loaded = table()
    assert [problem.answer for problem in loaded] == ["7", "3600", "-3"]
    assert loaded[1].prompt == "A car costs 1,200 and a van twice that. What do both cost?"
    assert [problem.id for problem in loaded] == ["sums/0", "sums/1", "sums/2"]
    assert {problem.source for problem in loaded} == {"sums"}
    assert (loaded.num_rows, loaded.left_out, loaded.origin) == (3, {}, str(FILE))


def test_a_limit_takes_the_first_rows_and_the_size_is_that_of_all() -> None:
    assert [problem.answer for problem in table(limit=2, size=3)] == ["7", "3600"]
    assert len(table(limit=9)) == 3


def test_another_size_than_the_declared_one_is_refused_unless_accepted() -> None:
    words = r"problem set sums: .*word_problems.jsonl has 3 rows, and 30 are declared.*any_size=true"
    with pytest.raises(DataError, match=words):
        table(size=30)
    assert len(table(size=30, any_size=True)) == 3


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv", "json"])
def test_other_formats_give_the_same_problems(tmp_path, suffix) -> None:
    rows, path = datasets.Dataset.from_json(str(FILE)), tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        rows.to_parquet(path)
    elif suffix == "json":
        path.write_text(json.dumps(rows.to_list()))
    else:
        rows.to_csv(path, sep="\t" if suffix == "tsv" else ",")
    assert list(table(path)) == list(table())


def test_folders_and_several_files_are_read(tmp_path) -> None:
    lines = FILE.read_text().splitlines(keepends=True)
    for number, part in enumerate([lines[:2], lines[2:]]):
        (tmp_path / f"train-{number}.jsonl").write_text("".join(part))
    assert list(table(tmp_path / "train-*.jsonl")) == list(table())
    assert list(table(tmp_path, files="train-*")) == list(table())
    datasets.Dataset.from_json(str(FILE)).save_to_disk(tmp_path / "saved")
    assert list(table(tmp_path / "saved")) == list(table())
    datasets.DatasetDict({"train": datasets.Dataset.from_json(str(FILE))}).save_to_disk(
        tmp_path / "saved_splits"
    )
    assert list(table(tmp_path / "saved_splits")) == list(table())


def test_a_file_of_verl_loads_unchanged(tmp_path) -> None:
    path = written(tmp_path, [verl_row("What is 1+1?", "2", 0), verl_row("What is 2+3?", "5", 1)])
    loaded = table(
        path,
        {
            **VERL,
            "difficulty": "extra_info.model_difficulty.R1-Qwen-1.5B",
            "id": "extra_info.index",
            "keep": ["ability"],
        },
    )
    assert [(problem.id, problem.prompt, problem.answer, problem.source) for problem in loaded] == [
        ("sums/0", "What is 1+1?", "2", "math_dapo"),
        ("sums/1", "What is 2+3?", "5", "math_dapo"),
    ]
    assert loaded[0].metadata == {"difficulty": 16.0, "ability": "MATH"}


def test_dapos_instruction_is_taken_off_and_its_repeats_are_merged_and_counted(tmp_path) -> None:
    questions = [DAPO_WRAPPER.replace("{problem}", f"What is {index}+1?") for index in range(3)]
    rows = [
        verl_row(question, str(index + 1), index)
        for _ in range(4)
        for index, question in enumerate(questions)
    ]
    loaded = table(
        written(tmp_path, rows), {**VERL, "wrapper": DAPO_WRAPPER + "\n"}, size=12, merge_repeats=True
    )
    assert [problem.prompt for problem in loaded] == ["What is 0+1?", "What is 1+1?", "What is 2+1?"]
    assert (loaded.num_rows, loaded.left_out) == (12, {"repeated row": 9})
    with pytest.raises(DataError, match=r"row 0 of .* cannot be used: no wrapper around the problem"):
        table(written(tmp_path, [verl_row("bare", "1", 0)]), {**VERL, "wrapper": DAPO_WRAPPER})


def test_skyworks_json_lists_of_answers_are_read_and_several_answers_are_counted(tmp_path) -> None:
    rows = [
        verl_row("a", '["\\\\frac{1}{2}"]', 0),
        verl_row("b", '["3"]', 1),
        verl_row("c", '["3", "4"]', 2),
        verl_row("d", "5", 3),
    ]
    loaded = table(written(tmp_path, rows), {**VERL, "answer_form": "json_list"}, unusable="leave_out")
    assert [problem.answer for problem in loaded] == ["\\frac{1}{2}", "3"]
    assert loaded.left_out == {"several gold answers": 1, "an answer that is no JSON list": 1}
    assert [problem.id for problem in loaded] == ["sums/0", "sums/1"]


def test_a_message_of_the_system_is_kept_for_the_prompt_and_a_conversation_is_no_problem(tmp_path) -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1+1?"}
    talk = [user, {"role": "assistant", "content": "2"}, user]
    rows = [verl_row("", "2", 0, prompt=[system, user]), verl_row("", "2", 1, prompt=talk)]
    (problem,) = table(written(tmp_path, rows), VERL, unusable="leave_out")
    assert (problem.prompt, problem.metadata) == ("What is 1+1?", {"messages": [system, user]})


def test_lists_of_answers_are_joined_only_when_asked(tmp_path) -> None:
    path = written(
        tmp_path,
        [{"question": "a", "final_answer": ["2"]}, {"question": "b", "final_answer": ["-1", "$\\sqrt{2}$"]}],
    )
    mapping = {"problem": "question", "answer": "final_answer"}
    assert [problem.answer for problem in table(path, {**mapping, "several_answers": "join"})] == [
        "2",
        "-1, $\\sqrt{2}$",
    ]
    with pytest.raises(
        DataError, match=r"row 1 of .* cannot be used: several gold answers; .*unusable=leave_out"
    ):
        table(path, mapping)
    assert table(path, {**mapping, "answer": "final_answer.0"})[1].answer == "-1"


def test_numbers_and_nothing_in_the_answer_column(tmp_path) -> None:
    path = written(
        tmp_path,
        [{"problem": "a", "answer": 27.0}, {"problem": "b", "answer": 2.5}, {"problem": "c", "answer": None}],
    )
    loaded = table(path, {"problem": "problem", "answer": "answer"}, unusable="leave_out")
    assert ([problem.answer for problem in loaded], loaded.left_out) == (["27", "2.5"], {"no gold answer": 1})


def test_what_hf_download_fetched_is_found_without_a_network(tmp_path) -> None:
    repository, commit = tmp_path / "hub" / "datasets--someone--sums", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    folder = repository / "snapshots" / commit / "main"
    folder.mkdir(parents=True)
    for split, rows in (("train", 3), ("test", 1)):
        (folder / f"{split}.jsonl").write_text("".join(FILE.read_text().splitlines(keepends=True)[:rows]))
    files = "".join(
        f"  - {{split: {split}, path: main/{split}.jsonl}}\n" for split in ("train", "test", "never_fetched")
    )
    (folder.parent / "README.md").write_text(
        f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n"
    )
    assert [problem.answer for problem in table("someone/sums", files="main/test.jsonl", split="test")] == [
        "7"
    ]
    assert [problem.id for problem in table("someone/sums", files="main/train.jsonl")] == [
        "sums/0",
        "sums/1",
        "sums/2",
    ]


@pytest.mark.parametrize(
    ("path", "mapping", "words"),
    [
        (
            "someone/absent",
            {},
            r"hf download --repo-type dataset someone/absent\nIt is then found, also offline, in .*hub",
        ),
        (FILE.with_name("absent.jsonl"), {}, "absent.jsonl: there is no such file"),
        (FILE.parent / "absent", {}, "absent: there is no such file or folder"),
        (
            FILE,
            {"problem": "text"},
            "mapping.problem=text, and .* has no such column; its columns are question, answer",
        ),
        (
            FILE,
            {"answer": "answer.value"},
            r"row 0 of .*jsonl lacks one of the mapping's fields \(question, answer.value\)",
        ),
        (FILE, {"id": "answer.id"}, "row 0 of .* lacks one of the mapping's fields"),
        (FILE, {"answer_marker": "=>"}, "row 0 of .*jsonl cannot be used: no => in the answer"),
        (FILE, {"answer_marker": "7"}, "row 0 of .* cannot be used: no gold answer"),
        (FILE, {"answer_form": "last_box"}, "row 0 of .* cannot be used: no box in the answer"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(path, mapping, words) -> None:
    with pytest.raises(DataError, match=words):
        table(path, {**GSM8K, **mapping})


def test_a_hub_set_of_which_a_part_is_enough_says_how_to_fetch_that_part() -> None:
    with pytest.raises(
        DataError,
        match=r"hf download --repo-type dataset someone/absent --revision v1 --include 'data/math-\*'",
    ):
        table("someone/absent", files="data/math-*", revision="v1")


def test_a_file_that_is_not_what_it_says_is_one_clear_error(tmp_path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": ')
    with pytest.raises(DataError, match=r"rows.jsonl could not be loaded .*check the file"):
        table(tmp_path / "rows.jsonl")


def test_a_line_that_is_no_json_is_counted_and_nothing_else_is_printed(tmp_path, capfd) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n' * 2 + '{"question":\n')
    with pytest.raises(DataError, match=r"could not be loaded \(JSON parse error: .* in row 2\); check"):
        table(tmp_path / "rows.jsonl")
    assert "Failed to load" not in capfd.readouterr().err


def test_ids_that_repeat_are_an_error(tmp_path) -> None:
    with pytest.raises(
        DataError,
        match=r"1 ids of .* stand for several rows, among them sums/math_dapo; write mapping.id=null",
    ):
        table(
            written(tmp_path, [verl_row("a", "1", 0), verl_row("b", "2", 1)]), {**VERL, "id": "data_source"}
        )


@pytest.mark.parametrize("wrapper", ["no place", "{problem} twice {problem}"])
def test_a_wrapper_shows_the_place_of_the_problem_once(wrapper) -> None:
    (text,) = ColumnMapping.problems({"problem": "a", "answer": "b", "wrapper": wrapper})
    assert text.startswith(f"wrapper={wrapper!r} must show once")
    assert list(ColumnMapping.problems({"problem": "a", "answer": "b", "wrapper": DAPO_WRAPPER})) == []
    assert list(ColumnMapping.problems({"problem": "a", "answer": "b"})) == []


def test_a_node_of_the_configuration_is_instantiated_with_its_mapping() -> None:
    module = "bapo_lightning.data.problems"
    node = {"_target_": f"{module}.table.problem_table", "name": "sums", "path": str(FILE)}
    node["mapping"] = {"_target_": f"{module}.columns.ColumnMapping", **GSM8K}
    assert list(instantiate(node, _convert_="all")) == list(table())
