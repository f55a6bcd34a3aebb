import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from bapo_lightning import clean_process
from bapo_lightning.environments.python.host import Output
from bapo_lightning.environments.python.tool import Python
from bapo_lightning.environments.tools import ToolResult
from bapo_lightning.errors import EnvironmentFault

FOREVER = "import time; time.sleep(1000)"


@pytest.fixture(autouse=True)
def _scratch(monkeypatch, tmp_path):
    """A host that is killed leaves the folder of its program behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture(scope="module")
def python():
    tool = Python(workers=2, seconds=20.0)
    yield tool
    tool.close()


def host(tool):
    process = tool._hosts[0]._process
    assert process is not None
    return psutil.Process(process.process.pid)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print(6 * 7)", "42"), ("6 * 7", "42"), ("x = 6\nx * 7", "42"),
        ("print('printed')\n6 * 7", "printed"), ("'text'", "'text'"), ("x = 1", "(no output)"),
        ("None", "(no output)"), ("", "(no output)"),
        ("import sys\nprint(1)\nprint(2, file=sys.stderr)\nprint(3)", "1\n2\n3"),
        ("def f(n):\n    return 1 if n == 0 else n * f(n - 1)\nprint(f(5))", "120"),
        ("if __name__ == '__main__':\n    print('main')", "main"), ("import sys; sys.exit()", "(no output)"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\nA(1)", "A(x=1)"),
        ("import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'abc'))", "3"),
        ("print('ä€')", "ä€"), ("import sympy\nsympy.factor(sympy.Symbol('x')**2 - 1)", "(x - 1)*(x + 1)"),
        ("import numpy\nfloat(numpy.ones(3) @ numpy.ones(3))", "3.0"),
    ],
)  # fmt: skip
def test_programs(python, program, said):
    assert python(program) == ToolResult(said)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("x = 1\n\ndef f():\n    return x / 0\nf()", "ZeroDivisionError: division by zero (line 4)"),
        ("print('so far')\n{}['key']", "so far\nKeyError: 'key' (line 2)"),
        ("assert 1 == 2", "AssertionError (line 1)"),
        ("import this_is_no_module", "ModuleNotFoundError: No module named 'this_is_no_module' (line 1)"),
        ("def f(:", "SyntaxError: invalid syntax"),
        (
            "import decimal; decimal.Decimal('x')",
            "decimal.InvalidOperation: [<class 'decimal.ConversionSyntax'>] (line 1)",
        ),
    ],
)  # fmt: skip
def test_errors_are_the_end_of_a_traceback(python, program, said):
    assert python(program) == ToolResult(said, failed=True)


def test_nothing_survives_a_call(python):
    for _ in range(2):
        found = python("import os, math\nprint(os.listdir(), 'mine' in globals(), hasattr(math, 'mine'))")
        assert found == ToolResult("[] False False")
        python("mine = 1\nmath = __import__('math'); math.mine = 1\nopen('f', 'w').close()")


def test_threads_share_the_workers(python):
    programs = [f"import time; time.sleep(0.05); print({number})" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        assert [result.text for result in threads.map(python, programs)] == [*"01234567"]


def test_a_host_that_dies_is_replaced():
    tool = Python(workers=1)
    tool("pass")
    before = host(tool)
    before.kill()
    before.wait()
    assert tool("6 * 7") == ToolResult("42") and host(tool).pid != before.pid
    timer = threading.Timer(0.3, host(tool).kill)
    timer.start()
    result = tool(FOREVER)
    timer.join()
    assert result.failed and result.text.startswith("Error: the program was ended")
    assert tool("6 * 7") == ToolResult("42")
    tool.close()


def test_closing_ends_a_call_of_another_thread():
    tool = Python(workers=1, seconds=60.0)
    tool("pass")
    errors = []

    def ask():
        try:
            tool(FOREVER)
        except EnvironmentFault as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    started = host(tool)
    while not started.children():
        time.sleep(0.01)
    family = [started, *started.children()]
    tool.close()
    thread.join(20)
    assert [str(error) for error in errors] == ["the Python interpreter was closed while a program ran"]
    assert psutil.wait_procs(family, timeout=20)[1] == []
    tool.close()
    assert tool("6 * 7") == ToolResult("42")
    tool.close()


def test_after_an_interruption_no_result_belongs_to_an_earlier_program():
    tool = Python(workers=1)
    tool("pass")
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        tool("import time; time.sleep(1); print('late')")
    timer.join()
    assert tool("print('next')") == ToolResult("next")
    tool.close()


def test_a_tool_that_is_forgotten_ends_its_host():
    tool = Python(workers=1)
    tool("pass")
    started = host(tool)
    del tool
    gc.collect()
    assert psutil.wait_procs([started], timeout=20)[1] == []


def test_a_forked_copy_has_hosts_of_its_own(python):
    python("pass")
    answers = multiprocessing.get_context("fork").SimpleQueue()

    def ask():
        answers.put(python("6 * 7").text)
        python.close()

    child = multiprocessing.get_context("fork").Process(target=ask)
    child.start()
    child.join(60)
    assert child.exitcode == 0 and answers.get() == "42"
    assert python("6 * 7") == ToolResult("42")


SCRIPT = f"""
import threading
from bapo_lightning.environments.python.tool import Python
tool = Python(workers=1, seconds=600.0)
tool("pass")
thread = threading.Thread(target=tool, args=({FOREVER!r},))
thread.start()
print(tool._hosts[0]._process.process.pid, flush=True)
thread.join()
"""


def test_all_processes_end_with_a_trainer_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        started = psutil.Process(int(trainer.stdout.readline()))
        while not started.children():
            time.sleep(0.01)
        family = [started, *started.children()]
        trainer.kill()
    assert psutil.wait_procs(family, timeout=20)[1] == []


def test_a_host_that_cannot_start_says_why(monkeypatch):
    with pytest.raises(EnvironmentFault, match=r"could not start .*No module named 'this_is_no_module'"):
        Python(modules=["this_is_no_module"])("pass")
    monkeypatch.setattr(clean_process.sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentFault, match=r"could not start \(no message\)"):
        Python()("pass")


def test_a_host_without_walls_is_refused():
    code = (
        "from bapo_lightning.environments.python import host\n"
        "from bapo_lightning.environments.python.limits import CallLimits\n"
        "host.missing_walls = lambda: ['seccomp']\n"
        "host.main(0, 0, CallLimits(1.0, 64, 1, 100, True, 'kernel'), [])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("walls=kernel needs seccomp; walls=interpreter")


def test_a_host_knows_nothing_of_the_trainer_and_may_leave_out_the_last_value(monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    tool = Python(workers=1, show_last_value=False)
    assert tool("6 * 7") == ToolResult("(no output)")
    known = host(tool).environ()
    tool.close()
    assert "secret" not in json.dumps(known) and "API_KEY" not in known


def kept(max_bytes, *parts):
    output = Output(max_bytes)
    for part in parts:
        output.add(part)
    assert len(output.kept) <= max_bytes
    return output.text()


def test_a_short_text_is_kept_whole_and_of_a_long_one_both_ends():
    assert kept(10, b"abc", b"", b"defghij") == "abcdefghij"
    assert kept(5, *[b"0123456789" * 100] * 1000) == "012\n[999995 bytes left out]\n89"
    # A character that is cut does no harm.
    assert kept(3, "ääää".encode()) == "ä\n[5 bytes left out]\n\N{REPLACEMENT CHARACTER}"


def test_a_pipe_is_read_to_its_end_without_waiting():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    output = Output(10)
    assert output.read(reader)
    os.write(writer, b"text")
    os.close(writer)
    assert output.read(reader) and not output.read(reader)
    os.close(reader)
    assert output.text() == "text"
