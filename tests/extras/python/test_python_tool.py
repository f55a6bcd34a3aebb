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
from contextlib import closing, nullcontext

import psutil
import pytest
from tests.configuration.compositions import found

from bapo_lightning.environments.tools import ToolResult
from bapo_lightning.extras.python import tool as tool_module
from bapo_lightning.extras.python.host import Output
from bapo_lightning.extras.python.tool import Python
from bapo_lightning.system import supervised
from bapo_lightning.system.errors import ConfigError, EnvironmentFault

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


def test_folders_of_killed_hosts_are_swept_by_the_next_one_and_those_in_use_are_left_alone(tmp_path):
    tools = [Python(workers=1, seconds=60.0) for _ in range(3)]
    calls = [threading.Thread(target=tool, args=(FOREVER,), daemon=True) for tool in tools[:2]]
    for tool, call in zip(tools, calls, strict=False):
        call.start()
        while tool._hosts[0]._process is None:
            time.sleep(0.01)
        family_of(host(tool))
    used = set(tmp_path.glob("bapo-python-*"))
    assert len(used) == 2
    host(tools[0]).kill()
    calls[0].join()
    assert set(tmp_path.glob("bapo-python-*")) == used
    assert tools[2]("print(1)").text == "1"
    assert len(set(tmp_path.glob("bapo-python-*")) & used) == 1
    for tool in tools:
        tool.close()


def host(tool):
    process = tool._hosts[0]._process
    assert process is not None
    return psutil.Process(process.process.pid)


def family_of(host):
    """The host, what forks its programs, and the program that runs."""
    while len(host.children(recursive=True)) < 2:
        time.sleep(0.01)
    return [host, *host.children(recursive=True)]


@pytest.mark.parametrize(("program", "said"), [
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
])  # fmt: skip
def test_programs(python, program, said):
    assert python(program) == ToolResult(said)


@pytest.mark.parametrize(("program", "said"), [
    ("x = 1\n\ndef f():\n    return x / 0\nf()", "ZeroDivisionError: division by zero (line 4)"),
    ("print('so far')\n{}['key']", "so far\nKeyError: 'key' (line 2)"),
    ("assert 1 == 2", "AssertionError (line 1)"),
    ("import this_is_no_module", "ModuleNotFoundError: No module named 'this_is_no_module' (line 1)"),
    ("def f(:", "SyntaxError: invalid syntax"),
    ("import decimal; decimal.Decimal('x')",
     "decimal.InvalidOperation: [<class 'decimal.ConversionSyntax'>] (line 1)"),
])  # fmt: skip
def test_errors_are_the_end_of_a_traceback(python, program, said):
    assert python(program) == ToolResult(said, failed=True)


def test_nothing_survives_a_call(python):
    for _ in range(2):
        found = python("import os, math\nprint(os.listdir(), 'mine' in globals(), hasattr(math, 'mine'))")
        assert found == ToolResult("[] False False")
        python("mine = 1\nmath = __import__('math'); math.mine = 1\nopen('f', 'w').close()")


