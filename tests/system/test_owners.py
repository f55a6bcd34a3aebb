"""No thread, task or future of the package fails without an owner: all places that begin one are listed."""

import ast
import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bapo_lightning.system.orphans import in_background, print_failure
from bapo_lightning.system.peers.loop import spawn

SOURCE = Path(__file__).resolve().parents[2] / "src"
FILES = sorted(SOURCE.rglob("*.py"))
OWNERS = {"bapo_lightning/system/orphans.py", "bapo_lightning/system/peers/loop.py"}
# What begins work whose exception nobody needs to meet.
BEGIN = {
    "Thread", "threading.Timer", "start_new_thread", "Process", "ProcessPoolExecutor", "Pool",
    "run_in_executor",
    "create_task", "ensure_future", "run_coroutine_threadsafe", "call_soon", "call_soon_threadsafe",
    "call_later", "call_at", "asyncio.gather",
}  # fmt: skip
# Functions that begin work, and where it is awaited or asked for `Future.result`.
ROLLOUTS = "bapo_lightning/data/rollouts"
AWAITED = {
    ("bapo_lightning/rollout/vllm/server.py", "_generate", "asyncio.gather"): None,  # at once
    (f"{ROLLOUTS}/conversations.py", "ask", "submit"): (f"{ROLLOUTS}/stream_scheduler.py", "_take_reply"),
    (f"{ROLLOUTS}/async_collector.py", "_run", "submit"): (f"{ROLLOUTS}/async_collector.py", "_may_begin"),
    ("bapo_lightning/rewards/functions.py", "_awaited", "run_coroutine_threadsafe"): None,  # at once
    ("bapo_lightning/extras/ray/launcher.py", "train", "submit"):
        ("bapo_lightning/extras/ray/launcher.py", "train"),
    ("bapo_lightning/tools/sweeps/launchers.py", "run_local", "submit"):
        ("bapo_lightning/tools/sweeps/launchers.py", "run_local"),
}  # fmt: skip


def functions(tree):
    """All functions of a file, outer ones before inner ones."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def called(node):
    function = node.func
    if not isinstance(function, ast.Attribute):
        return getattr(function, "id", "")
    whole = f"{getattr(function.value, 'id', '')}.{function.attr}"
    return whole if whole in BEGIN else function.attr


def of_task_group(call, function):
    """Whether it is a task of an `async with asyncio.TaskGroup() as NAME`, which awaits it."""
    items = [each for node in ast.walk(function) if isinstance(node, ast.AsyncWith) for each in node.items]
    calls = [item for item in items if isinstance(item.context_expr, ast.Call)]
    names = {item.optional_vars.id for item in calls if called(item.context_expr) == "TaskGroup"}
    return isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in names


def begun():
    """Yields (file, function, what begins) of all that begins work elsewhere than in the two owners."""
    for file in FILES:
        name, tree = str(file.relative_to(SOURCE)), ast.parse(file.read_text())
        if name in OWNERS:
            continue
        inside = {id(node): outer.name for outer in functions(tree) for node in ast.walk(outer)}
        outer_of = {id(node): outer for outer in reversed(functions(tree)) for node in ast.walk(outer)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or called(node) not in {*BEGIN, "submit"}:
                continue
            if called(node) == "create_task" and of_task_group(node, outer_of[id(node)]):
                continue
            yield name, inside.get(id(node), ""), called(node)


def test_whatever_begins_work_is_in_the_list():
    assert set(begun()) == set(AWAITED)


def test_the_futures_of_the_list_are_asked_for_their_results():
    for file, owner in filter(None, AWAITED.values()):
        tree = ast.parse((SOURCE / file).read_text())
        (found,) = [each for each in functions(tree) if each.name == owner]
        assert "result" in {called(node) for node in ast.walk(found) if isinstance(node, ast.Call)}, owner


def test_no_class_is_a_thread_or_a_process():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {getattr(base, "attr", getattr(base, "id", "")) for base in node.bases}
                assert not bases & {"Thread", "Timer", "Process"}, (file, node.name)


def test_the_failure_of_a_thread_reaches_its_owner_in_that_thread():
    met = []
    thread = in_background("worker", lambda: 1 / 0, lambda e: met.append((e, threading.current_thread())))
    thread.join()
    assert [(type(error), where) for error, where in met] == [(ZeroDivisionError, thread)]
    assert thread.daemon and thread.name == "worker"


def test_a_thread_that_only_reports_fails_in_one_line(capsys):
    in_background("signs", lambda: 1 / 0, print_failure).join()
    told = "the thread 'signs' failed (ZeroDivisionError: division by zero); all others continue\n"
    assert capsys.readouterr().err == told


def test_a_process_ends_with_a_thread_that_it_cannot_do_without():
    code = "import time; from bapo_lightning.system.orphans import end_process, in_background\n"
    code += "in_background('guard', lambda: 1 / 0, end_process); time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 70 and "the thread 'guard' failed, so this process ends" in done.stderr


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_failure_of_a_task_reaches_its_owner(is_cancelled):
    met = []

    async def fails():
        await asyncio.sleep(0)
        raise ValueError("boom")

    async def main():
        task = spawn(fails(), met.append)
        if is_cancelled:
            task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [str(error) for error in met] == ([] if is_cancelled else ["boom"])
