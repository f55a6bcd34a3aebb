"""Tables in the layouts of the field: GSM8K's, verl's, SkyWork's, MATH's, OlympiadBench's."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import pytest
from tests import commands

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.targets import Target
from bapo_lightning.data.problems.columns import ColumnMapping
from bapo_lightning.data.problems.table import problem_table
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem

FILE = Path(__file__).parent / "files" / "word_problems.jsonl"
GSM8K = {"problem": "question", "answer": "answer", "answer_form": "behind_marker"}
DAPO_WRAPPER = "Solve this. The last line is Answer: $Answer.\n\n{problem}\n\nRemember the line."


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    """No test reads or leaves anything outside its folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "prepared")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def table(path=FILE, mapping=None, **options):
    return problem_table("sums", str(path), ColumnMapping(**(mapping or GSM8K)), **options)


def written(folder, rows, suffix="parquet"):
    path = folder / f"rows.{suffix}"
    if suffix == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def verl_row(question, answer, index, **changes):
    return {
        "data_source": "math_dapo", "prompt": [{"role": "user", "content": question}], "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"index": index, "model_difficulty": {"R1-Qwen-1.5B": 16, "R1-Qwen-7B": index}},
        **changes,
    }  # fmt: skip


VERL = {"problem": "prompt", "answer": "reward_model.ground_truth", "source": "data_source"}


def test_rows_of_a_file_become_problems_with_the_gold_answer_behind_the_last_mark():
    loaded = table()
    assert [problem.answer for problem in loaded] == ["7", "3600", "-3"]
    assert loaded[1].prompt == "A car costs 1,200 and a van twice that. What do both cost?"
    assert [problem.id for problem in loaded] == ["sums/0", "sums/1", "sums/2"]
    assert {problem.source for problem in loaded} == {"sums"}
    assert (loaded.num_rows, loaded.left_out, loaded.origin) == (3, {}, str(FILE))
    assert [problem.answer for problem in table(limit=2, size=3)] == ["7", "3600"]  # the size is that of all


def test_another_size_than_the_declared_one_is_refused_unless_accepted():
    words = r"problem set sums: .*word_problems.jsonl has 3 rows, and 30 are declared.*any_size=true"
    with pytest.raises(DataError, match=words):
        table(size=30)
    assert len(table(size=30, any_size=True)) == 3


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv", "json"])
def test_other_formats_give_the_same_problems(tmp_path, suffix):
    rows, path = datasets.Dataset.from_json(str(FILE)), tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        rows.to_parquet(path)
    elif suffix == "json":
        path.write_text(json.dumps(rows.to_list()))
    else:
        rows.to_csv(path, sep="\t" if suffix == "tsv" else ",")
    assert list(table(path)) == list(table())


def test_folders_and_several_files_are_read(tmp_path):
    lines = FILE.read_text().splitlines(keepends=True)
    for number, part in enumerate([lines[:2], lines[2:]]):
        (tmp_path / f"train-{number}.jsonl").write_text("".join(part))
    assert list(table(tmp_path / "train-*.jsonl")) == list(table())
    assert list(table(tmp_path, files="train-*")) == list(table())
    datasets.Dataset.from_json(str(FILE)).save_to_disk(tmp_path / "saved")
    assert list(table(tmp_path / "saved")) == list(table())
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_json(str(FILE))})
    splits.save_to_disk(tmp_path / "saved_splits")
    assert list(table(tmp_path / "saved_splits")) == list(table())


def test_a_file_of_verl_loads_unchanged(tmp_path):
    path = written(tmp_path, [verl_row("What is 1+1?", "2", 0), verl_row("What is 2+3?", "5", 1)])
    difficulty = "extra_info.model_difficulty.R1-Qwen-1.5B"
    mapping = {**VERL, "difficulty": difficulty, "id": "extra_info.index", "keep": ["ability"]}
    loaded = table(path, mapping)
    assert [(problem.id, problem.prompt, problem.answer, problem.source) for problem in loaded] == [
        ("sums/0", "What is 1+1?", "2", "math_dapo"),
        ("sums/1", "What is 2+3?", "5", "math_dapo"),
    ]
    assert loaded[0].metadata == {"difficulty": 16.0, "ability": "MATH"}
    words = r"1 ids of .* belong to several rows, among them sums/math_dapo; write"
    with pytest.raises(DataError, match=words):
        table(path, {**VERL, "id": "data_source"})


