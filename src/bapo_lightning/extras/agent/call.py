"""A Python function as a program of environment=agent: `PYTHON call.py MODULE:FUNCTION`.

The function gets the problem (a dictionary: id, task, answer, source, metadata, reward_key), finds
OPENAI_BASE_URL and OPENAI_API_KEY in the environment, and returns the score, or None. This file needs no
package.
"""

import json
import sys
from importlib import import_module


def main() -> None:
    """Calls the function."""
    module, _, name = sys.argv[1].partition(":")
    sys.path.insert(0, "")
    score = getattr(import_module(module), name)(json.load(sys.stdin))
    if score is not None:
        print(f"\n{float(score)!r}")


if __name__ == "__main__":
    main()
