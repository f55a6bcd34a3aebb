"""A program without packages that knows OPENAI_BASE_URL: `python toy.py [MODE]`. It asks for the sum of its
task, says `;` after a wrong answer, and prints its reward. In other modes it does what no program should.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path


def post(path, body, key=None):
    url, key = os.environ["OPENAI_BASE_URL"] + path, key or os.environ["OPENAI_API_KEY"]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return error.read()


def complete(prompt, **more):
    said = json.loads(post("/completions", {"prompt": prompt, "model": "m", **more}))
    return said["choices"][0]["text"] if "choices" in said else said["error"]["message"]


def chat(messages, **more):
    said = json.loads(post("/chat/completions", {"messages": messages, **more}))
    return said["choices"][0]["message"] if "choices" in said else said["error"]["message"]


def sums(problem, tries=3):
    prompt, reward = problem["task"], 0.0
    for number in range(tries):
        text = complete(prompt)
        if problem["answer"] in text:
            reward = 1.0 - 0.25 * number
            break
        prompt += text + ";"
    print(reward)


def leave_at(mark, code):
    """Ends this program once there is a file."""
    while not mark.exists():
        time.sleep(0.01)
    os._exit(code)


def rewrite(task):
    for number in range(21):
        chat([{"role": "user", "content": task + "?" * number}])
    print(0.5)


def misbehave(mode, task, key):
    """Up to the first answer every mode is well behaved but those that never ask."""
    if mode in ("quiet", "hang"):
        return time.sleep(300 * (mode == "hang"))
    if mode == "early":  # an open request is left behind
        threading.Thread(target=complete, args=[task], daemon=True).start()
        leave_at(Path(sys.argv[2]), 0)
    if mode == "parallel":
        threading.Thread(target=complete, args=[task]).start()
        return complete("other")
    if mode == "chatty":  # it holds its errors open, too
        subprocess.Popen(["sh", "-c", "sleep 2; yes 2>&-; sleep 20"], start_new_session=True)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "rewrite":
        return rewrite(task)
    text = complete(task if mode != "other" else "other")
    if mode == "crash":
        sys.exit("no such thing\nas this")
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "endless":
        time.sleep(300)
    if mode == "edit":
        complete(task + "?" + text)
    if mode == "flood":
        for _ in range(10_000):
            complete(task)
    if mode == "many":
        for _ in range(9_999):
            complete(task)
        print(0.5)
    if mode == "binary":
        for stream in (2, 1):
            os.write(stream, bytes(range(256)) * 100)
        sys.exit(int(sys.argv[2]))
    if mode == "talk":
        while True:
            os.write(1, b"x" * 65536)
    if mode == "child":
        Path(sys.argv[2]).write_text(str(subprocess.Popen(["sleep", "300"]).pid))
        print(0.5)
    if mode == "impatient":  # at its first start
        if not (mark := Path(sys.argv[2])).exists():
            threading.Thread(target=leave_at, args=[mark, 1], daemon=True).start()
        print(complete(task + text + ";") and 0.5)
    if mode == "between":
        print("0.5", flush=True)
        complete(task + text + ";")
    if mode == "again":
        print(len(Path("/dev/stdin").read_bytes()))
    if mode == "bad":
        for body in (b"\xff\x00", b"[" * 100_000, b"{}", b'{"prompt": "a", "n": 2}', b"x" * 2_000_000):
            assert b"error" in post("/completions", body)
        for body in (b"NaN", b"true", b"[" * 100_000):
            assert b"error" in post("/reward", body, key)
        for reward in ("x", "1", True, None, float("nan"), float("inf"), -1.1e6, 10**400):
            assert b"a number from -1e+06 to 1e+06" in post("/reward", {"reward": reward}, key)
        assert b"error" in post("/completions", {"prompt": "a"}, "another")
        assert b"not OPENAI_API_KEY" in post("/completions", {"prompt": "a"}, key)
        assert post("/reward", {"reward": 0.25}, key) == b"{}"
        assert b"not the reward_key" in post("/reward", {"reward": 1.0})  # all that a tool of the policy has
    return None


if __name__ == "__main__":
    given = json.load(sys.stdin)
    if sys.argv[1:]:
        misbehave(sys.argv[1], given["task"], given["reward_key"])
    else:
        sums(given)
