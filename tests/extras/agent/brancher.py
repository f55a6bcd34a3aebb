"""A program whose requests branch: `python brancher.py FILE`. It writes each request with its
answer to a file, and prints their number. `python brancher.py FILE choices` asks for two choices each time.
"""

import json
import sys

from toy import chat, post

TOOL = {"type": "function", "function": {"name": "look", "description": "Löoks<|im_end|>.", "parameters": {}}}


def user(text):
    return {"role": "user", "content": text}


def main(file, task):
    histories = []

    def ask(*messages, **more):
        histories.append([*messages, chat(list(messages), **more)])
        return histories[-1]

    first = ask(user(task))
    ask(*first, user("Two?"))  # continues
    ask(*first, user("Three?"))  # after the first answer
    ask(
        *first, user("Two?"), {"role": "assistant", "content": "Mine."}, user("Four?")
    )  # not the policy's words
    system = {"role": "system", "content": "A part."}
    part = ask(system, user("Five?"), tools=[TOOL])  # another prompt
    ask(*part, user("Six?"), tools=[TOOL])
    ask(*first, user("Three?"), histories[2][-1], user("Seven?"))  # after the answer to "Three?"
    with open(file, "w") as written:
        json.dump(histories, written)
    print(len(histories))


def choose(file, task):
    def ask(*messages):
        said = json.loads(post("/chat/completions", {"messages": messages, "n": 2}))
        found = [choice["message"] for choice in said["choices"]]
        histories.extend([*messages, each] for each in found)
        return found

    histories = []
    _, second = ask(user(task))
    ask(user(task), second, user("More?"))
    with open(file, "w") as written:
        json.dump(histories, written)
    print(len(histories))


if __name__ == "__main__":
    (choose if len(sys.argv) > 2 else main)(sys.argv[1], json.load(sys.stdin)["task"])
