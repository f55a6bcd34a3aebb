"""Every example runs as its first line says, in an empty folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import run_command

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NOTEBOOKS = ["quickstart.ipynb", "tutorial.ipynb"]
SHOWN = {
    "minimal": "reward 0.",
    "lightning_trainer": "val/additions/avg@4",
    "fabric_objectives": "bounds [",
    "own_reward_and_data": "policy [",
    "trl_grpo_trainer": "bounds [0.90, 3.00]",
}

# A registry, and PPO-clip with a dual clip, in verl's signature.
VERL = """
import torch

LOSSES = {}
get_policy_loss_fn = LOSSES.get


def register_policy_loss(name):
    return lambda function: LOSSES.setdefault(name, function)


@register_policy_loss("vanilla")
def vanilla(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None):
    ratio = (log_prob - old_log_prob).exp()
    clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    found = torch.minimum(ratio * advantages, clipped * advantages)
    found = torch.where(advantages < 0, found.maximum(3.0 * advantages), found)
    return -(found * response_mask).sum() / config.global_batch_info["batch_num_tokens"], {}
"""


def run(file, folder):
    done = run_command(file, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_in_a_new_process(file, folder):
    command = [sys.executable, file]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_the_example_runs(name, tmp_path):
    file = EXAMPLES / f"{name}.py"
    assert f"`python examples/{name}.py`" in file.read_text()
    start = run_in_a_new_process if name == "minimal" else run
    assert SHOWN[name] in start(file, tmp_path)


@pytest.mark.slow
def test_the_loss_for_verl_is_called_with_verls_signature(tmp_path):
    """verl's registry is one of ours; docs/other_trainers.md has the output in verl's own environment."""
    core = tmp_path / "verl/trainer/ppo/core_algos.py"
    core.parent.mkdir(parents=True)
    core.write_text(VERL)
    (tmp_path / "run.py").write_text(
        f"import runpy, sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        f"runpy.run_path({str(EXAMPLES / 'verl_policy_loss.py')!r}, run_name='__main__')\n"
    )
    lines = run(tmp_path / "run.py", tmp_path).splitlines()
    assert lines[0].startswith("bapo loss ") and "actor/clip_high" in lines[0]
    assert lines[1].split()[1:] == lines[2].split()[1:]


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHOWN) | {"verl_policy_loss"}
    assert sorted(path.name for path in EXAMPLES.glob("*.ipynb")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_is_shipped_without_outputs(name):
    cells = json.loads((EXAMPLES / name).read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)
