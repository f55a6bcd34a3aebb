"""`python -m bapo_lightning COMMAND ...`, or `bapo-COMMAND ...`: the commands that `make` calls."""

from __future__ import annotations

import runpy
import sys
from difflib import get_close_matches

from bapo_lightning import __version__

# Command -> file of `cli/`, and what it does.
COMMANDS = {
    "train": ("train", "train a policy"),
    "rehearse": ("rehearse", "all parts of an experiment, in small, on this machine"),
    "data": ("data", "show what would be trained on"),
    "critic": ("critic", "train a critic of steps for algorithm=direct_advantage"),
    "plan": ("plan", "memory, work and time that a run would need"),
    "simulate": ("simulate", "best split of GPUs, and where staleness stops paying"),
    "eval": ("evaluate", "sample and judge held-out problems"),
    "eval-table": ("eval_table", "one table of several evaluations"),
    "export": ("export", "a checkpoint as a model folder"),
    "serve": ("serve", "vLLM servers for a run"),
    "sweep": ("sweep", "several runs, one table"),
    "report": ("report", "one table of runs"),
    "compare": ("compare", "runs side by side on one page"),
    "view": ("view", "a run as one page that follows it"),
    "record": ("record", "recorded curves for the summaries of other runs"),
}


def main() -> None:
    """Runs a command, or lists them."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        del sys.argv[1]
        runpy.run_module(f"bapo_lightning.cli.{COMMANDS[name][0]}", run_name="__main__", alter_sys=True)
    elif name == "--version":
        print(f"bapo-lightning {__version__}")
    elif name in ("--help", "-h"):
        print("usage: python -m bapo_lightning COMMAND ...     COMMAND --help tells more\n")
        print("\n".join(f"  {command:<12} {purpose}" for command, (_, purpose) in COMMANDS.items()))
    else:
        near = get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else "python -m bapo_lightning lists them"
        sys.exit(f"error: {name} is no command; {hint}")


if __name__ == "__main__":
    main()