def test_dapos_instruction_is_taken_off_and_its_repeats_are_merged_and_counted(tmp_path):
    questions = [DAPO_WRAPPER.replace("{problem}", f"What is {index}+1?") for index in range(3)]
    rows = [verl_row(question, str(index + 1), index) for index, question in enumerate(questions)] * 4
    mapping = {**VERL, "wrapper": DAPO_WRAPPER + "\n"}
    loaded = table(written(tmp_path, rows), mapping, size=12, merge_repeats=True)
    assert [problem.prompt for problem in loaded] == ["What is 0+1?", "What is 1+1?", "What is 2+1?"]
    assert (loaded.num_rows, loaded.left_out) == (12, {"repeated row": 9})
    with pytest.raises(DataError, match=r"row 0 of .* cannot be used: no wrapper around the problem"):
        table(written(tmp_path, [verl_row("bare", "1", 0)]), {**VERL, "wrapper": DAPO_WRAPPER})


def test_skyworks_json_lists_of_answers_are_read_and_several_answers_are_counted(tmp_path):
    cells = ['["\\\\frac{1}{2}"]', '["3"]', '["3", "4"]', "5"]
    rows = [verl_row("a", cell, index) for index, cell in enumerate(cells)]
    loaded = table(written(tmp_path, rows), {**VERL, "answer_form": "json_list"}, unusable="leave_out")
    assert [problem.answer for problem in loaded] == ["\\frac{1}{2}", "3"]
    assert loaded.left_out == {"several gold answers": 1, "an answer that is not a JSON list": 1}
    assert [problem.id for problem in loaded] == ["sums/0", "sums/1"]


def test_a_message_of_the_system_is_kept_for_the_prompt_and_a_conversation_is_no_problem(tmp_path):
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1+1?"}
    talk = [user, {"role": "assistant", "content": "2"}, user]
    rows = [verl_row("", "2", 0, prompt=[system, user]), verl_row("", "2", 1, prompt=talk)]
    (problem,) = table(written(tmp_path, rows), VERL, unusable="leave_out")
    assert (problem.prompt, problem.metadata) == ("What is 1+1?", {"messages": [system, user]})


def test_lists_of_answers_are_joined_only_when_asked(tmp_path):
    rows = [{"question": "a", "final": ["2"]}, {"question": "b", "final": ["-1", "$\\sqrt{2}$"]}]
    path, mapping = written(tmp_path, rows), {"problem": "question", "answer": "final"}
    joined = table(path, {**mapping, "several_answers": "join"})
    assert [problem.answer for problem in joined] == ["2", "-1, $\\sqrt{2}$"]
    with pytest.raises(DataError, match=r"row 1 of .* be used: several gold answers; .*unusable=leave_out"):
        table(path, mapping)
    assert table(path, {**mapping, "answer": "final.0"})[1].answer == "-1"


def test_what_hf_download_fetched_is_found_without_a_network(tmp_path):
    repository, commit = tmp_path / "hub" / "datasets--someone--sums", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    folder = repository / "snapshots" / commit / "main"
    folder.mkdir(parents=True)
    for split, rows in (("train", 3), ("test", 1)):
        (folder / f"{split}.jsonl").write_text("".join(FILE.read_text().splitlines(keepends=True)[:rows]))
    splits = ("train", "test", "never_fetched")
    files = "".join(f"  - {{split: {split}, path: main/{split}.jsonl}}\n" for split in splits)
    card = f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n"
    (folder.parent / "README.md").write_text(card)
    tested = table("someone/sums", files="main/test.jsonl", split="test")
    assert [problem.answer for problem in tested] == ["7"]
    assert list(table("someone/sums", files="main/train.jsonl")) == list(table())


@pytest.mark.parametrize(("path", "mapping", "words"), [
    ("someone/absent", {}, r"hf download .* someone/absent\nIt is then found, also offline, in .*hub"),
    (FILE.with_name("absent.jsonl"), {}, "absent.jsonl: there is no such file"),
    (FILE.parent / "absent", {}, "absent: there is no such file or folder"),
    (FILE, {"problem": "text"}, "problem=text, and .* no such column; its columns are question, answer"),
    (FILE, {"answer": "answer.value"},
     r"row 0 of .* does not have .* mapping's fields \(question, answer.value\)"),
    (FILE, {"answer_marker": "=>"}, "row 0 of .*jsonl cannot be used: no => in the answer"),
    (FILE, {"answer_marker": "7"}, "row 0 of .* cannot be used: no gold answer"),
    (FILE, {"answer_form": "last_box"}, "row 0 of .* cannot be used: no box in the answer"),
])  # fmt: skip
def test_what_cannot_be_read_is_one_clear_error(path, mapping, words):
    with pytest.raises(DataError, match=words):
        table(path, {**GSM8K, **mapping})


