"""A program of environment=agent without packages: it asks for the sum of its task, asks again after a wrong
answer, and prints its reward. `kill_and_resume.py` and `agents.py` start it.
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
    prompt, reward = problem["task"], 0.0
    for number in range(3):
        text = complete(prompt)
        if text.strip(";") == problem["answer"]:
            reward = 1.0 - 0.25 * number
            break
        prompt += text + f"{number};"
    print(reward)


if __name__ == "__main__":
    main()
