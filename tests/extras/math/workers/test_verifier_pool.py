import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from tests.tools.sweeps.pretended import wait_until

from bapo_lightning.extras.math import score_answers
from bapo_lightning.extras.math.workers import pool as verifier_pool
from bapo_lightning.extras.math.workers.pool import Verdict, VerifierPool
from bapo_lightning.extras.math.workers.server import FIRST_TRY_SECONDS, Tries
from bapo_lightning.system.errors import RewardError
from bapo_lightning.types import ScoreStatus

RIGHT = ("4", r"\sqrt{16}")
HANGS = ("4", r"\cup".join(f"({i},{i + 1})" for i in range(100)))
CORRECT = Verdict(ScoreStatus.CORRECT)
RIGHT_VERDICT, TIMEOUT = (ScoreStatus.CORRECT, ""), (ScoreStatus.TIMEOUT, "")  # as the server has them


@pytest.mark.slow
def test_a_worker_that_died_while_idle_is_replaced_before_an_answer_goes_to_it(pool):
    assert pool.judge([RIGHT] * 4) == [CORRECT] * 4
    killed, other = pool.worker_pids
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: psutil.Process(killed).status() == psutil.STATUS_ZOMBIE)
    assert pool.judge([RIGHT] * 4) == [CORRECT] * 4
    assert len(pool.worker_pids) == 2 and killed not in pool.worker_pids and other in pool.worker_pids


def test_no_more_workers_are_started_than_there_is_work_for():
    with closing(VerifierPool(1_000_000_000, 5.0, 512)) as pool:
        assert pool.judge([RIGHT] * 2) == [CORRECT] * 2
        assert 1 <= len(pool.worker_pids) <= 2


def test_an_answer_whose_worker_dies_has_failed(pool):
    pool.judge([HANGS] * 2, timeout_seconds=0.1)
    before = pool.worker_pids

    def kill_all():
        for pid in before:
            os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(0.5, kill_all)
    timer.start()
    assert pool.judge([HANGS] * 2) == [Verdict(ScoreStatus.FAILED, "the worker died")] * 2
    timer.join()
    assert set(before).isdisjoint(pool.worker_pids) and len(pool.worker_pids) == 2
    assert pool.judge([RIGHT] * 4) == [CORRECT] * 4


def test_what_is_far_too_large_spoils_no_other_verdict(pool):
    verdicts = pool.judge([("4", "(" * 1_000_000), RIGHT, RIGHT])
    assert verdicts == [Verdict(ScoreStatus.FAILED, "nested too deeply"), CORRECT, CORRECT]


def test_a_worker_cannot_write_to_the_trainer(pool):
    assert pool.judge([RIGHT] * 4) == [CORRECT] * 4
    ends = (pool._server.requests, pool._server.replies)
    pipes = {os.readlink(f"/proc/self/fd/{end.fileno()}") for end in ends}
    for pid in pool.worker_pids:
        opened = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
        assert pipes.isdisjoint(opened)


def test_an_answer_that_hangs_times_out_and_the_others_are_judged(pool, monkeypatch):
    assert pool.judge([RIGHT] * 4) == [CORRECT] * 4
    before = pool.worker_pids
    monkeypatch.setattr(pool, "timeout_seconds", 1.5)
    start = time.monotonic()
    assert pool.judge([HANGS, RIGHT]) == [Verdict(ScoreStatus.TIMEOUT), CORRECT]
    assert 1.5 <= time.monotonic() - start < 30.0
    assert len({*pool.worker_pids} - {*before}) == 1


def test_nothing_is_started_for_no_answers_and_a_verifier_that_cannot_start_says_what_to_try(monkeypatch):
    pool = VerifierPool(num_workers=2, timeout_seconds=60.0, memory_megabytes=256)
    assert pool.judge([]) == [] and pool.worker_pids == []
    monkeypatch.setattr(verifier_pool.sys, "executable", "/bin/false")
    said = r"the verifier could not start \(no message\); try: /bin/false -c 'import math_verify'"
    with pytest.raises(RewardError, match=said):
        pool.judge([RIGHT])


@pytest.mark.slow
def test_when_the_server_dies_while_it_judges_its_workers_end_and_the_caller_learns_why(pool):
    pool.judge([RIGHT])
    server, workers = pool._server, [psutil.Process(pid) for pid in pool.worker_pids]
    timer = threading.Timer(0.5, server.process.kill)
    timer.start()
    with pytest.raises(RewardError, match=r"the verifier died \(was it killed for memory"):
        pool.judge([HANGS] * 2)
    timer.join()
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    assert pool.judge([RIGHT] * 3) == [CORRECT] * 3 and len(pool.worker_pids) == 2


@pytest.mark.slow
def test_after_an_interruption_no_verdict_belongs_to_an_earlier_answer(pool):
    pool.judge([RIGHT])
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pool.judge([RIGHT, HANGS])
    timer.join()
    assert [verdict.status for verdict in pool.judge([("4", "x"), ("5", "y")])] == [ScoreStatus.WRONG] * 2


@pytest.mark.slow
def test_closing_ends_a_call_of_another_thread(pool):
    pool.judge([RIGHT])
    errors = []

    def judge():
        try:
            pool.judge([HANGS] * 4)
        except RewardError as error:
            errors.append(error)

    thread = threading.Thread(target=judge)
    thread.start()
    time.sleep(0.5)
    pool.close()
    thread.join(60)
    assert [str(error) for error in errors] == ["the verifier was closed while it judged answers"]
    assert pool.judge([RIGHT]) == [CORRECT]


