"""A program of environment=agent without packages: it asks for the sum of its task and, after a wrong answer,
twice again, the last time as if it had not asked before, and prints its reward. `kill_and_resume.py` and
`agents.py` start it.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request


def complete(prompt: str) -> str:
    body = json.dumps({"model": "policy", "prompt": prompt}).encode()
    key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/completions", body, key)
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def main() -> None:
    problem = json.load(sys.stdin)
    texts: list[str] = []
    for added in ("", "0;", "1;"):
        texts.append(complete(problem["task"] + "".join(texts[:1]) + added))
        if texts[-1].strip(";") == problem["answer"]:
            break
    is_right = texts[-1].strip(";") == problem["answer"]
    print(is_right * (1.25 - 0.25 * len(texts)))


if __name__ == "__main__":
    main()
