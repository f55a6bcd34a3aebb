import multiprocessing
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from pydantic import ValidationError
from tests.commands import command_line

from bapo_lightning.extras.math import MathReward, score_answers
from bapo_lightning.extras.math.workers.pool import Verdict
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

CORRECT, WRONG = ScoreStatus.CORRECT, ScoreStatus.WRONG
PATIENCE = 60.0  # seconds for one answer: a loaded machine is no reason for another verdict


@pytest.fixture
def reward(make_reward):
    return make_reward(accept="any")


def verdict(reward, gold, text):
    return reward.score_texts([gold], [text])[0].status


PAIRS = [
    (r"\sqrt{8}", r"2\sqrt{2}", CORRECT), ("$x+1$", r"\boxed{1 + x}", CORRECT),
    (r"x^2-1", "(x-1)(x+1)", CORRECT), (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", CORRECT),
    ("x = 5", "5", CORRECT), ("5", "x = 5", CORRECT), ("(1, 2)", "(2, 1)", WRONG),
    ("1, 2", "2 and 1", CORRECT), (r"\{1,2\}", "2, 1", CORRECT), ("[0,9)", "(0,9)", WRONG),
    (r"[1,2)\cup(3,4]", r"(3,4] \cup [1,2)", CORRECT), (r"x \le 3", r"3 \ge x", CORRECT),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}", CORRECT),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 2 \\ 1 \end{bmatrix}", WRONG),
    (r"\pi", "3.14", WRONG), ("6m", "6", WRONG), (r"(-\infty, 3)", "x < 3", CORRECT),
    ("x < 3", r"(-\infty, 3)", CORRECT), ("[2, 5]", r"2 \le x < 5", WRONG), (r"2 \cdot 3!", "12", CORRECT),
    ("12", r"2 \cdot 3!", WRONG), ("204_5", "204", CORRECT), ("204_5", "204_6", WRONG),
    ("4", "banana", WRONG), (r"\text{Evelyn}", "Carla", WRONG), ("4", r"The answer is $\sqrt{16}$", CORRECT),
    ("5 x - 7 = 0", "7 - 5 x = 0", CORRECT),
]  # fmt: skip


def test_expressions_are_compared_as_mathematics_from_threads_at_once(reward):
    golds, texts, expected = (list(column) for column in zip(*PAIRS, strict=True))
    with ThreadPoolExecutor(4) as threads:
        for scores in threads.map(lambda _: reward.score_texts(golds, texts), range(4)):
            assert [score.status for score in scores] == expected


def judge_in_another_process(reward, connection):
    golds, texts, _ = (list(column) for column in zip(*PAIRS[:8], strict=True))
    connection.send(([score.status for score in reward.score_texts(golds, texts)], reward.worker_pids))
    reward.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_verdicts_are_the_same_in_a_subprocess_with_workers_of_its_own(reward, method):
    verdict(reward, "4", r"\sqrt{16}")
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=judge_in_another_process, args=(reward, theirs))
    process.start()
    statuses, pids = ours.recv()
    process.join()
    assert statuses == [status for _, _, status in PAIRS[:8]]
    assert set(pids).isdisjoint(reward.worker_pids)
    assert verdict(reward, "4", r"\sqrt{16}") is CORRECT


def test_a_response_without_a_marked_answer_is_unparsable_by_default():
    problem = Problem("1", "?", "42")
    texts = ["The answer is 42", "", r"\boxed{42}", "Answer: 42", "#### 43"]
    scores = MathReward()([problem] * 5, [Completion(text, 5, FinishReason.STOP) for text in texts])
    expected = [ScoreStatus.UNPARSABLE] * 2 + [CORRECT, CORRECT, WRONG]
    assert [score.status for score in scores] == expected
    assert [score.answer for score in scores] == ["", "", "42", "42", "43"]


def test_a_cut_response_has_no_answer_when_stopping_is_required():
    problem, cut = Problem("1", "?", "42"), Completion(r"\boxed{42}", 5, FinishReason.LENGTH)
    assert MathReward()([problem], [cut])[0].status is CORRECT
    assert MathReward(require_stop=True)([problem], [cut]) == [Score(0.0, ScoreStatus.UNPARSABLE)]


