import asyncio
import math
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from bapo_lightning.configuration.targets import Target, target_problems
from bapo_lightning.rewards.environment_score import environment_score
from bapo_lightning.rewards.functions import FunctionRewards, is_reward_function
from bapo_lightning.rewards.scores import checked, judged
from bapo_lightning.system.errors import RewardError
from bapo_lightning.types import Completion, FinishReason, Problem, Reply, Score, ScoreStatus

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "tutorial.md").read_text()
PROBLEMS = [Problem("a", "2 + 3 =", "5", "sums", {"level": 1}), Problem("b", "4 + 5 =", "9", "sums")]
COMPLETIONS = [
    Completion(r"it is \boxed{5}", 4, FinishReason.STOP, token_ids=[7, 8]),
    Completion("eight", 1, FinishReason.LENGTH),
]


def right(completions, answer, **columns):
    return [float(gold in text) for gold, text in zip(answer, completions, strict=True)]


def penalty(num_tokens):
    return [-0.1 * count if count > 1 else None for count in num_tokens]


def never(**columns):
    return [None] * len(columns["completions"])


def test_the_functions_are_weighed_and_summed():
    scores = FunctionRewards([right, penalty], [2.0, 1.0], correct_from=1.5)(PROBLEMS, COMPLETIONS)
    assert scores == [
        Score(1.6, ScoreStatus.CORRECT, "5", (1.0, -0.4)),
        Score(0.0, ScoreStatus.WRONG, parts=(0.0, 0.0)),
    ]
    assert FunctionRewards([never])(PROBLEMS, COMPLETIONS) == [
        Score(0.0, ScoreStatus.FAILED, parts=(0.0,)),
        Score(0.0, ScoreStatus.FAILED, parts=(0.0,)),
    ]


