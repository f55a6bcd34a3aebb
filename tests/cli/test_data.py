"""Tables as a user has them: `make data` tells what is in them, and a run trains on a mixture of them."""

import json
import re
from collections import Counter

import pytest
from tests.commands import train_to_end
from tests.configuration.compositions import composed

from bapo_lightning.system.errors import BapoLightningError, ConfigError
from bapo_lightning.tiny_worlds.additions.task import addition_problems
from bapo_lightning.tools.commands.data import describe


def tell(plain):
    describe(plain, plain.pop("show", 1))


# Of conf/data/math_mixture.yaml: files that stand in for them.
SETS = {"dapo_math_17k": "long", "deepscaler": "short"}


@pytest.fixture
def files(tmp_path):
    """Sums for the tiny model in three files: 40 and 10 to train on, of which 3 also validate."""
    problems = addition_problems("train", 60)
    parts = {"long": problems[:40], "short": problems[40:50], "exam": problems[37:50:5] + problems[50:55]}
    for name, part in parts.items():
        rows = [json.dumps({"problem": problem.prompt, "answer": problem.answer}) for problem in part]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    return tmp_path


def overrides(files):
    return [
        "data=math_mixture", "data/prompt=plain",
        *(f"problem_set@data.train.sets.{name}=table" for name in SETS),
        *(f"data.train.sets.{name}.name={file}" for name, file in SETS.items()),
        *(f"data.train.sets.{name}.path={files}/{file}.jsonl" for name, file in SETS.items()),
        "data.train.weights={dapo_math_17k: 1, deepscaler: 3}", "problem_set@data.validation.aime24=table",
        f"data.validation.aime24.path={files}/exam.jsonl", "data.validation_samples.aime24=2",
        "~data.validation.aime25", "~data.validation_samples.aime25",
    ]  # fmt: skip


def test_what_would_stop_a_run_is_a_warning(files, capsys):
    (files / "long.jsonl").write_text('{"problem": "1+1=", "answer": "two"}\n')
    tell(composed(*overrides(files), "reward=last_number", "scale.max_new_tokens=900"))
    found = [line for line in capsys.readouterr().out.splitlines() if "train would stop" in line]
    assert "make 908 tokens, the model has" in found[0] and "needs a number" in found[1]


def test_the_account_lengths_prompts_and_removed_problems_are_printed(files, capsys):
    tell(composed(*overrides(files), "+show=1"))
    printed = capsys.readouterr().out
    assert printed.startswith(f"""\
math_mixture
train: 47 problems of the 50 read; left out: 3 overlap with aime24
  of them dapo_math_17k, 25% of the draws: 39 problems of the 40 read from {files}/long.jsonl
  of them deepscaler, 75% of the draws: 8 problems of the 10 read from {files}/short.jsonl
validation aime24: 8 problems from {files}/exam.jsonl
prompt tokens: median 6, 95 % up to 6, longest 6; limit 8

--- long/0, gold answer '{addition_problems("train", 1)[0].answer}'
{addition_problems("train", 1)[0].prompt}

--- removed: overlap with aime24: long/37, gold answer""")


def test_a_tokenizer_that_cannot_render_the_prompt_is_reported_and_the_messages_are_shown(files, capsys):
    tell(composed(*overrides(files), "data/prompt=qwen_math"))
    printed = capsys.readouterr().out
    assert "max_prompt_tokens=8 was not applied: data.prompt=ChatPrompt needs a chat template" in printed
    assert "system: Please reason step by step, and put your final answer within \\boxed{}.\nuser:" in printed


def own(files, *others):
    """A table of one's own under a prompt of two parts, which a rule chooses by the tokenizer."""
    template = "+data.prompt.plain.template='{problem}{problem}'"
    table = ["data=table", f"data.train.path={files}/long.jsonl", "data/prompt=auto", template]
    return [*table, "scale.max_prompt_tokens=20", *others]


def test_prompts_are_shown_as_the_model_gets_them(files, capsys):
    tell(composed(*own(files), "+show=1"))
    asked = addition_problems("train", 60)[1].prompt
    assert f"\n{asked}{asked}\n" in capsys.readouterr().out


