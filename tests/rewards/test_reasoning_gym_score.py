import pytest

from bapo_lightning.rewards.reasoning_gym_score import reasoning_gym_score, tagged_answer
from bapo_lightning.system.errors import ConfigError, DataError
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

UNPARSABLE = Score(0.0, ScoreStatus.UNPARSABLE)


def problem(answer, task="chain_sum", **metadata):
    return Problem(f"{task}/0/0", "", answer, task, {"question": "", "answer": answer, "metadata": metadata})


def score(one, text, **options):
    return reasoning_gym_score([one], [Completion(text, 3, FinishReason.STOP)], **options)[0]


@pytest.mark.parametrize(("gold", "text", "value", "status"), [
    ("7", "3 + 4 = 7", 1.0, ScoreStatus.CORRECT), ("7", "3 + 4 = 7.0.", 1.0, ScoreStatus.CORRECT),
    ("1234", "1,234", 1.0, ScoreStatus.CORRECT), ("-4", "0 - 4 = -4", 1.0, ScoreStatus.CORRECT),
    ("-4", "0 - 4 = 4", 0.0, ScoreStatus.WRONG), ("7", "8", 0.0, ScoreStatus.WRONG),
    ("7", "17", 0.5, ScoreStatus.WRONG), ("7", "-7", 0.5, ScoreStatus.WRONG),
    ("7", "none", 0.0, ScoreStatus.UNPARSABLE), ("7", "", 0.0, ScoreStatus.UNPARSABLE),
])  # fmt: skip
def test_chain_sum_gives_part_of_the_credit_to_an_answer_that_contains_the_right_one(
    gold, text, value, status
):
    verdict = score(problem(gold), text)
    assert (verdict.value, verdict.status) == (value, status)


@pytest.mark.parametrize(("extract", "text", "value"), [
    ("answer_tag", "<answer>5</answer> no, <answer> 7 </answer> of 9", 1.0),
    ("answer_tag", "7 </answer>", None), ("answer_tag", "<answer> </answer>", None),
    ("answer_tag", "<answer>7", None), ("all", " 7\n", 1.0), ("all", "it is 7", 1 / 7),
    ("all", " \n", None),
])  # fmt: skip
def test_what_of_a_response_is_its_answer(extract, text, value):
    verdict = score(problem("7"), text, extract=extract)
    status = {None: ScoreStatus.UNPARSABLE, 1.0: ScoreStatus.CORRECT}.get(value, ScoreStatus.WRONG)
    assert (verdict.value, verdict.status) == (value or 0.0, status)


def test_equal_numbers_are_one_vote_and_other_answers_vote_as_they_stand():
    assert [score(problem("7"), text).answer for text in ("so 7.0", "007", "none")] == ["7", "7", ""]
    assert score(problem("7"), " it is 7\n", extract="all").answer == "it is 7"


def test_the_last_closed_tag_counts():
    assert tagged_answer("<answer>1</answer><answer>2") == "1"
    assert tagged_answer("<answer>1</answer></answer>") == "1"
    assert tagged_answer("<answer>" * 50_000 + "</answer>" * 50_000) is None


def test_a_scorer_that_fails_on_an_answer_makes_it_unparsable():
    incomplete = problem("7", "sudoku")  # its scorer looks for a solution in the entry: KeyError
    assert score(incomplete, "7") == UNPARSABLE
    assert score(problem("7", "sudoku", solution=[[7]]), "7") == Score(1.0, ScoreStatus.CORRECT, "7")


@pytest.mark.parametrize(
    "task", ["spiral_matrix", "string_insertion", "n_queens", "countdown", "polynomial_multiplication"]
)
def test_no_text_of_the_policy_reaches_a_scorer_that_would_run_it(task, tmp_path):
    trap = f"[open({str(tmp_path / 'run')!r}, 'w')]"
    with pytest.raises(ConfigError, match=f"the scorer of {task}, which runs it as Python code"):
        score(problem("1", task), trap, extract="all")
    score(problem("1", task), trap + " 1", extract="last_number")
    assert not (tmp_path / "run").exists()


def test_a_scorer_that_only_runs_the_gold_answer_is_used():
    numbers = problem("['1', '2']", "number_sorting", direction="ascending")
    assert score(numbers, "<answer>['1', '2']</answer>", extract="answer_tag").status is ScoreStatus.CORRECT


def test_options_and_problems_that_do_not_fit_are_clear_errors():
    words = r"reward\.extract=first is none of its values; write last_number, answer_tag, all"
    with pytest.raises(ConfigError, match=words):
        score(problem("7"), "7", extract="first")
    with pytest.raises(DataError, match=r"problem a does not come from reasoning-gym.*reward=last_number"):
        score(Problem("a", "", "7"), "7")