def test_a_function_sees_every_column():
    seen = {}

    def look(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [0, 0]

    FunctionRewards([look])(PROBLEMS, COMPLETIONS)
    assert seen == {
        "prompts": ["2 + 3 =", "4 + 5 ="], "completions": [r"it is \boxed{5}", "eight"], "answer": ["5", "9"],
        "source": ["sums", "sums"], "problem_id": ["a", "b"], "num_tokens": [4, 1], "was_cut": [False, True],
        "completion_ids": [[7, 8], ()], "level": [1, None],
    }  # fmt: skip


@pytest.mark.parametrize(("function", "words"), [
    (lambda completions: [1.0], r"returned 1 values for 2 completions; return one each"),
    (lambda completions: ["good", 1], "returned 'good' for completion 0; return a number, or None"),
    (lambda completions: [1.0, float("nan")], "returned nan for completion 1"),
    (lambda completions: [1 / 0], "failed: ZeroDivisionError: division by zero .test_functions.py, line "),
    (lambda completions: None, "returned None for 2 completions; return a list of numbers"),
    (lambda completions: 0.5, r"returned 0\.5 for 2 completions"),
    (lambda completions: {"a": 1, "b": 2}, "returned {'a': 1, 'b': 2} for 2 completions"),
    (lambda completions: "01", "returned '01' for 2 completions"),
    (lambda completions: completions[0][0]["content"], "failed: TypeError: .* are texts here"),
    (lambda completions: completions[0].get("content"), "failed: AttributeError: .* are texts here"),
    (lambda log_metric, completions: [0, 0], "takes log_metric, .*TRL's trainer is not here"),
    (lambda prompts, labels: [0, 0], r"takes labels, .*mapping\.keep=\[labels\]"),
])  # fmt: skip
def test_what_is_no_number_per_completion_is_named(function, words):
    with pytest.raises(RewardError, match=rf"reward function {__name__}.<lambda> {words}"):
        FunctionRewards([function])(PROBLEMS, COMPLETIONS)


def test_no_value_at_all_is_said_once(capsys):
    reward = FunctionRewards([never, penalty])
    for _ in range(2):
        reward(PROBLEMS[:1], COMPLETIONS[1:])
    said = f"warning: {__name__}.never, {__name__}.penalty returned None for all 1 completions of a call"
    assert capsys.readouterr().err == f"{said}, which scores 0\n"


def test_the_functions_of_the_guide_by_name(tmp_path, monkeypatch):
    code = re.search(r"^```python\n(# rewards.py\n.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "my_numbers.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_numbers", raising=False)
    reward = FunctionRewards(["my_numbers.right", "my_numbers.brief"], [1, 0.5])
    assert [score.value for score in reward(PROBLEMS, COMPLETIONS)] == [1 + 14 / 32, 31 / 64]
    options = {"functions": ["my_numbers.rihgt", "my_numbers"], "weights": [1]}
    problems = list(FunctionRewards.problems(options))
    assert problems[0] == "weights has 1 values for 2 functions; write one for each"
    assert problems[1].startswith("functions: my_numbers.rihgt cannot be imported (")
    with pytest.raises(ValueError, match=r"functions=\[\] judges nothing"):
        FunctionRewards([])


def test_the_two_signatures_are_distinguished():
    assert is_reward_function(right) and is_reward_function(lambda completion_ids: [])
    assert not is_reward_function(FunctionRewards)
    assert not is_reward_function(lambda problems, completions: [])


def test_a_reward_that_returns_no_scores_gets_an_error_that_says_what_to_return():
    good = [Score(1.0, ScoreStatus.CORRECT)]
    assert checked(good, 1, "reward my.own") is good
    for returned, words in [
        ([0.5], "returned 0.5 for completion 0; return a bapo_lightning.types.Score, or write"),
        ([], "returned 0 scores for 1 completions; return a list of scores"),
        (None, "returned a NoneType for 1 completions"),
        ([Score(math.nan, ScoreStatus.WRONG)], "returned Score.value=nan,.* write a finite Python number"),
        ([Score(None, ScoreStatus.WRONG)], "returned Score.value=None"),
        ([Score(1.0, "correct")], "returned Score.value=1.0, status='correct'"),
        ([Score(1.0, ScoreStatus.CORRECT, 5)], "returned Score.*answer=5"),
    ]:
        with pytest.raises(RewardError, match=f"reward my.own {words}"):
            checked(returned, 1, "reward my.own")


@pytest.mark.parametrize(("scores", "options", "verdict"), [
    ([None, 1.0], {}, Score(1.0, ScoreStatus.CORRECT, "move")),
    ([0.625], {}, Score(0.625, ScoreStatus.WRONG, "move")),
    ([0.625], {"correct_from": 0.5}, Score(0.625, ScoreStatus.CORRECT, "move")),
    ([1.0, None], {}, Score(0.0, ScoreStatus.UNPARSABLE)),  # a limit ended it
    ([], {}, Score(0.0, ScoreStatus.UNPARSABLE)),
])  # fmt: skip
def test_a_conversation_is_scored_by_its_environment(scores, options, verdict):
    replies = tuple(Reply("", score=score) for score in scores)
    completion = Completion("move", 4, FinishReason.STOP, replies=replies)
    assert environment_score(PROBLEMS[:1], [completion], **options) == [verdict]


def test_a_function_becomes_a_reward_by_its_target():
    """The file that docs/rewards.md names as an example."""
    node = yaml.safe_load((ROOT / "conf/reward/last_number.yaml").read_text())
    texts = {"it is 5": FinishReason.STOP, "it is 6": FinishReason.STOP, "now 5": FinishReason.LENGTH}
    completions = [Completion(text, 4, finish) for text, finish in texts.items()]
    scores = Target({**node, "require_stop": True}).make()(PROBLEMS[:1] * 3, completions)
    assert [(score.value, score.status, score.answer) for score in scores] == [
        (1.0, ScoreStatus.CORRECT, "5"), (0.0, ScoreStatus.WRONG, "6"), (0.0, ScoreStatus.UNPARSABLE, ""),
    ]  # fmt: skip


async def awaited(completions, trainer_state):
    return [np.bool_(True), torch.ones(1, 1)]


def test_coroutines_numpy_bools_and_tensors_of_one_element_are_taken():
    assert [score.value for score in FunctionRewards([awaited])(PROBLEMS, COMPLETIONS)] == [1.0, 1.0]


ENDS = {
    "sys.exit()": "(SystemExit)",
    "sys.exit(3)": "(SystemExit: 3)",
    "assert False": "(AssertionError)",
    "import argparse; argparse.ArgumentParser().parse_args()": "(SystemExit: 2)",
    "raise ValueError": "(ValueError)",
    "import nowhere_at_all": "(ModuleNotFoundError: No module named 'nowhere_at_all')",
}


@pytest.mark.parametrize("line", ENDS)
def test_a_module_that_exits_or_fails_without_words_is_one_sentence(line, tmp_path, monkeypatch):
    (tmp_path / "ends_itself.py").write_text(f"import sys\ndef r(completions): ...\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", "--unlike"])
    name = "ends_itself.r"
    (problem,) = FunctionRewards.problems({"functions": [name], "weights": None})
    assert problem == f"functions: {name} cannot be imported {ENDS[line]}"
    (problem,) = target_problems({"_target_": name}, "reward")
    assert problem.startswith(f"reward._target_={name} cannot be imported")
    assert "nowhere" in line or problem.endswith(ENDS[line])


def leaves(completions):
    sys.exit()


async def leaves_later(completions):
    sys.exit(3)


async def leaves_in_a_task(completions):
    await asyncio.create_task(leaves_later(completions))


@pytest.mark.parametrize("function", [leaves, leaves_later, leaves_in_a_task])
def test_an_exit_in_a_call_is_an_error_and_the_next_call_works(function):
    with pytest.raises(RewardError, match=rf"{function.__name__} failed: SystemExit.*\(test_functions.py"):
        FunctionRewards([function])(PROBLEMS, COMPLETIONS)
    with pytest.raises(RewardError, match=r"reward .*lambda> failed: SystemExit \(test_functions.py"):
        judged(lambda problems, completions: leaves(completions), PROBLEMS, COMPLETIONS)
    assert FunctionRewards([awaited])(PROBLEMS, COMPLETIONS)[0].value == 1.0


class Client:
    """A client of a server, which belongs to the loop in which it was made."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()

    async def ask(self, count):
        assert asyncio.get_running_loop() is self.loop
        return await asyncio.wait_for(asyncio.sleep(0, [1.0] * count), 60)


@cache
def client():
    return Client()


async def of_a_client(completions):
    return await client().ask(len(completions))


def test_asynchronous_rewards_share_a_client_and_work_in_a_running_loop():
    client.cache_clear()

    async def notebook():
        return [FunctionRewards([of_a_client])(PROBLEMS, COMPLETIONS) for _ in range(2)]

    first, second = asyncio.run(notebook())
    with ThreadPoolExecutor() as threads:  # validation runs in another thread than the sampling
        third = threads.submit(FunctionRewards([of_a_client]), PROBLEMS, COMPLETIONS).result()
    assert [score.value for score in first + second + third] == [1.0] * 6


def greedy(completions, answer, rubric, completion_ids):
    for column in (completions, answer, completion_ids):
        column.clear()
    return [float(item.pop("points")) for item in rubric]


def test_functions_share_neither_lists_nor_columns_nor_the_problems():
    problems = [Problem("a", "?", "5", metadata={"rubric": {"points": 1}})] * 2
    before = deepcopy(problems[0].metadata)
    scores = FunctionRewards([greedy, right, greedy])(problems, COMPLETIONS)
    assert [score.parts for score in scores] == [(1.0, 1.0, 1.0), (1.0, 0.0, 1.0)]

    def pops(problems, completions):
        problems[0].metadata["rubric"].clear()
        return [Score(0.0, ScoreStatus.WRONG)] * len(completions)

    judged(pops, problems, COMPLETIONS)
    assert problems[0].metadata == before
