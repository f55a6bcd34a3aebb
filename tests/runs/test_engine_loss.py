"""A run whose engine is lost for good."""

import os

import pytest
from run_comparison import differences
from tests.commands import train

from bapo_lightning.run_folder.checkpoint import list_checkpoints

OWN = (
    "rollout.engine._target_=tests.rollout.odd_hf_engines.Mortal",
    "cpu_threads=1",
    "callbacks.checkpoint.every=1000",
    "callbacks.validation.every=0",
    "scale.num_rollout_batches=4",
)
REGIMES = [("regime=replay",), ("regime=partial",), ("regime=replay", "algorithm=dapo")]


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES, ids=["replay", "partial", "dynamic-sampling"])
def test_it_ends_with_one_line_and_a_checkpoint_and_goes_on_as_if_nothing_had_been(tmp_path, regime):
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    assert train(*OWN, *regime, f"run_folder={whole}").returncode == 0
    done = train(*OWN, *regime, f"run_folder={lost}", env={**os.environ, "ODD_DEATH": "2"})
    assert done.returncode == 1 and "error: no engine is left" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list_checkpoints(lost / "checkpoints")) == 1
    done = train(*OWN, *regime, f"run_folder={lost}", "resume=auto")
    assert done.returncode == 0, done.stderr
    (found,) = differences(whole, lost)
    assert found.startswith("metrics of update ")  # of one: the pass that was lost counts as a pass
