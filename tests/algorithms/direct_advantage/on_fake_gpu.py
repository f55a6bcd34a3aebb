"""A run with a critic on a fake GPU: `python -m tests.algorithms.direct_advantage.on_fake_gpu DIR CASE`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.runs.on_fake_gpu import KINDS, composed, main, whole

from bapo_lightning.algorithms.direct_advantage.make import make_critic


def with_critic(folder: Path, *overrides: str) -> dict[str, Any]:
    """A run with a critic that is trained for it."""
    critic = {"to": str(folder / "critic"), "epochs": 1, "num_problems": 4}
    with redirect_stdout(StringIO()):
        made = make_critic({**composed([], folder / "unused"), "critic": critic})
    return whole(folder / "run", *overrides, f"algorithm.stages.step_advantages.critic={made}")


if __name__ == "__main__":
    KINDS["with_critic"] = with_critic
    main(*sys.argv[1:])
