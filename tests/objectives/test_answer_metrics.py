"""Metrics of sets against enumeration, and over real gloo ranks with uneven shares of the problems."""

import random
from fractions import Fraction
from functools import partial
from itertools import combinations

import pytest
import torch
import torch.distributed as dist
from tests.commands import start_ranks

from bapo_lightning.objectives import outcome as outcomes
from bapo_lightning.objectives.answer_metrics import ProblemMean, evaluation_metrics
from bapo_lightning.objectives.outcome import maj_at_k, majority, pass_at_k, pass_sizes, passed
from bapo_lightning.system.ranks.launch import free_port
from bapo_lightning.types import ScoreStatus

CORRECT, WRONG, UNPARSABLE, TIMEOUT = (
    ScoreStatus.CORRECT, ScoreStatus.WRONG, ScoreStatus.UNPARSABLE, ScoreStatus.TIMEOUT,
)  # fmt: skip


def outcome(status, answer="", num_tokens=10, is_cut=False):
    return outcomes.SampleOutcome(status, answer, num_tokens, is_cut)


def random_problems(num_problems, k, seed=0):
    """Answers "0" to "3", of which "0" is right, or none."""
    generator = random.Random(seed)
    made = []
    for _ in range(num_problems):
        answers = [generator.choice(["0", "0", "1", "2", "3", ""]) for _ in range(k)]
        statuses = [
            CORRECT if answer == "0" else WRONG if answer else generator.choice([UNPARSABLE, TIMEOUT])
            for answer in answers
        ]
        pairs = zip(statuses, answers, strict=True)
        made.append([outcome(*pair, generator.randint(1, 99), generator.random() < 0.3) for pair in pairs])
    return made


def enumerated(problems, k):
    """Every metric by counting subsets and ballots one by one, in exact arithmetic."""
    samples = [sample for problem in problems for sample in problem]

    def share(hits):
        return Fraction(sum(hits), len(samples))

    def passed(problem, size):
        hits = [any(s.status is CORRECT for s in subset) for subset in combinations(problem, size)]
        return Fraction(sum(hits), len(hits))

    def majority(problem):
        ballots = [sample.answer for sample in problem if sample.answer]
        most = max((ballots.count(answer) for answer in ballots), default=0)
        winners = {answer for answer in ballots if ballots.count(answer) == most}
        return Fraction("0" in winners, max(len(winners), 1))

    passes = {size: sum(passed(problem, size) for problem in problems) for size in pass_sizes(k)}
    return {f"pass@{size}": hits / len(problems) for size, hits in passes.items()} | {
        f"avg@{k}": share(sample.status is CORRECT for sample in samples),
        f"maj@{k}": sum(majority(problem) for problem in problems) / len(problems),
        "right_and_finished": share(sample.status is CORRECT and not sample.is_cut for sample in samples),
        "response_length": share(sample.num_tokens for sample in samples),
        "cut_fraction": share(sample.is_cut for sample in samples),
        "unparsable_fraction": share(sample.status is UNPARSABLE for sample in samples),
        "timeout_fraction": share(sample.status is TIMEOUT for sample in samples),
        "failed_fraction": share(sample.status is ScoreStatus.FAILED for sample in samples),
    }


@pytest.mark.parametrize(("num_problems", "k"), [(1, 1), (7, 2), (5, 6), (40, 8)])
def test_every_metric_is_what_counting_one_by_one_gives(num_problems, k):
    problems = random_problems(num_problems, k, seed=k)
    metrics = evaluation_metrics(k)
    metrics.update(problems)
    expected = enumerated(problems, k)
    found = {name: float(value) for name, value in metrics.compute().items()}
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-12)
    assert {name for problem in problems for name in outcomes.problem_values(problem)} == set(expected)


def test_a_worked_example():
    problems = [
        [
            outcome(CORRECT, "7", 10), outcome(WRONG, "8", 20), outcome(WRONG, "8", 30),
            outcome(UNPARSABLE, "", 40, True),
        ],
        [
            outcome(CORRECT, "1", 10), outcome(CORRECT, "1", 10, True), outcome(WRONG, "2", 10),
            outcome(TIMEOUT, "2", 10),
        ],
    ]  # fmt: skip
    metrics = evaluation_metrics(4)
    metrics.update(problems)
    assert {name: float(value) for name, value in metrics.compute().items()} == pytest.approx({
        "avg@4": 3 / 8, "pass@2": (1 / 2 + 5 / 6) / 2, "pass@4": 1.0, "maj@4": (0 + 1 / 2) / 2,
        "right_and_finished": 2 / 8, "response_length": 17.5, "cut_fraction": 2 / 8,
        "unparsable_fraction": 1 / 8, "timeout_fraction": 1 / 8, "failed_fraction": 0.0,
    })  # fmt: skip


def test_pass_is_reported_at_powers_of_two_and_at_k():
    assert [pass_sizes(k) for k in (1, 2, 3, 12, 16)] == [[1], [2], [2, 3], [2, 4, 8, 12], [2, 4, 8, 16]]


def test_without_answers_there_is_no_majority_but_no_wrong_one_either():
    metric = ProblemMean(majority)
    metric.update([[outcome(CORRECT, "7"), outcome(WRONG, "")], [outcome(CORRECT, "7")]])
    assert torch.isnan(metric.compute())
    metric.reset()
    metric.update([[outcome(CORRECT, "7"), outcome(UNPARSABLE, "")]])
    assert metric.compute() == 1.0


def compute_on_rank(rank, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
    problems = random_problems(9, 4)
    own = (problems[:2], problems[2:], [])[rank]
    metrics, avg, any_right, voted = (
        evaluation_metrics(4), *map(ProblemMean, (outcomes.average, partial(passed, k=2), majority)),
    )  # fmt: skip
    for metric in (metrics, avg, any_right, voted):
        metric.update(own[:1])
        metric.update(own[1:])
    values = {name: float(value) for name, value in metrics.compute().items()}
    with avg.sync_context(), any_right.sync_context(), voted.sync_context():
        states = [float(avg.total), *(int(m.num_problems) for m in (avg, any_right, voted))]
    torch.save({"values": values, "states": states}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_ranks_with_uneven_shares_agree_with_one_process(tmp_path):
    start_ranks(compute_on_rank, args=(free_port(), str(tmp_path)), nprocs=3)
    problems = random_problems(9, 4)
    num_correct = sum(sample.is_correct for problem in problems for sample in problem)
    expected = {name: float(value) for name, value in enumerated(problems, 4).items()}
    for rank in range(3):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found["states"] == [num_correct / 4, 9, 9, 9]
        assert found["values"] == pytest.approx(expected, abs=1e-12)


def test_the_majority_answer_counts_and_ties_share():
    assert maj_at_k(["7", "7", "8"], [True, True, False]) == 1.0
    assert maj_at_k(["7", "8"], [True, False]) == 0.5
    assert maj_at_k(["", "", "8"], [False, False, True]) == 1.0
    assert maj_at_k(["", ""], [False, False]) == 0.0
    # An answer is right whichever of its samples was judged in time.
    assert maj_at_k(["7", "7", "8"], [True, False, False]) == 1.0
    assert maj_at_k(["7", "7", "8"], [False, True, False]) == 1.0


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match=r"num_correct must be in 0..num_samples"):
        pass_at_k(4, 5, 1)
    with pytest.raises(ValueError, match=r"k must be in 1..num_samples"):
        pass_at_k(4, 2, 5)
    with pytest.raises(ValueError, match="one verdict per answer"):
        maj_at_k(["7"], [])
