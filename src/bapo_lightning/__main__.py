"""`python -m bapo_lightning COMMAND ...`, or `bapo-COMMAND ...`: the commands that `make` calls."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from bapo_lightning import __version__
from bapo_lightning.system.errors import nearest
from bapo_lightning.system.printable import print_printable


def commands_of_algorithms() -> dict[str, tuple[str, str]]:
    """Returns command -> file and purpose for algorithms with a command, from `command.py`'s first line."""
    commands = {}
    for file in sorted(Path(__file__).parent.glob("algorithms/*/command.py")):
        name, purpose = file.read_text().partition(".")[0].removeprefix('"""').split(": ")
        commands[name] = (f"algorithms.{file.parent.name}.command", purpose)
    return commands


# Command -> file of `tools/commands/`, or another module, and its purpose.
COMMANDS = {
    "train": ("cli.train", "train a policy"),
    "rehearse": ("rehearse", "all parts of an experiment, in small, on this machine"),
    "data": ("data", "show what would be trained on"),
    "plan": ("plan", "memory, work and time that a run would need"),
    "simulate": ("extras.simulation.command", "best split of GPUs, and where staleness stops paying"),
    "eval": ("evaluate", "sample and judge held-out problems"),
    "eval-table": ("eval_table", "one table of several evaluations"),
    "export": ("export", "a checkpoint as a model folder"),
    "serve": ("serve", "vLLM servers for a run"),
    "sweep": ("cli.sweep", "several runs, one table"),
    "compare": ("compare", "runs side by side on one page"),
    "view": ("view", "a run as one page that follows it"),
    "doctor": ("doctor", "what is wrong in a run or another trainer's log, and what to do"),
    "probe": ("probe", "whether a server's log-probs belong to a model folder"),
    "replay": ("replay", "one recorded update again, under any algorithm"),
    "record": ("record", "recorded curves for the summaries of other runs"),
    **commands_of_algorithms(),
}


def module_of(command: str) -> str:
    """Returns the module that a command runs."""
    file, _ = COMMANDS[command]
    return f"bapo_lightning.{file}" if "." in file else f"bapo_lightning.tools.commands.{file}"


def main() -> None:
    """Runs a command, or lists them."""
    print_printable()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        del sys.argv[1]
        runpy.run_module(module_of(name), run_name="__main__", alter_sys=True)
    elif name == "--version":
        print(f"bapo-lightning {__version__}")
    elif name in ("--help", "-h"):
        print("usage: python -m bapo_lightning COMMAND ...     COMMAND --help shows more\n")
        print("\n".join(f"  {command:<12} {purpose}" for command, (_, purpose) in COMMANDS.items()))
    else:
        near = nearest(name, COMMANDS)
        hint = f"did you mean {near[0]}?" if near else "python -m bapo_lightning lists them"
        sys.exit(f"error: {name} is not a command; {hint}")


if __name__ == "__main__":
    main()
