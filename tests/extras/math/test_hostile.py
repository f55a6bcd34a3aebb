"""Hostile answers: none runs, each is judged within its deadline, the pool keeps its size and memory."""

import re
import resource
import time
from pathlib import Path

import psutil
import pytest
from tests.extras.math.hostile import CANARY, GOLD, hostile_answers

from bapo_lightning.extras.math import MathReward
from bapo_lightning.extras.math.reward import MAX_VOTE_CHARACTERS
from bapo_lightning.types import ScoreStatus

TIMEOUT_SECONDS = 1.0
SLACK_SECONDS = 10.0  # to kill and replace a worker, on a machine that is busy with other things
MEMORY_MEGABYTES = 256
MEGABYTE = 1 << 20
ANSWERS = list(hostile_answers())


@pytest.fixture(scope="module")
def reward():
    limits = {"timeout_seconds": TIMEOUT_SECONDS, "memory_megabytes": MEMORY_MEGABYTES}
    reward = MathReward(accept="any", num_workers=2, **limits)
    reward.score_texts([GOLD], [r"\sqrt{2}"])
    yield reward
    reward.close()


def test_there_are_more_than_two_hundred_kinds():
    assert len({name for name, _ in ANSWERS}) == len(ANSWERS) >= 600
    assert len({text for _, text in ANSWERS}) >= 600


@pytest.mark.slow
def test_no_hostile_answer_runs_overruns_or_breaks_the_pool(reward, tmp_path):
    own_peak, slow, correct, statuses = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, [], [], set()
    for name, text in ANSWERS:
        start = time.monotonic()
        score = reward.score_texts([GOLD], [text.replace(CANARY, str(tmp_path / CANARY))])[0]
        if time.monotonic() - start > TIMEOUT_SECONDS + SLACK_SECONDS:
            slow.append(name)
        if score.status is ScoreStatus.CORRECT or score.value != 0.0:
            correct.append(name)
        assert len(score.answer) <= MAX_VOTE_CHARACTERS
        statuses.add(score.status)
        assert len(reward.worker_pids) == 1, "one answer at a time is work for one"
    assert (slow, correct) == ([], [])
    assert statuses == {ScoreStatus.WRONG, ScoreStatus.UNPARSABLE, ScoreStatus.TIMEOUT, ScoreStatus.FAILED}
    assert list(tmp_path.iterdir()) == [] and list(Path.cwd().glob(CANARY)) == []
    assert not Path("/", CANARY).exists()
    for pid in reward.worker_pids:
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert int(peak) / 1024 < 300 + MEMORY_MEGABYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - own_peak < 200 * 1024
    assert reward.score_texts(["4"], [r"\sqrt{15} + \sqrt{0}"])[0].status is ScoreStatus.WRONG


def test_a_payload_would_have_been_noticed(tmp_path):
    payload = next(text for _, text in ANSWERS).replace(CANARY, str(tmp_path / CANARY))
    eval(payload)
    assert [path.name for path in tmp_path.iterdir()] == [CANARY]


def test_a_worker_has_little_memory_and_writes_nothing(reward):
    for pid in reward.worker_pids:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        assert soft == hard < (1024 + MEMORY_MEGABYTES) * MEGABYTE
        assert resource.prlimit(pid, resource.RLIMIT_FSIZE) == (0, 0)
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)


def test_a_worker_knows_no_secret_of_the_parent_and_ends_with_its_reward(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    reward = MathReward(accept="any", num_workers=1)
    reward.score_texts([GOLD], [r"\sqrt{2}"])
    (worker,) = map(psutil.Process, reward.worker_pids)
    environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
    reward.close()
    assert psutil.wait_procs([worker], timeout=60)[1] == []
    assert b"secret" not in environment and b"PYTHONHASHSEED=0" in environment


@pytest.mark.parametrize(
    "look_alike", ["④", "⁴", "₄", "Ⅳ", "4\u200b4", "\u202e4\u202c4", "IV", "fourth", "0x4", "4j", "0b100"]
)
def test_what_looks_like_the_number_is_not_the_number(reward, look_alike):
    assert reward.score_texts(["4"], [rf"\boxed{{{look_alike}}}"])[0].value == 0.0


@pytest.mark.parametrize(
    "answer", ["nan", r"\text{nan}", r"\infty - \infty", r"\frac{0}{0}", "zoo", r"\frac{1}{0}"]
)
def test_what_is_no_number_equals_no_number(reward, answer):
    scores = reward.score_texts(["0", "1", r"\infty", GOLD], [rf"\boxed{{{answer}}}"] * 4)
    assert [score.value for score in scores] == [0.0] * 4


def test_the_same_huge_number_is_right_without_being_computed(reward):
    scores = reward.score_texts([r"9^{9^{9}}", r"9^{9^{9}}"], [r"\boxed{9^{{9^9}}}", r"\boxed{9^{9^{8}}}"])
    assert [score.status for score in scores] == [ScoreStatus.CORRECT, ScoreStatus.FAILED]
