"""Ctrl-C ends every command with one line and 130, wherever it comes."""

import argparse
import subprocess
import sys
from importlib import import_module

import pytest
from tests.commands import said

from bapo_lightning.__main__ import COMMANDS, module_of
from bapo_lightning.runs import command as shared


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_in_one_line(name, monkeypatch, capsys):
    module = import_module(module_of(name))
    monkeypatch.setattr(sys, "argv", [name, "checkpoint=somewhere"])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", interrupt)
    monkeypatch.setattr(shared, "installed_folders", interrupt)  # before Hydra composes
    monkeypatch.setattr(module, "_read_arguments", interrupt, raising=False)  # of `rehearse`
    assert module.main() == 130
    assert capsys.readouterr().err == "interrupted\n"


LATE = """
from bapo_lightning.runs.command import hydra_command
@hydra_command("train")
def main(config):
    raise KeyboardInterrupt
import sys
sys.exit(main())
"""


@pytest.mark.parametrize(
    "program",
    [LATE, "import bapo_lightning.cli\nraise KeyboardInterrupt"],
    ids=["in its work", "while it loads"],
)
def test_hydra_and_the_imports_do_not_show_where_it_was(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said(done.stderr) == ["interrupted"] and done.returncode in (130, -2)
