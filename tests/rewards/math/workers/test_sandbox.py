import subprocess
import sys

import pytest

ENTER = (
    "from bapo_lightning.rewards.math.workers.worker import Refused, Sandbox\n"
    "sandbox = Sandbox(64)\nsandbox.enter()\n"
)


def inside(code):
    """What `code` prints in a process that has entered the sandbox."""
    wrapped = (
        f"{ENTER}try:\n    {code}\nexcept (Refused, MemoryError) as error:\n    print(type(error).__name__, "
        "sandbox.refusals)"
    )
    # From bytes in the command line, so compiled before the sandbox is entered.
    done = subprocess.run([sys.executable, "-c", wrapped], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("code", "event"),
    [
        ("eval('1 + 1')", "compile"), ("exec('pass')", "compile"), ("compile('1', 'x', 'eval')", "compile"),
        ("open('/dev/null', 'w')", "open"), ("open('/proc/self/environ')", "open"),
        ("__import__('os').system('true')", "os.system"), ("__import__('os').fork()", "os.fork"),
        ("__import__('os').remove('nothing')", "os.remove"), ("__import__('os').kill(1, 0)", "os.kill"),
        ("__import__('_socket').socket()", "socket.__new__"),
        ("__import__('_posixsubprocess').fork_exec", ""),
        ("__import__('_ctypes').dlopen(None, 0)", "ctypes.dlopen"),
    ],
)  # fmt: skip
def test_what_a_verifier_has_no_need_of_is_refused(code, event):
    assert inside(code) == (f"Refused ['{event}']" if event else "")


def test_memory_beyond_the_limit_is_refused():
    assert inside("print(len(bytearray(32 << 20)))") == str(32 << 20)
    assert inside("bytearray(128 << 20)") == "MemoryError []"


def test_modules_can_still_be_imported():
    assert inside("import colorsys; print(colorsys.__name__)") == "colorsys"
