"""Makes one archive for a machine without a network: the tracked files, and the wheels that a run needs
beside the torch that is there already; `make bundle`. Standard library only.

    what is there -> wheels without code that pip chooses instead -> pip download of the rest -> archive

torch and its CUDA libraries have several GB, fit one driver, and are mostly installed where there is a GPU:
they are never in the archive. `--there` names what else needs no wheel. On the other side `make` finds the
folder `wheels` and asks no index (`offline.py`).

pip judges conditions such as `python_version < "3.12"` by the Python that it runs under: for another one, a
clone set up with that one (`make setup PYTHON=python3.13`) is exact.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import steps
from machine import SUPPORTED
from offline import FACTS, WHEELS, WITH_TRITON, accepted_torch
from steps import say, step, stop

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "outputs" / "bundle"
# The build back end; torch 2.11 goes with setuptools up to 81.
BUILD = "setuptools>=77,<82"
# Published as source only: built here, into a wheel for every machine.
SOURCE_ONLY = ("antlr4-python3-runtime",)
PUBLIC = (
    r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9.]+)?"  # others pip cannot compare
)
GLIBC = 28  # minor version of the oldest glibc that torch's own wheels run on

Versions = Mapping[str, str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the archive and says how large its parts are."""
    steps.NAME = "bundle"
    given = parsed(arguments)
    files = tracked_files()
    there = {"torch": f"{accepted_torch()[0]}.0"} | (versions_of(given.there) if given.there else {})
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUTPUT) as scratch:
        wheels = Path(scratch) / WHEELS
        wheels.mkdir()
        collect(wheels, Path(scratch) / "there", there, given, OUTPUT / "pip.log")
        facts = {"python": given.python, "platform": given.platform}
        (wheels / FACTS).write_text(json.dumps(facts) + "\n")
        name = f"bapo-lightning-{package_version()}"
        path = OUTPUT / f"{name}-python{given.python}-{given.platform}.tar.gz"
        with step(f"packing {shown(path)}"), tarfile.open(path, "w:gz") as archive:
            for file in files:
                archive.add(ROOT / file, f"{name}/{file}", recursive=False)
            archive.add(wheels, f"{name}/{WHEELS}")
        for line in sizes(files, wheels, path):
            say(line)
    say(f"on the other side: tar xf {path.name} && cd {name} && make gpu-check PYTHON=PYTHON_WITH_TORCH")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="make bundle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    running = "{}.{}".format(*sys.version_info)
    parser.add_argument(
        "--python", choices=sorted(SUPPORTED), default=running, help="of the other side; default: %(default)s"
    )
    parser.add_argument(
        "--platform",
        default=re.sub("[-.]", "_", sysconfig.get_platform()),
        help="of the other side: linux_x86_64, linux_aarch64, or a tag of pip's; default: %(default)s",
    )
    parser.add_argument(
        "--there",
        type=Path,
        metavar="FILE",
        help="output of `python -m pip list --format=freeze` there; what it lists is left out",
    )
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="NAME", help="more packages, with what they require"
    )
    return parser.parse_args(arguments)


def tracked_files() -> list[str]:
    """Returns the paths of the clone's tracked files that exist."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        stop("the source is what git tracks, and this folder is no clone of the repository")
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def package_version() -> str:
    """Returns this package's version."""
    text = (ROOT / "src" / "bapo_lightning" / "__init__.py").read_text()
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def normal(name: str) -> str:
    """Returns a distribution's name as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def versions_of(file: Path) -> dict[str, str]:
    """Returns what a list of pip's in the form of `NAME==VERSION` has, by normal name."""
    if not file.is_file():
        stop(f"--there {file}: there is no such file")
    found = {}
    for line in filter(None, map(str.strip, file.read_text().splitlines())):
        match = re.fullmatch(r"([A-Za-z0-9._-]+)===?(\S+)", line)
        if match is None:
            remedy = "write it with: python -m pip list --format=freeze"
            stop(f"--there {file}: {line[:60]!r} is not NAME==VERSION; {remedy}")
        if re.fullmatch(PUBLIC, match[2]):
            found[normal(match[1])] = match[2]
    return found