def test_numbers_start_no_process():
    reward = MathReward()
    scores = reward.score_texts(["42", "42"], [r"\boxed{42.0}", "Answer: 41"])
    assert [score.value for score in scores] == [1.0, 0.0]
    assert reward.worker_pids == []


def test_a_copy_starts_again_with_the_same_options():
    reward = MathReward(accept="any", require_stop=True, unevaluated="accept", batch_seconds=7, num_workers=3)
    copy = pickle.loads(pickle.dumps(reward))
    assert (copy.accept, copy.require_stop, copy.worker_pids) == ("any", True, [])
    assert (copy._pool.refuse_unevaluated, copy._pool.batch_seconds, copy._pool.num_workers) == (False, 7, 3)


def test_score_answers_takes_bare_and_marked_answers():
    golds = [r"\frac{1}{2}", "$x$", r"\boxed{4}", "#### 18", "7", "7"]
    answers = ["0.5", r"so \boxed{x}", "The answer is 4", "18", "The numbers 6 and then 7", ""]
    scores = score_answers(golds, answers, timeout_seconds=PATIENCE)
    assert [score.status for score in scores] == [CORRECT] * 5 + [ScoreStatus.UNPARSABLE]
    assert [score.value for score in scores] == [1.0] * 5 + [0.0]


def test_score_answers_keeps_its_workers_between_calls():
    before = children()
    for _ in range(3):
        assert score_answers(["4"], [r"\sqrt{16}"], timeout_seconds=PATIENCE)[0].status is CORRECT
    with pytest.raises(ValueError, match="timeout_seconds=0 leaves no time to judge"):
        score_answers(["4"], ["4"], timeout_seconds=0)
    assert len(children() - before) <= 1


def children():
    """Process ids of the servers that this process has."""
    name = "bapo_lightning.extras.math.workers.server"
    return {child.pid for child in psutil.Process().children() if name in command_line(child)}


def test_equal_answers_are_judged_once(monkeypatch):
    reward = MathReward(num_workers=2)
    asked = []

    def judge(pairs, timeout_seconds):
        asked.extend(pairs)
        return [Verdict(CORRECT if answer == r"\sqrt{16}" else ScoreStatus.TIMEOUT) for _, answer in pairs]

    monkeypatch.setattr(reward._pool, "judge", judge)
    texts = [r"\boxed{\sqrt{16}}", r"\boxed{e^{e^{e^e}}}", r"\boxed{4}"] * 64
    statuses = [score.status for score in reward.score_texts(["4"] * len(texts), texts)]
    assert statuses == [CORRECT, ScoreStatus.TIMEOUT, CORRECT] * 64
    assert asked == [("4", r"\sqrt{16}"), ("4", "e^{e^{e^e}}")]


def test_slow_answers_have_a_common_budget_and_quick_ones_do_not_wait_for_them(reward, pool, monkeypatch):
    monkeypatch.setattr(pool, "timeout_seconds", 30.0)
    monkeypatch.setattr(pool, "batch_seconds", 1.5)
    verdict(reward, "4", r"\boxed{\sqrt{17}}")
    parts = [f"({i},{i + 1})" for i in range(90)]
    unions = [r"\boxed{" + r"\cup".join(parts[start : start + 60]) + "}" for start in range(30)]
    start = time.monotonic()
    scores = reward.score_texts(["4"] * 32, [*unions, r"\boxed{\sqrt{16}}", r"\boxed{\sqrt{18}}"])
    taken = time.monotonic() - start
    assert [score.status for score in scores] == [ScoreStatus.TIMEOUT] * 30 + [CORRECT, WRONG]
    assert taken < 25.0  # 450 s if each had its deadline


def test_wrong_options_are_named_together():
    options = {"accept": "all", "unevaluated": False, "timeout_seconds": 0, "batch_seconds": -1}
    options |= {"num_workers": 0, "memory_megabytes": 1}
    with pytest.raises(ValidationError) as error:
        MathReward(**options)
    assert [found["loc"] for found in error.value.errors()] == [(name,) for name in options]
    assert "Input should be 'marked' or 'any'" in str(error.value)


def test_each_answer_needs_its_gold_answer():
    with pytest.raises(ValueError, match="got 1 gold answers and 2 answers"):
        score_answers(["1"], ["1", "2"])
