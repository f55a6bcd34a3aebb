"""A command that is forked from the warm process does what a new process would do."""

import os
import signal
import subprocess
import sys

import pytest
from tests.commands import Command, run_command, wait_until

SHOW = """
import os, signal, sys
import neighbour
print(sys.argv[1:], os.getcwd(), os.environ["COLOUR"], neighbour.NAME, __name__)
print(os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print("bad news", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "neighbour.py").write_text("NAME = 'next door'\n")
    (tmp_path / "endless.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    return tmp_path


@pytest.mark.parametrize("is_file", [False, True], ids=["module", "file"])
def test_it_has_the_arguments_folder_environment_output_and_exit_code_of_a_new_process(folder, is_file):
    place = {"cwd": folder, "env": {**os.environ, "COLOUR": "blue"}}
    named = [folder / "show.py"] if is_file else ["-m", "show"]
    forked = run_command(named[-1], "a", "b c", **place)
    command = [sys.executable, *map(str, named), "a", "b c"]
    new = subprocess.run(command, **place, capture_output=True, text=True, start_new_session=True)
    assert vars(forked) == vars(new)
    assert "['a', 'b c']" in new.stdout and new.returncode == 3


def test_a_signal_ends_it_with_the_exit_code_of_the_signal(folder):
    command = Command("endless", [], cwd=folder)
    wait_until(lambda: command.output()[0] == "begun\n", command)
    command.send_signal(signal.SIGTERM)
    assert command.communicate() == ("begun\n", "")
    assert command.returncode == -signal.SIGTERM


def test_one_that_does_not_end_is_killed_and_shown(folder):
    command = Command("endless", [], cwd=folder)
    with pytest.raises(TimeoutError, match="endless"):
        command.communicate(timeout=0.5)
    assert command.returncode == -signal.SIGKILL


def test_an_error_is_a_traceback_and_exit_code_1(folder):
    (folder / "neighbour.py").write_text("1 / 0\n")
    done = run_command("show", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "") and "ZeroDivisionError" in done.stderr
