"""A program whose requests branch: `python brancher.py FILE`. It writes each request with its
answer to a file, and prints their number.
"""

import json
import sys

from toy import chat

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


if __name__ == "__main__":
    main(sys.argv[1], json.load(sys.stdin)["task"])
