"""A program without packages that knows OPENAI_BASE_URL. It asks for the sum of its task,
says `;` after a wrong answer, and prints its reward.
"""

import json
import os
import sys
import urllib.request


def post(path, body):
    url = os.environ["OPENAI_BASE_URL"] + path
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=300) as answer:
        return answer.read()


def complete(prompt, **more):
    return json.loads(post("/completions", {"prompt": prompt, "model": "m", **more}))["choices"][0]["text"]


def main(tries=3):
    problem = json.load(sys.stdin)
    prompt, reward = problem["task"], 0.0
    for number in range(tries):
        text = complete(prompt)
        if problem["answer"] in text:
            reward = 1.0 - 0.25 * number
            break
        prompt += text + ";"
    print(reward)


if __name__ == "__main__":
    main()