WALK = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
reader, writer = os.pipe()
page, first, second = 4096, b"secret of ", {rest!r}
places = {{libc.sbrk(0) // page * page - page * n for n in range(1, 4000)}}
for kept in ([], b"x" * 1000, bytearray(300000), "y" * 100000):
    places |= {{id(kept) // page * page + page * n for n in range(-2000, 2000)}}
pages = found = 0
before = b""
for place in sorted(places):
    if libc.write(writer, place, page) == page:  # or it is no memory
        pages += 1
        seen = before[-64:] + os.read(reader, page)
        before, at = seen, -1
        while (at := seen.find(first, at + 1)) >= 0:
            found += seen[at + len(first) :].startswith(second)
print(pages > 1000, found)
"""


def test_no_program_finds_the_one_before_it_in_its_memory():
    """A walk through a heap that programs of two conversations share finds the output, 10 of 10."""
    with closing(Python(workers=1, seconds=20.0)) as python:
        for number in range(10):
            code = f"# {'x' * 3000} secret of code {number}\n"
            code += f"print('secret of ' + 'output {number} ' + 'z' * 3000)"
            assert python(code).text.startswith(f"secret of output {number} ")
            for kind in ("code", "output"):
                assert python(WALK.format(rest=f"{kind} {number}".encode())) == ToolResult("True 0")


def test_threads_share_the_workers(python):
    programs = [f"import time; time.sleep(0.05); print({number})" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        assert [result.text for result in threads.map(python, programs)] == [*"01234567"]


def test_a_host_that_dies_is_replaced():
    with closing(Python(workers=1)) as tool:
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
    family = family_of(started)
    tool.close()
    thread.join(20)
    assert [str(error) for error in errors] == ["the Python interpreter was closed while a program ran"]
    assert psutil.wait_procs(family, timeout=20)[1] == []
    tool.close()
    assert tool("6 * 7") == ToolResult("42")
    tool.close()


def test_after_an_interruption_no_result_belongs_to_an_earlier_program():
    with closing(Python(workers=1)) as tool:
        tool("pass")
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            tool("import time; time.sleep(1); print('late')")
        timer.join()
        assert tool("print('next')") == ToolResult("next")


def test_a_tool_that_is_forgotten_ends_its_host():
    tool = Python(workers=1)
    tool("pass")
    started = host(tool)
    del tool
    gc.collect()
    assert psutil.wait_procs([started], timeout=20)[1] == []


def test_a_host_outlives_the_thread_that_started_it():
    with closing(Python(workers=1)) as tool:
        thread = threading.Thread(target=tool, args=("pass",))
        thread.start()
        thread.join()
        started = host(tool)
        assert tool("6 * 7") == ToolResult("42") and host(tool) == started


def test_a_process_whose_parent_is_gone_before_it_could_follow_it_ends():
    code = "import os; from bapo_lightning.system.orphans import end_with_parent as end; "
    code += "end(os.getppid() + 1); print('lives')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


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
from bapo_lightning.extras.python.tool import Python
tool = Python(workers=1, seconds=600.0)
tool("pass")
thread = threading.Thread(target=tool, args=({FOREVER!r},))
thread.start()
print(tool._hosts[0]._process.process.pid, flush=True)
thread.join()
"""


@pytest.mark.parametrize("stopped", [(), (0,), (0, 1, 2)], ids=["none", "host", "all"])
def test_all_processes_end_with_a_trainer_that_is_killed_also_those_that_are_stopped(stopped):
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        started = psutil.Process(int(trainer.stdout.readline()))
        family = family_of(started)
        for number in stopped:
            family[number].suspend()
        trainer.kill()
    assert psutil.wait_procs(family, timeout=20)[1] == []


def test_a_host_that_cannot_start_says_why(monkeypatch):
    with pytest.raises(EnvironmentFault, match=r"could not start .*No module named 'this_is_no_module'"):
        Python(modules=["this_is_no_module"])("pass")
    monkeypatch.setattr(supervised.sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentFault, match=r"could not start \(no message\)"):
        Python()("pass")


@pytest.mark.parametrize("walls", ["kernel", "none"])
def test_a_run_whose_kernel_has_no_walls_is_refused_at_its_start_unless_it_says_so(monkeypatch, walls):
    monkeypatch.setattr(tool_module, "missing_walls", lambda: ["seccomp"])
    key = "environment.answers.tools.python.walls"
    told = found("experiment=sums", "environment=python", "environment.stop=[]", f"{key}={walls}")
    refused = f"{key}=kernel needs seccomp, which this machine does not have; with {key}=none there are none"
    assert [text.startswith(refused) for text in told] == ([True] if walls == "kernel" else [])
    with pytest.raises(ConfigError, match="needs seccomp") if walls == "kernel" else nullcontext():
        Python(walls=walls)


def test_a_host_knows_nothing_of_the_trainer_and_may_leave_out_the_last_value(monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    with closing(Python(workers=1, show_last_value=False)) as tool:
        assert tool("6 * 7") == ToolResult("(no output)")
        known = host(tool).environ()
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
