"""A world that speaks OpenEnv's protocol without its packages: a number is to be found by guesses, and there
is a tool that doubles. `python -m tests.extras.openenv.guessing PORT LOG [CAPACITY]`.

The log has a line for each message of a session. Texts that misbehave: "die" ends the server, "sleep" gives
no answer, "fail" raises in the world, and "chance" shows something else each time.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from aiohttp import WSMsgType, web

NUMBERS = 10


def secret(seed):
    return (7 * seed + 3) % NUMBERS


class Refused(Exception):
    pass


class World:
    def __init__(self, number, log):
        self.number, self.log, self.seed, self.tries = number, log, 0, 0

    def answer(self, message):
        kind, data = message["type"], message.get("data", {})
        self.log(f"{self.number} {kind} {json.dumps(data)}")
        if kind == "reset":
            if "no" in data:
                raise Refused("EXECUTION_ERROR", "no such world")
            self.seed, self.tries = data.get("seed", 0), 0
            if "sums" in data:  # for a model that can read nothing else
                return {"text": f"{self.seed % 90}+{self.seed % 7}="}, None, False
            return {"text": f"Find my number from 0 to {NUMBERS - 1}."}, None, False
        if data.get("type") == "list_tools":
            return {"tools": [{"name": "double", "description": "Doubles {it}."}]}, None, False
        if data.get("type") == "call_tool":
            if data["tool_name"] != "double":
                return {"tool_name": "x", "result": None, "error": {"message": "no such tool"}}, None, False
            content = [{"type": "text", "text": str(2 * data["arguments"]["number"])}]
            return {"tool_name": "double", "result": {"content": content}}, 0.25, False
        return self.guess(data)

    def guess(self, data):
        if not isinstance(guess := data.get("message"), str):
            raise Refused("VALIDATION_ERROR", "Invalid message")
        if guess == "die":
            os._exit(1)
        if guess == "fail":
            raise Refused("EXECUTION_ERROR", "the world broke")
        if guess == "chance":
            return {"text": os.urandom(4).hex()}, None, False
        self.tries += 1
        if guess.strip().isdigit() and int(guess) == secret(self.seed):
            return {"text": "Found."}, 1.0, True
        return {"text": f"Not {guess}, after {self.tries}.", "nothing": None}, -0.125, False


def app(log_path, capacity):
    sessions = []

    def log(line):
        with Path(log_path).open("a") as file:
            file.write(line + "\n")

    async def serve(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if len([each for each in sessions if not each.closed]) >= capacity:
            error = {"message": f"{capacity} sessions", "code": "CAPACITY_REACHED"}
            await socket.send_json({"type": "error", "data": error})
            await socket.close()
            return socket
        world = World(f"{os.getpid()}.{len(sessions)}", log)
        sessions.append(socket)
        async for message in socket:
            asked = json.loads(message.data) if message.type is WSMsgType.TEXT else {"type": "close"}
            if asked["type"] == "close":
                break
            if asked.get("data", {}).get("message") == "sleep":
                await asyncio.sleep(60)
            try:
                observation, reward, is_done = world.answer(asked)
                data = {"observation": observation, "reward": reward, "done": is_done}
                await socket.send_json({"type": "observation", "data": data})
            except Refused as error:
                data = {"code": error.args[0], "message": error.args[1]}
                if data["code"] == "VALIDATION_ERROR":
                    data["errors"] = [{"loc": ["message"], "msg": "Field required"}]
                await socket.send_json({"type": "error", "data": data})
        await socket.close()
        return socket

    served = web.Application()
    served.router.add_get("/ws", serve)
    return served


if __name__ == "__main__":
    web.run_app(
        app(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1000),
        host="127.0.0.1", port=int(sys.argv[1]), print=None, shutdown_timeout=0.1,
    )  # fmt: skip
