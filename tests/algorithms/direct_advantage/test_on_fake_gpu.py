"""A run with a critic keeps to its device."""

from pathlib import Path

import pytest
from tests.runs.test_fake_gpu import done, keeps_to_its_device

CRITIC = "algorithms/direct_advantage/critic.py"


@pytest.mark.slow
def test_a_run_with_a_critic_keeps_to_its_device(tmp_path: Path) -> None:
    own = "tests.algorithms.direct_advantage.on_fake_gpu"
    (run,) = done(tmp_path, ["with_critic algorithm=direct_advantage"], own)
    keeps_to_its_device(run, {f"{CRITIC}:state_logits", f"{CRITIC}:values"})
