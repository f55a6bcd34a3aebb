"""Files of the package that one rollout batch with its first update executes, in the simplest run there is:
`python -m tests.batch_trace [KEY=VALUE ...]` prints them, in the order of their first call.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.library import fit

SOURCE = f"{Path(__file__).resolve().parents[1] / 'src/bapo_lightning'}{os.sep}"


def executed(*overrides: str) -> list[str]:
    """Returns the files, from `next_batch` of a run's first batch to the next one."""
    found: dict[str, None] = {}
    real, calls = RolloutDataModule.next_batch, 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and not code.co_qualname.startswith("<"):
            found[code.co_filename.removeprefix(SOURCE)] = None

    def next_batch(self: RolloutDataModule) -> object:
        nonlocal calls
        calls += 1
        traced = note if calls == 1 else None
        threading.setprofile(traced)
        sys.setprofile(traced)
        return real(self)

    RolloutDataModule.next_batch = next_batch  # type: ignore[method-assign, assignment]
    try:
        fit("experiment=quickstart", "debug=fast", *overrides)
    finally:
        RolloutDataModule.next_batch = real  # type: ignore[method-assign]
    return list(found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        files = executed(f"run_folder={folder}/run", *sys.argv[1:])
    print(*files, sep="\n", file=sys.stderr)
