"""Commands: each builds objects from its arguments and runs them, without further logic."""

import sys
from types import TracebackType


def _in_one_line(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):  # while a command still loads; later `runs.command` handles it
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _in_one_line
