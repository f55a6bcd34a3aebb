"""`make simulate` from the outside, and the keys that it refuses."""

from pathlib import Path

import pytest
from tests.commands import run_command
from tests.configuration.compositions import composed

from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.simulation.configured import read_simulate, world_of

ROOT = Path(__file__).resolve().parents[2]


def plain(*overrides):
    return composed("+simulate=default", *overrides)


@pytest.mark.slow
def test_the_command_ends_with_the_answer_and_a_page(tmp_path):
    done = run_command(
        "bapo_lightning.simulation.command", "regime=async", "scale.prompts_per_batch=8", "simulate.gpus=4",
        "simulate.num_batches=4", "simulate.skipped_batches=1", "simulate.trainer_shares=[0.5]",
        f"simulate.output={tmp_path}", cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("Best split: 2 of 4 GPUs train and 2 generate, with max_age=")
    assert lines[-1] == f"Page with pictures: {tmp_path}/index.md"
    assert {path.name for path in tmp_path.iterdir()} == {
        "index.md",
        "simulate.png",
        "cells.json",
        "cells.csv",
    }


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["simulate.gpus=0"], "simulate.gpus=0 must be a whole number of at least 1, or null"),
        (["simulate.lengths=long"], "simulate.lengths=long"),
        (["simulate.lengths=empirical"], "lengths=empirical needs the lengths of a run; write measured=RUN"),
        (["simulate.trainer_shares=[]"], "simulate.trainer_shares=[] tries nothing; leave it out"),
        (
            ["simulate.num_batches=3"],
            "skipped_batches=3 leaves nothing of num_batches=3; write num_batches=12",
        ),
        (["simulate.measured=x", "simulate.gpus=8"], "leave out gpus (GPUS=...) or measured"),
        (["regime=async", "simulate.max_ages=[2]"], "write max_ages of at least 3"),
        (["regime=reuse"], "regime=reuse reuses past groups, which is not simulated; write regime=async"),
    ],
)
def test_wrong_keys_are_named_with_the_remedy(overrides, complaint):
    with pytest.raises(ConfigError) as refused:
        read_simulate(plain(*overrides))
    assert complaint in str(refused.value)


def test_too_few_gpus_and_runs_that_are_none_are_refused():
    with pytest.raises(ConfigError, match=r"simulate\.gpus=1 cannot be split.*write GPUS=2 or more"):
        world_of(*read_simulate(plain("simulate.gpus=1")))
    with pytest.raises(DataError, match="nowhere"):
        world_of(*read_simulate(plain("simulate.measured=nowhere")))
