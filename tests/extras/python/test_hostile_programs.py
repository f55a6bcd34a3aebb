import json
import os
import re
import time
from contextlib import contextmanager

import psutil
import pytest
from tests.extras.python.programs import ENDED, HARMLESS, LASTING, REFUSED

from bapo_lightning.environments.tools import ToolResult
from bapo_lightning.extras.python.tool import Python

SECONDS = 1.0
SECRET = "a-key-that-nobody-may-read"


class Watched:
    """A tool of which each call must leave nothing behind."""

    def __init__(self, walls, scratch, seconds):
        self.tool = Python(1, seconds, 128, 1, 1000, walls=walls)
        self.scratch, self.host = scratch, 0
        self("pass")
        self.host = self.host_pid()
        self.zygotes = psutil.Process(self.host).children(recursive=True)
        assert len(self.zygotes) == 1

    def host_pid(self):
        process = self.tool._hosts[0]._process
        assert process is not None
        return process.process.pid

    def __call__(self, program):
        begun = time.monotonic()
        result = self.tool(program)
        assert not self.host or time.monotonic() - begun < SECONDS + 5
        assert self.tool("print(6 * 7)") == ToolResult("42")
        assert self.host in (0, self.host_pid()), "the host was replaced"
        if self.host:
            assert psutil.Process(self.host).children(recursive=True) == self.zygotes
        assert list(self.scratch.iterdir()) == []
        assert len(result.text) < 2000 and SECRET not in result.text
        return result


@contextmanager
def watched(walls, scratch, seconds=SECONDS):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(scratch))
        patch.setenv("API_KEY", SECRET)
        found = Watched(walls, scratch, seconds)
    yield found
    found.tool.close()


@pytest.fixture(scope="module", params=["kernel", pytest.param("none", marks=pytest.mark.slow)])
def walls(request):
    return request.param


@pytest.fixture(scope="module")
def run(walls, tmp_path_factory):
    with watched(walls, tmp_path_factory.mktemp("scratch")) as found:
        yield found


@pytest.fixture(scope="module")
def run_within_walls(tmp_path_factory):
    with watched("kernel", tmp_path_factory.mktemp("scratch")) as found:
        yield found


@pytest.fixture(scope="module")
def run_briefly(walls, tmp_path_factory):
    with watched(walls, tmp_path_factory.mktemp("scratch"), seconds=0.4) as found:
        yield found


@pytest.mark.parametrize("name", LASTING)
def test_what_does_not_end_is_ended(run_briefly, name):
    result = run_briefly(LASTING[name])
    assert result.failed
    assert result.text.endswith("Error: the program was stopped: it took more than 0.4 seconds.")


@pytest.mark.parametrize("name", REFUSED)
def test_what_leads_out_is_refused(run_within_walls, name):
    result = run_within_walls(REFUSED[name])
    assert result.failed
    assert re.search("PermissionError|Permission denied|not permitted|not allowed|refused", result.text)


@pytest.mark.parametrize("name", ENDED)
def test_what_breaks_breaks_alone(run, name):
    program, said = ENDED[name]
    result = run(program)
    assert re.search(said, result.text), result


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_its_own_process_changes_no_other(run, name):
    result = run(HARMLESS[name])
    assert re.match("done", result.text), result


def test_the_environment_is_empty(run):
    named = json.loads(run("import os, json; print(json.dumps(sorted(os.environ)))").text)
    assert named == ["HOME", "OPENBLAS_NUM_THREADS", "TMPDIR"]


def test_files_of_a_run_cannot_be_read(run_within_walls, tmp_path):
    run = run_within_walls
    (tmp_path / "metrics.jsonl").write_text(SECRET)
    (tmp_path / "link").symlink_to(tmp_path / "metrics.jsonl")
    for name in ("metrics.jsonl", "link"):
        assert run(f"open({str(tmp_path / name)!r}).read()").failed
    assert run(f"open({str(tmp_path / 'new')!r}, 'w')").failed and not (tmp_path / "new").exists()


NATIVE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
parent = os.getppid()
calls = {{
    "socket": lambda: libc.socket(2, 1, 0),
    "socketpair": lambda: libc.socketpair(1, 1, 0, (ctypes.c_int * 2)()),
    "fork": lambda: libc.fork(),
    "vfork": lambda: libc.syscall(58),
    "clone3": lambda: libc.syscall(435, None, 0),
    "fork of x32": lambda: libc.syscall(0x40000039),
    "exec": lambda: libc.execl(b"/bin/true", b"true", None),
    "kill": lambda: libc.kill(parent, 9),
    "queue": lambda: libc.syscall(129, parent, 9, None),
    "kill by pidfd": lambda: libc.syscall(434, parent, 0),
    "signal by owner": lambda: libc.fcntl(1, 8, parent),
    "ptrace": lambda: libc.ptrace(16, parent, None, None),
    "memory of others": lambda: libc.syscall(310, parent, None, 0, None, 0, 0),
    "limit of files": lambda: libc.prlimit(0, 1, (ctypes.c_ulong * 2)(1 << 40, 1 << 40), None),
    "limit by a high address": lambda: libc.syscall(302, 0, 1, ctypes.c_void_p(1 << 32), None),
    "outlive the host": lambda: libc.prctl(1, 0),
    "read": lambda: libc.open(b"/etc/passwd", 0),
    "write": lambda: libc.open({outside!r}, 0o102, 0o600),
    "rights": lambda: libc.chmod({inside!r}, 0),
    "owner": lambda: libc.chown({inside!r}, 1, 1),
    "times": lambda: libc.utimes({inside!r}, None),
    "link": lambda: libc.link({inside!r}, b"mine"),
    "truncate": lambda: libc.truncate({inside!r}, 0),
    "delete": lambda: libc.unlink({inside!r}),
    "rename": lambda: libc.rename({inside!r}, b"mine"),
    "namespace": lambda: libc.unshare(0x10000000),
    "ring": lambda: libc.syscall(425, 1, None),
    "bpf": lambda: libc.syscall(321, 0, None, 0),
    "control of devices": lambda: libc.ioctl(1, 0x5412, b"x"),
}}
print([name for name, call in calls.items() if call() != -1])
"""


def test_the_kernel_keeps_native_code_in(tmp_path_factory, tmp_path):
    inside = tmp_path / "file"
    inside.write_text("text")
    before = inside.stat()
    program = NATIVE.format(outside=os.fsencode(tmp_path / "new"), inside=os.fsencode(inside))
    with watched("kernel", tmp_path_factory.mktemp("scratch")) as run:
        assert run(program) == ToolResult("[]")
    assert inside.read_text() == "text" and not (tmp_path / "new").exists()
    assert (inside.stat().st_mode, inside.stat().st_mtime) == (before.st_mode, before.st_mtime)
