import pytest

from bapo_lightning.data.problems.countdown import countdown
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Completion, FinishReason, Problem, ScoreStatus

PROBLEM = Problem("0", "", "", "countdown", {"metadata": {"numbers": [6, 4, 50, 3], "target": 94}})


@pytest.mark.parametrize(("answer", "status"), [
    ("50*(6 - 4) - 3 - 3", "wrong"), ("(50-3)*(6-4)", "correct"), (" (50-3) * (6-4)\n", "correct"),
    ("94", "wrong"), ("(50-3)*2", "wrong"), ("50*6/3 - 4 - 2", "wrong"), ("(50-3)*(6-4)*1", "wrong"),
    ("(50-3)*(6-4) = 94", "unparsable"), ("(50-3", "unparsable"), ("50/(6-4-2)*3", "unparsable"),
    ("9**9**9", "unparsable"), ("__import__('os')", "unparsable"), ("x + 4", "unparsable"),
])  # fmt: skip
def test_each_number_is_used_once_and_the_value_is_exact(answer, status):
    (score,) = countdown([PROBLEM], [Completion(f"so <answer>{answer}</answer>", 3, FinishReason.STOP)])
    assert (score.status, score.value) == (ScoreStatus(status), status == "correct")


def test_an_answer_without_its_tag_and_a_problem_without_numbers():
    completion = Completion("(50-3)*(6-4)", 3, FinishReason.STOP)
    assert countdown([PROBLEM], [completion])[0].status is ScoreStatus.UNPARSABLE
    with pytest.raises(DataError, match=r"has no numbers and no target, .*write data=countdown"):
        countdown([Problem("7", "", "", "sums")], [completion])
