"""Signals that ask a process to stop."""

import signal
import subprocess
import sys
import time

import pytest

from bapo_lightning.system.stopping import SAME_SECONDS, handled

STOPPING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
BEGIN = "import os, signal, time; from bapo_lightning.system.stopping import *; "
WAIT = "print(1, flush=True); [time.sleep(0.01) for _ in range(10000)]"


def started(program):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", BEGIN + program], **pipes)
    assert process.stdout.readline() == "1\n"
    return process


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_ends_a_process_in_one_line_with_the_exit_code_of_the_signal(number):
    process = started(f"stop.listen(); {WAIT}")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number and len(errors.splitlines()) == 1


def test_a_signal_that_comes_twice_at_once_is_one_request_and_one_that_comes_later_ends_the_process():
    process = started(f"stop.listen(); stop.answer = record_signal; {WAIT}")
    for _ in range(2):  # as `timeout` does it
        process.send_signal(signal.SIGTERM)
    time.sleep(10 * SAME_SECONDS)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_a_fork_of_the_process_ends_by_the_signal_itself():
    fork = "pid = os.fork(); pid or time.sleep(60); time.sleep(0.2); os.kill(pid, signal.SIGTERM)"
    told = "print(1, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), stop.received, flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGIN}stop.listen(); stop.answer = record_signal; {fork}; {told}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "1 -15 None\n", done.stderr


def test_a_signal_that_is_ignored_stays_so_and_earlier_handlers_come_back():
    program = (
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with heard():\n    with heard(record_signal): signal.raise_signal(signal.SIGHUP)\n"
        "    assert stop.received is None and stop.answer is at_once\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not stop.is_heard\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    subprocess.run([sys.executable, "-c", f"{BEGIN}\n{program}"], check=True, timeout=60)


def test_the_handler_of_sigterm_stays():
    before = signal.getsignal(signal.SIGTERM)
    with handled(signal.SIGTERM, before):
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    assert signal.getsignal(signal.SIGTERM) is before
