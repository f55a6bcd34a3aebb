"""A client elsewhere as a program of environment=agent: `PYTHON remote.py FOLDER`.

Each conversation becomes a file of FOLDER: the problem (id, task, answer, source, metadata, reward_key) with
base_url and api_key of its endpoint. A client takes a file by renaming it to another ending, asks the
endpoint, may post the reward, and removes the file, which ends the conversation. A file of a process that has
ended is removed. This file needs no package.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

OFFERED, POLL_SECONDS = ".json", 0.1


def remove_old(folder: Path) -> None:
    """Removes files, under any ending, of processes that are gone."""
    for path in folder.iterdir():
        if path.stem.isdecimal():
            try:
                os.kill(int(path.stem), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
            except (PermissionError, OverflowError):
                pass  # of another user, or no number of a process


def main() -> None:
    """Offers the conversation and waits until no file of it is left."""
    folder, pid = Path(sys.argv[1]), str(os.getpid())
    folder.mkdir(parents=True, exist_ok=True)
    remove_old(folder)
    offer = json.load(sys.stdin)
    offer |= {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    written = folder / f"{pid}.new"
    try:
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(offer, file)
        written.rename(folder / f"{pid}{OFFERED}")
        while any(folder.glob(f"{pid}.*")):
            time.sleep(POLL_SECONDS)
    finally:
        for path in folder.glob(f"{pid}.*"):
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
