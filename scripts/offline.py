"""Sets up a machine without a network from a bundle (`make_bundle.py`). Standard library only.

    the interpreter that has torch -> .venv, which sees that one's packages -> the bundle's wheels beside them

Nothing that is there already is changed: what the bundle has in another version is found first in `.venv`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from machine import answer
from steps import stop

ROOT = Path(__file__).resolve().parent.parent
WHEELS = "wheels"  # the folder of a bundle that makes it one
FACTS = "bundle.json"  # for which Python and platform it is
WITH_TRITON = "liger-kernel"  # what the kernels of torch are compared with; its other needs are torch alone
ASK_PYTHON = "import sys; print('%d.%d' % sys.version_info[:2])"
ASK_TORCH = "from importlib.metadata import version; print(version('torch'))"
ASK_FOLDERS = "import sys; print('\\n'.join(path for path in sys.path if path.endswith('-packages')))"


def is_bundle() -> bool:
    """Whether this folder is an unpacked bundle, so that no index is asked."""
    return (ROOT / WHEELS / FACTS).is_file()


def pip_options() -> tuple[str, ...]:
    """Options of pip by which a bundle's wheels are all that it sees."""
    return ("--no-index", "--find-links", str(ROOT / WHEELS)) if is_bundle() else ()


def accepted_torch() -> tuple[str, str]:
    """Returns the least version of torch that the package accepts, and the first that it does not."""
    text = (ROOT / "pyproject.toml").read_text()
    ((least, end),) = re.findall(r'^    "torch>=([\d.]+),<([\d.]+)"', text, re.MULTILINE)
    return least, end


def use_python_with_torch(script: str) -> None:
    """Continues under another interpreter if this one is not what the bundle is for, or has no torch."""
    python = json.loads((ROOT / WHEELS / FACTS).read_text())["python"]
    fault = unfit(sys.executable, python)
    if not fault:
        return
    other = shutil.which("python" + python)
    if other and not unfit(other, python):
        os.execv(other, [other, script])
    torch = " to below ".join(accepted_torch())
    stop(
        f"this bundle is for Python {python} with torch {torch}, and {fault}. Name the interpreter that has "
        "them: make setup PYTHON=FOLDER/bin/python; or make the bundle for this one: make bundle "
        'ARGS="--python ..."'
    )


def unfit(interpreter: str, python: str) -> str:
    """Returns why an interpreter cannot be used; empty if it can."""
    if (found := answer(interpreter, "-c", ASK_PYTHON)) != python:
        return f"{interpreter} is Python {found}"
    torch = answer(interpreter, "-c", ASK_TORCH)
    least, end = map(numbers, accepted_torch())
    if not torch:
        return f"{interpreter} has no torch"
    return "" if least <= numbers(torch) < end else f"{interpreter} has torch {torch}"


def numbers(version: str) -> tuple[int, ...]:
    """Major and minor of a version, to be compared."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def share_packages(venv: Path) -> str:
    """Lets an environment see the packages of the running interpreter, after its own; returns their torch.

    `--system-site-packages` would not do: where torch is in an environment itself, it shows the system's.
    """
    folders = answer(sys.executable, "-c", ASK_FOLDERS).splitlines()
    (own,) = venv.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
    (own / "beside.pth").write_text("".join(lines))
    return answer(venv / "bin" / "python", "-c", ASK_TORCH)
