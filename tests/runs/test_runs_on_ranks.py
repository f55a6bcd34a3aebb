"""Runs on gloo ranks: the numbers of one process, also after a resume on others; a mistake is told once."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ranks
import run_comparison
from tests.commands import run_command, train_to_end

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "cases"), [
    ("algorithm=bapo", ["ddp 2 -> ddp 2", "fsdp 2 -> single"]),
    ("experiment=sums", ["ddp 2 -> single"]),  # conversations
])  # fmt: skip
def test_two_ranks_train_as_one_process_does_and_so_do_those_that_go_on_from_them(
    choice, cases, monkeypatch, capsys
):
    train_as_one_process_does(choice, cases, monkeypatch, capsys)


def train_as_one_process_does(choice, cases, monkeypatch, capsys):
    """The bounds are those of `bench/ranks.py`: 1e-6 relative for weights, 1e-4 for metrics, texts equal."""
    stand_in = SimpleNamespace(run=forked, PIPE=None, STDOUT=None)
    monkeypatch.setattr(run_comparison, "subprocess", stand_in)
    monkeypatch.setattr(sys, "argv", ["ranks.py", "--cases", *cases, "--set", choice])
    assert ranks.main() == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[:-1]] == cases


def forked(command, env, **captured):
    _, option, module, *arguments = command
    assert option == "-m"
    return run_command(module, *arguments, env=env, forks=True)


@pytest.mark.slow
def test_generating_ranks_go_on_from_a_checkpoint_at_which_their_engines_held_the_weights(tmp_path):
    """As after each validation: all ranks take part when the engines get the weights again."""
    own = (
        *("trainer.accelerator=cpu", "trainer.devices=2", "strategy=ddp", "regime=async"),
        *("callbacks.checkpoint.every=1", "callbacks.validation.every=1"),
    )
    train_to_end(tmp_path / "run", 1, *own, forks=True)
    printed = train_to_end(tmp_path / "run", 2, *own, "resume=auto", forks=True)
    assert "resumed" in printed and "finished after" in printed


@pytest.mark.slow
def test_rank_0_alone_reports_a_mistake(tmp_path):
    arguments = [
        "trainer.accelerator=cpu", "trainer.devices=2", "strategy=ddp", "model.path=nowhere/to/be/found",
        f"output_root={tmp_path}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "bapo_lightning.cli.train", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("error:") == 1 and done.stderr.count("nowhere/to/be/found") >= 1
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())