def test_a_hub_set_of_which_a_part_is_enough_says_how_to_fetch_that_part():
    with pytest.raises(DataError, match=r"someone/absent --revision v1 --include 'data/math-\*'"):
        table("someone/absent", files="data/math-*", revision="v1")


def test_a_line_that_is_no_json_is_counted_and_nothing_else_is_printed(tmp_path, capfd):
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n' * 2 + '{"question":\n')
    words = r"could not be loaded \(line 3 of rows\.jsonl is not JSON: .*\); check"
    with pytest.raises(DataError, match=words):
        table(tmp_path / "rows.jsonl")
    assert "Failed to load" not in capfd.readouterr().err


@pytest.mark.parametrize("wrapper", ["no place", "{problem} twice {problem}"])
def test_a_wrapper_shows_the_place_of_the_problem_once(wrapper):
    (text,) = ColumnMapping.problems({"problem": "a", "answer": "b", "wrapper": wrapper})
    assert text.startswith(f"wrapper={wrapper!r} must contain ")
    assert list(ColumnMapping.problems({"problem": "a", "answer": "b", "wrapper": DAPO_WRAPPER})) == []
    assert list(ColumnMapping.problems({"problem": "a", "answer": "b"})) == []


@pytest.fixture
def mine(tmp_path):
    rows = [{"problem": f"{10 + n % 80}+{10 + n // 8}=", "answer": str(n)} for n in range(400)]
    return written(tmp_path, rows + rows[:40], "jsonl")


def parts(mine, *overrides):
    data = compose_run(["experiment=additions", "data=table", f"data.train.path={mine}", *overrides])["data"]
    return Target(data["train"]).make(), Target(data["validation"]["held_out"]).make()


def test_of_a_table_of_ones_own_a_tenth_is_held_out_and_equal_problems_are_on_one_side(mine):
    train, held_out = parts(mine)
    assert len(train) + len(held_out) == 440 and 20 < len(held_out) < 70
    assert {problem.prompt for problem in train}.isdisjoint(problem.prompt for problem in held_out)
    assert train.left_out == {"in the other part": len(held_out)}


def test_the_parts_follow_the_options_of_the_training_set(mine):
    train, held_out = parts(mine, "data.train.validation_share=0.5", "data.train.limit=100")
    assert len(train) + len(held_out) == 100 and 30 < len(held_out) < 70
    with pytest.raises(DataError, match=r"none of the 2 problems of .* belongs to its part 'validation'"):
        parts(mine, "data.train.limit=2", "data.train.validation_share=0.001")


def test_a_small_table_is_refused_with_a_share_that_divides_it(tmp_path):
    rows = [{"problem": f"{n}+{n}=", "answer": str(n)} for n in range(30)]
    mine = written(tmp_path, rows, "jsonl")
    with pytest.raises(DataError, match=r"write data\.train\.validation_share=0\.\d+, or use") as refused:
        parts(mine, "data.train.validation_share=0.0001")
    share = re.search(r"validation_share=(0\.\d+), or", str(refused.value))[1]
    train, held_out = parts(mine, f"data.train.validation_share={share}")
    assert len(train) + len(held_out) == 30 and held_out and train


def test_the_prompt_is_a_chat_where_the_model_has_a_format_for_it():
    rule = Target(compose_run(["data=table", "data.train.path=mine.jsonl"])["data"]["prompt"]).make()

    def encode(text, add_special_tokens=True):
        return list(text.encode())

    def apply_chat_template(messages, **options):
        return list(messages[0]["content"].encode())

    problem = Problem("mine/0", "What is 2 + 3?", "5")
    tokenizer = SimpleNamespace(
        encode=encode, apply_chat_template=apply_chat_template, chat_template=None, bos_token_id=None,
        name_or_path="",
    )  # fmt: skip
    tokenizer.get_chat_template = lambda template: template or tokenizer.chat_template
    assert bytes(rule(tokenizer, problem).tolist()) == b"What is 2 + 3?"
    tokenizer.chat_template = "..."
    assert bytes(rule(tokenizer, problem).tolist()).endswith(rb"put your final answer within \boxed{}.")


@pytest.mark.slow
def test_one_line_trains_on_a_table_of_ones_own(mine, tmp_path):
    done = commands.train("data=table", f"data.train.path={mine}", f"run_folder={tmp_path / 'run'}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held out before training: held_out/avg@4" in done.stdout
