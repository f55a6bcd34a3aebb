"""Two processes that take turns: each works when told to, reports its time, and ends with the runner."""

import os
import sys
from pathlib import Path

import pytest
from turns import Worker

BENCH = str(Path(__file__).resolve().parents[2] / "bench")
COUNTS = "from turns import Turns\nturns = Turns()\n"
COUNTS += "for number in range(100):\n    turns.hand_over({'number': number})\n"


@pytest.fixture
def start(tmp_path):
    workers = []

    def make(code):
        workers.append(Worker([sys.executable, "-c", code], tmp_path / "log", {"PYTHONPATH": BENCH}))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def test_a_worker_makes_one_cycle_on_request_and_says_what_it_took(start):
    worker = start(COUNTS)
    cycles = [worker.cycle() for _ in range(3)]
    assert [cycle["number"] for cycle in cycles] == [0, 1, 2]
    assert all(cycle["wall"] >= 0 and cycle["cpu"] >= 0 for cycle in cycles)


def test_the_time_between_two_turns_does_not_count(start):
    slow = start("import time\n" + COUNTS.replace("turns.hand", "time.sleep(0.5)\n    turns.hand"))
    quick = start(COUNTS)
    for worker in (slow, quick, slow, quick):
        last = worker.cycle()
    assert last["wall"] < 0.5 <= slow.cycle()["wall"]


def test_a_worker_that_ends_is_reported_with_its_last_words(start):
    with pytest.raises(SystemExit, match=r"ended with 1:\s*Traceback(.|\n)*ZeroDivisionError"):
        start("1 / 0").cycle()


def test_a_worker_ends_when_the_runner_is_gone(start):
    worker = start(COUNTS)
    worker.cycle()
    worker._pipe.close()
    assert worker._process.wait(timeout=60) == 0


def test_closing_ends_the_process(start):
    worker = start(COUNTS)
    worker.cycle()
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker._process.pid, 0)