SCRIPT = """
import os, sys
print("imported as", __name__, flush=True)
from bapo_lightning.extras.math import score_answers
print(score_answers(["4"] * 2, [r"\\sqrt{16}"] * 2, 60)[0].status.value, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("started_as", ["script.py", "-m"])
def test_the_callers_script_is_not_run_again_and_its_death_ends_every_process(tmp_path, started_as):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, *(["-m", "script"] if started_as == "-m" else ["script.py"])]
    caller = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert caller.stdin is not None and caller.stdout is not None
    with caller.stdin, caller.stdout:
        lines = [caller.stdout.readline().strip() for _ in range(2)]
        started = psutil.Process(caller.pid).children(recursive=True)
        caller.kill()
        caller.wait()
        lines += caller.stdout.read().split()
    assert lines == ["imported as __main__", "correct"]
    assert len(started) >= 2  # the server and a worker
    assert psutil.wait_procs(started, timeout=60)[1] == []


def judged_in_a_daemon(golds):
    return [score.status for score in score_answers(golds, [r"\sqrt{16}"] * len(golds), 60.0)]


@pytest.mark.slow
def test_a_daemonic_process_can_have_workers():
    with multiprocessing.get_context("spawn").Pool(1) as daemons:
        assert daemons.apply(judged_in_a_daemon, (["4", "5"],)) == [ScoreStatus.CORRECT, ScoreStatus.WRONG]


def test_every_answer_gets_a_short_try_first_and_short_answers_before_long_ones():
    tries = Tries([30, 10, 20], seconds=5.0, budget_seconds=math.inf)
    assert [tries.take() for _ in range(3)] == [(index, FIRST_TRY_SECONDS) for index in (1, 2, 0)]
    tries.settle(1, RIGHT_VERDICT, 0.1)
    tries.settle(2, None, FIRST_TRY_SECONDS)
    tries.settle(0, None, FIRST_TRY_SECONDS)
    assert [tries.take() for _ in range(2)] == [(2, 5.0), (0, 5.0)]
    tries.settle(2, RIGHT_VERDICT, 3.0)
    tries.settle(0, None, 5.0)
    assert not tries
    assert tries.verdicts == [TIMEOUT, RIGHT_VERDICT, RIGHT_VERDICT]


def test_a_deadline_below_the_short_try_is_the_only_one():
    tries = Tries([1], seconds=0.2, budget_seconds=math.inf)
    assert tries.take() == (0, 0.2)
    tries.settle(0, None, 0.2)
    assert not tries and tries.verdicts == [TIMEOUT]


def test_a_try_goes_on_while_nothing_waits_and_the_budget_lasts():
    tries = Tries([1, 2], seconds=5.0, budget_seconds=3.0)
    tries.take()
    assert tries.more_seconds(1.0) == 0.0
    tries.take()
    assert tries.more_seconds(1.0) == 2.0
    assert tries.more_seconds(3.0) == 0.0
    tries.settle(0, None, 2.5)
    assert tries.more_seconds(1.0) == 0.0


def test_quick_answers_cost_nothing_and_slow_ones_end_with_the_budget():
    tries = Tries([1, 1, 1, 2, 2, 2], seconds=5.0, budget_seconds=2.5)
    for index in range(3):
        assert tries.take()[0] == index
        tries.settle(index, RIGHT_VERDICT, 0.9)
    for index in (3, 4, 5):
        assert tries and tries.take()[0] == index
        tries.settle(index, None, 1.0)
    assert not tries
    assert tries.verdicts == [RIGHT_VERDICT] * 3 + [TIMEOUT] * 3


# Statement -> the event that is refused, or the text that it prints.
INSIDE = {
    "eval('1 + 1')": "compile", "exec('pass')": "compile", "compile('1', 'x', 'eval')": "compile",
    "open('/dev/null', 'w')": "open", "open('/proc/self/environ')": "open",
    "__import__('os').system('true')": "os.system", "__import__('os').fork()": "os.fork",
    "__import__('os').remove('nothing')": "os.remove", "__import__('os').kill(1, 0)": "os.kill",
    "__import__('_socket').socket()": "socket.__new__", "__import__('_posixsubprocess').fork_exec": "",
    "__import__('_ctypes').dlopen(None, 0)": "ctypes.dlopen", "bytearray(128 << 20)": "MemoryError",
    "print(len(bytearray(32 << 20)))": str(32 << 20), "import colorsys; print(colorsys.__name__)": "colorsys",
}  # fmt: skip


def test_what_a_verifier_has_no_need_of_is_refused_and_modules_can_still_be_imported():
    # From bytes in the command line, so compiled before the sandbox is entered.
    code = "from bapo_lightning.extras.math.workers.worker import Refused, Sandbox\n"
    code += "sandbox = Sandbox(64)\nsandbox.enter()\n"
    for statement in INSIDE:
        code += f"try:\n    {statement}\nexcept Refused: print(*sandbox.refusals)\n"
        code += "except MemoryError: print('MemoryError')\nprint(end='\\0')\nsandbox.refusals.clear()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = [text.strip() for text in done.stdout.split("\0")[:-1]]
    assert dict(zip(INSIDE, said, strict=True)) == INSIDE


def test_what_is_installed_in_a_folder_of_pythonpath_is_found(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("open(__file__ + '.seen', 'w').close()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with closing(VerifierPool(num_workers=1, timeout_seconds=60.0, memory_megabytes=256)) as pool:
        assert pool.judge([RIGHT]) == [CORRECT]
    assert (tmp_path / "sitecustomize.py.seen").exists()
