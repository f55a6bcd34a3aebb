"""Commands: each builds objects from its arguments and runs them; no logic of its own."""

import sys
from types import TracebackType


def _in_one_line(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):  # while a command still loads; its end is in `cli.command`
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _in_one_line
