"""Becomes a command that ends with the process that started it: `python -m ...launch COMMAND...`."""

from __future__ import annotations

import os
import sys

from bapo_lightning.system.orphans import end_with_parent, starter

if __name__ == "__main__":
    end_with_parent(starter())
    os.execvp(sys.argv[1], sys.argv[1:])
