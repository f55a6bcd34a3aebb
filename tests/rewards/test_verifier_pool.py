import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from bapo_lightning.errors import RewardError
from bapo_lightning.rewards import verifier_pool
from bapo_lightning.rewards.verifier_pool import Verdict, VerifierPool
from bapo_lightning.types import ScoreStatus

RIGHT = ("4", r"\sqrt{16}")
HANGS = ("4", r"\sum_{i=1}^{900}\sum_{j=1}^{900}\sum_{k=1}^{900} i^j")
CORRECT = Verdict(ScoreStatus.CORRECT)


@pytest.fixture
def pool() -> Iterator[VerifierPool]:
    pool = VerifierPool(num_workers=2, timeout_seconds=60.0, memory_megabytes=256)
    yield pool
    pool.close()


def wait_until_dead(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                return
        time.sleep(0.01)
    raise AssertionError(f"{pid} still runs")


def test_a_worker_that_died_while_idle_is_replaced_before_an_answer_goes_to_it(pool: VerifierPool) -> None:
    assert pool.judge([RIGHT] * 4) == [CORRECT] * 4
    killed, other = pool.worker_pids
    os.kill(killed, signal.SIGKILL)
    wait_until_dead(killed)
    assert pool.judge([RIGHT] * 4) == [CORRECT] * 4
    assert len(pool.worker_pids) == 2 and killed not in pool.worker_pids and other in pool.worker_pids


def test_an_answer_whose_worker_dies_has_failed(pool: VerifierPool) -> None:
    pool.judge([RIGHT])
    before = pool.worker_pids

    def kill_all() -> None:
        for pid in before:
            os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(2.0, kill_all)
    timer.start()
    assert pool.judge([HANGS] * 2) == [Verdict(ScoreStatus.FAILED, "the worker died")] * 2
    timer.join()
    assert set(before).isdisjoint(pool.worker_pids) and len(pool.worker_pids) == 2
    assert pool.judge([RIGHT] * 4) == [CORRECT] * 4


def test_what_is_far_too_large_spoils_no_other_verdict(pool: VerifierPool) -> None:
    verdicts = pool.judge([("4", "(" * 1_000_000), RIGHT, RIGHT])
    assert verdicts == [Verdict(ScoreStatus.FAILED, "nested too deeply"), CORRECT, CORRECT]


def test_when_the_nursery_died_everything_is_started_again(pool: VerifierPool) -> None:
    assert pool.judge([RIGHT]) == [CORRECT]
    before = pool.worker_pids
    assert pool._processes is not None
    pool._processes.nursery.kill()
    pool._processes.nursery.wait()
    assert pool.judge([RIGHT] * 3) == [CORRECT] * 3
    assert set(before).isdisjoint(pool.worker_pids) and len(pool.worker_pids) == 2


def test_an_answer_that_hangs_times_out_and_the_others_are_judged() -> None:
    pool = VerifierPool(num_workers=1, timeout_seconds=2.0, memory_megabytes=256)
    pool.judge([RIGHT])
    before = pool.worker_pids
    start = time.monotonic()
    assert pool.judge([HANGS]) == [Verdict(ScoreStatus.TIMEOUT)]
    assert 2.0 <= time.monotonic() - start < 30.0
    assert pool.worker_pids != before and len(pool.worker_pids) == 1
    pool.timeout_seconds = 60.0
    assert pool.judge([RIGHT]) == [CORRECT]
    pool.close()


def test_after_an_interruption_no_verdict_belongs_to_an_earlier_answer(
    pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.judge([RIGHT])

    def interrupted(*_: object) -> list[object]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(verifier_pool, "wait", interrupted)
        pool.judge([RIGHT, RIGHT])
    assert [verdict.status for verdict in pool.judge([("4", "x"), ("5", "y")])] == [ScoreStatus.WRONG] * 2


def test_closing_ends_a_call_of_another_thread(pool: VerifierPool) -> None:
    pool.judge([RIGHT])
    errors: list[BaseException] = []

    def judge() -> None:
        try:
            pool.judge([HANGS] * 4)
        except RewardError as error:
            errors.append(error)

    thread = threading.Thread(target=judge)
    thread.start()
    time.sleep(1)
    pool.close()
    thread.join(60)
    assert [str(error) for error in errors] == ["the verifier was closed while it judged answers"]
    assert pool.judge([RIGHT]) == [CORRECT]


def test_nothing_is_started_for_no_answers(pool: VerifierPool) -> None:
    assert pool.judge([]) == [] and pool.worker_pids == []


def test_a_verifier_that_cannot_start_says_what_to_try(
    pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier_pool.sys, "executable", "/bin/false")
    with pytest.raises(
        RewardError,
        match=r"the verifier could not start \(no message\); try: /bin/false -c 'import math_verify'",
    ):
        pool.judge([RIGHT])
