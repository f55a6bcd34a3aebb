"""A client that no command starts: it takes a conversation from a folder, and asks its endpoint."""

import json
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.agent import remote
from bapo_lightning.extras.agent.endpoint import Endpoint
from bapo_lightning.extras.agent.program import Limits
from bapo_lightning.extras.agent.world import Agent
from bapo_lightning.types import Problem

PROBLEM = Problem("p", "Hi", "7")


def post(offer, path, body, key="api_key"):
    headers = {"Authorization": f"Bearer {offer[key]}"}
    request = urllib.request.Request(offer["base_url"] + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def taken(folder):
    """The conversation that a client takes, and its file."""
    while not (offered := [*folder.glob(f"*{remote.OFFERED}")]):
        time.sleep(0.02)
    mine = offered[0].with_suffix(".mine")
    offered[0].rename(mine)
    assert mine.stat().st_mode & 0o77 == 0
    return json.loads(mine.read_text()), mine


@pytest.fixture
def environment(tmp_path):
    command = [sys.executable, remote.__file__, str(tmp_path / "offers")]
    made = Agent(Endpoint(command, limits=Limits(seconds=10.0)))
    yield made
    made.close()


def test_a_client_takes_a_conversation_asks_and_posts_its_reward(environment, tmp_path):
    heard = []

    def client():
        offer, file = taken(tmp_path / "offers")
        prompt = offer["task"]
        for _ in range(2):
            prompt += post(offer, "/completions", {"prompt": prompt})["choices"][0]["text"] + ";"
        heard.append(prompt)
        post(offer, "/reward", {"reward": float(offer["answer"] in prompt)}, "reward_key")
        file.unlink()

    worker = threading.Thread(target=client)
    worker.start()
    first = environment.respond(Turn(PROBLEM, "6", 0, False, None))
    last = environment.respond(Turn(PROBLEM, "7", 1, False, first.state))
    worker.join(60)
    assert (first.text, heard) == (";", ["Hi6;7;"])
    assert (last.is_done, last.score) == (True, 1.0)
    assert not [*(tmp_path / "offers").iterdir()]


def test_a_client_that_is_late_loses_its_conversation(environment, tmp_path):
    def client():
        offer, _ = taken(tmp_path / "offers")
        post(offer, "/completions", {"prompt": offer["task"]})

    worker = threading.Thread(target=client)
    worker.start()
    reply = environment.respond(Turn(PROBLEM, "6", 0, False, None))
    worker.join(60)
    assert reply.is_lost and reply.state["lost"] == "late"
    assert not [*(tmp_path / "offers").iterdir()]


def test_files_of_processes_that_are_gone_are_removed(tmp_path):
    kept = [tmp_path / "1.mine", tmp_path / "notes.json", tmp_path / f"{'9' * 30}.json"]
    for path in (*kept, tmp_path / "999999999.json"):
        path.write_text("")
    remote.remove_old(Path(tmp_path))
    assert {*tmp_path.iterdir()} == {*kept}