def test_problems_that_a_validation_set_shares_with_the_training_set_are_counted(files, capsys):
    path = files / "again.jsonl"
    texts = (files / "long.jsonl").read_text().splitlines()[:5]
    path.write_text("\n".join(texts).replace('"problem": "', '"problem": " ') + "\n")
    mine = ["+problem_set@data.validation.mine=table", f"data.validation.mine.path={path}"]
    few = ["data.train.part=null", "scale.validation_problems=2"]  # of the set's five
    tell(composed(*own(files, *few, *mine)))
    said = capsys.readouterr().err
    assert "warning: 5 of the 5 problems of data.validation.mine are in data.train as well" in said
    tell(composed(*own(files)))
    assert "warning" not in capsys.readouterr().err


def test_a_run_says_at_once_that_no_answer_can_be_read_and_records_the_prompt(files):
    short = ["scale.max_new_tokens=2", "scale.overlong_buffer=1", "callbacks.validation.every=80"]
    shown = train_to_end(files / "run", 1, *own(files, *short))
    counts = re.findall(
        r"^warning: (held_out: )?(\d+) of (\d+) answers were cut at scale.max_new_tokens=2, and (\d+) of \3 "
        r"answers have no final answer that the reward reads: write a larger scale.max_new_tokens",
        shown,
        re.MULTILINE,
    )
    assert [bool(where) for where, *_ in counts] == [True, False]
    assert shown.index("held_out: ") < shown.index("update     1/")
    row = json.loads((files / "run" / "rollouts.jsonl").read_text().split("\n")[0])
    half = len(row["prompt"]) // 2
    assert row["prompt"][:half] == row["prompt"][half:] and row["prompt"].endswith("=")


@pytest.mark.parametrize(("change", "words"), [
    ("+show=some", "show=some must be a whole number"),
    ("+data.train.mapping.colum=a", "colum is not an option of .*; it takes problem, answer"),
    ("data.train.path=nowhere.jsonl", "gsm8k_train: path=nowhere.jsonl: there is no such file"),
    ("+data.validation_samples.aime=4", "aime=4 names no validation set; there are gsm8k_test"),
    ("+data.validation_samples.gsm8k_test=0", "gsm8k_test=0 must be a whole number of at least 1"),
])  # fmt: skip
def test_what_cannot_be_read_is_reported_before_anything_else(change, words):
    with pytest.raises(BapoLightningError, match=words):
        tell(composed("data=gsm8k", change))


def test_one_validation_set_without_a_name_gets_an_error_that_says_how_to_write_it():
    config = composed("data=gsm8k")
    config["data"]["validation"] = config["data"]["validation"]["gsm8k_test"]
    words = r"data.validation is one set, and must be a mapping of names to sets, as in val/<name>/avg@k"
    with pytest.raises(ConfigError, match=words):
        tell(config)


@pytest.mark.slow
def test_a_run_trains_on_a_mixture_and_a_longer_one_goes_on_with_the_draws_to_come(files):
    settings = [*overrides(files), "scale.validation_problems=8", "callbacks.validation.every=8"]
    assert "validation aime24: 8 problems" in train_to_end(files / "run", 1, *settings)
    train_to_end(files / "run", 3, *settings, "resume=auto")
    train_to_end(files / "whole", 3, *settings)
    whole, resumed = ((files / name / "ledger.jsonl").read_text() for name in ("whole", "run"))
    assert resumed == whole
    draws = [json.loads(line) for line in whole.splitlines()]
    assert Counter(draw["problem"].split("/")[0] for draw in draws) == {"short": 18, "long": 6}
    assert max(draw["epoch"] for draw in draws if draw["problem"].startswith("short")) == 2
    assert set(Counter((draw["epoch"], draw["problem"]) for draw in draws).values()) == {1}
    rows = [json.loads(line) for line in (files / "whole/metrics.jsonl").read_text().splitlines()]
    assert "val/aime24/avg@2" in rows[-1]
    manifest, summary = (json.loads((files / f"whole/{n}.json").read_text()) for n in ("manifest", "summary"))
    assert manifest["problems"]["train"]["removed"] == {"overlap with aime24": 3}
    assert manifest["problems"]["train"]["shares"] == {"dapo_math_17k": 0.25, "deepscaler": 0.75}
    assert summary["problems"] == manifest["problems"]