def requirements() -> list[str]:
    """Returns what the package requires at run time."""
    required: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return required


def without_code(folder: Path, name: str, version: str) -> str:
    """Writes a wheel that has a name, a version and nothing else, and returns the version.

    Its local part is on no index, so that pip can take no other wheel for it.
    """
    version += ".there" if "+" in version else "+there"
    info = f"{name.replace('-', '_')}-{version}"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{info}-py3-none-any.whl", "w") as wheel:
        for file, text in texts.items():
            wheel.writestr(f"{info}.dist-info/{file}", text)
    return version


def platforms(name: str) -> list[str]:
    """Returns pip's tags of a platform: for Linux those of every glibc up to that of torch's wheels."""
    if not name.startswith("linux_"):
        return [name]
    machine = name.removeprefix("linux_")
    return [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)] + [f"manylinux2014_{machine}"]


def collect(wheels: Path, stubs: Path, there: Versions, given: argparse.Namespace, log: Path) -> None:
    """Fills a folder with the wheels that are not there yet."""
    stubs.mkdir()
    log.write_text("")
    have = {name: without_code(stubs, name, version) for name, version in there.items()}
    constraints = stubs / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in have.items()))
    sources = [line for line in requirements() if line.partition("==")[0] in {*SOURCE_ONLY} - {*have}]
    to = ["--python-version", given.python, "--only-binary=:all:", "--dest", str(wheels)]
    to += [f"--platform={tag}" for tag in platforms(given.platform)]
    known = ["--find-links", str(stubs), "--find-links", str(wheels), "--constraint", str(constraints)]
    with step(
        f"fetching wheels for Python {given.python} on {given.platform} (200 MB if nothing is there)", log
    ):
        if sources:
            pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), *sources, log=log)
        pip("download", *to, *known, *requirements(), *given.also, log=log)
        pip("download", *to, "--no-deps", BUILD, log=log)
        if WITH_TRITON not in have:
            pip("download", *to, "--no-deps", WITH_TRITON, log=log)
    for stub in stubs.glob("*.whl"):
        (wheels / stub.name).unlink(missing_ok=True)


def pip(*arguments: str, log: Path) -> None:
    """Runs pip; its output goes to the log, and its failure ends the command with one line."""
    quiet = ("--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "30")
    command = [sys.executable, "-m", "pip", arguments[0], *quiet, *arguments[1:]]
    with log.open("a") as file:
        done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file)
    if not done.returncode:
        return
    text, whole = log.read_text(), f"(all of it: {shown(log)})"
    errors = [line for line in text.splitlines() if line.startswith("ERROR")] or ["pip failed"]
    if "NewConnectionError" in text or "connection broken" in text or "ReadTimeoutError" in text:
        stop(
            f"pip cannot reach a package index: {errors[-1]} {whole}. Make the bundle where there is a "
            "network, or set PIP_INDEX_URL to a mirror"
        )
    if clash := re.findall(r"^    The user requested \(constraint\) (\S+?)==", text, re.MULTILINE):
        stop(
            f"this package cannot use the versions of --there of {', '.join(dict.fromkeys(clash))} {whole}. "
            "Remove these lines from the file: the bundle then brings its own beside them"
        )
    stop(f"{errors[-1]}. Is it published for that Python and platform? {whole}")


def shown(path: Path) -> str:
    """Returns a path as seen from the clone."""
    return os.path.relpath(path, ROOT)


def sizes(files: Sequence[str], wheels: Path, path: Path) -> list[str]:
    """Returns how large the parts are."""
    size = {wheel.name.split("-")[0]: wheel.stat().st_size / 1e6 for wheel in wheels.glob("*.whl")}
    largest = sorted(size, key=lambda name: -size[name])[:8]
    named = ", ".join(f"{name} {size[name]:.0f}" for name in largest if size[name] >= 1)
    source = sum((ROOT / file).stat().st_size for file in files) / 1e6
    return [
        f"source: {len(files)} files, {source:.1f} MB",
        f"wheels: {len(size)}, {sum(size.values()):.1f} MB ({named})",
        f"{shown(path)}: {path.stat().st_size / 1e6:.1f} MB",
    ]


if __name__ == "__main__":
    main()
