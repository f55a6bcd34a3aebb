"""Deaths of vLLM servers that are pretended: each costs one start of that server, and nothing of another."""

from pathlib import Path

import pytest
from tests.builders import random_policy
from tests.rollout.contract import SAMPLING, requests

from bapo_lightning.rollout.engine import EngineDied
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.vllm import server
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.vllm.server import VLLMServerEngine
from bapo_lightning.rollout.weight_sync import Proof, SyncReport
from bapo_lightning.rollout.weight_transport import SharedMemoryTransport
from bapo_lightning.system.errors import EngineError


class Server:
    """A server's process and what its client sees of it. `deaths`: calls in which it dies."""

    log = Path("log")

    def __init__(self, number):
        self.url = f"http://127.0.0.1:{number}"
        self.lost, self.is_up, self.was_started, self.starts, self.version = False, False, False, 0, "default"
        self.deaths, self.failing_starts, self.connections = [], 0, 0

    def is_running(self):
        return self.is_up

    def end(self):
        return "its process was ended by SIGKILL" if self.was_started and not self.is_up else None

    def start(self, seconds):
        self.starts += 1
        if self.failing_starts:
            self.failing_starts -= 1
            raise EngineError("it does not start")
        self.is_up, self.was_started, self.version = True, True, "default"

    def stop(self):
        self.is_up = self.was_started = False

    def kill(self):
        self.is_up = False

    def call(self, name):
        if name in self.deaths:
            self.deaths.remove(name)
            self.kill()
        if not self.is_up:
            self.lost = True
            raise EngineDied(f"{self.url} does not answer at {name}")

    def weight_version(self):
        self.call("weight_version")
        return self.version

    def update_weight_version(self, version):
        self.call("update_weight_version")
        self.version = version

    def call_workers(self, method, *arguments):
        self.call(method)
        return [[]] if method == "end_reload" else [None]

    def model(self):
        self.call("model")
        return "policy", 64

    def is_healthy(self):
        return False  # it answers late: a busy server is not a dead one

    def resume(self):
        self.call("resume")

    def reset_prefix_cache(self, with_running=False):
        self.call("reset_prefix_cache")


class Transport(SharedMemoryTransport):
    def connect(self, client, source, wanted):
        client.connections += 1


class Sync:
    """Loads and asks for nothing."""

    def load(self, source, engine, version, vocab_size):
        engine.load_weights(source, version)
        return Proof(source, version, [], {}, {}, 0.0, 0.0, 0.0)

    def prove(self, proof):
        return SyncReport(proof.version, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def servers():
    return [Server(number) for number in range(2)]


@pytest.fixture
def engine(servers, monkeypatch):
    monkeypatch.setattr(server, "require_vllm", lambda: None)
    monkeypatch.setattr(server, "local_servers", lambda *arguments: servers)
    by_url = {each.url: each for each in servers}
    monkeypatch.setattr(server, "ServerClient", lambda url, timeout: by_url[url])
    made = VLLMServerEngine("unused", VLLMOptions(max_model_len=64), Transport(), "unused", num_servers=2)
    restarting = RestartingEngine(made, Sync(), 24, max_restarts=3)
    restarting.hand_over(random_policy(), 3)
    assert [each.starts for each in servers] == [1, 1] == [each.connections for each in servers]
    return restarting


def starts(servers):
    return [each.starts - 1 for each in servers]


MOMENTS = ["weight_version", "begin_reload", "load_part", "end_reload", "update_weight_version"]
MOMENTS += ["reset_prefix_cache", "resume"]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("moment", [None, *MOMENTS])
def test_a_death_around_a_sync_costs_one_start_of_the_dead_server(engine, servers, victim, moment, capsys):
    if moment is None:
        servers[victim].kill()
    else:
        servers[victim].deaths.append(moment)
    engine.hand_over(random_policy(), 4)
    assert starts(servers) == [int(number == victim) for number in range(2)]
    assert [each.connections for each in servers] == [1 + int(number == victim) for number in range(2)]
    assert [each.version for each in servers] == ["4", "4"] and engine.version == 4
    assert engine.take_counts() == {"rollout/engine_restarts": 1}
    words = "its process was ended by SIGKILL" if moment is None else "does not answer"
    (message,) = [line for line in capsys.readouterr().err.splitlines() if "lost" in line]
    assert f"{servers[victim].url}" in message and words in message and "holds weights" not in message


def test_a_death_in_a_call_costs_one_start_of_the_dead_server(engine, servers):
    servers[1].kill()
    assert engine.generate_once(requests(2), SAMPLING) == {}
    engine.restart()
    assert starts(servers) == [0, 1]
    engine.hand_over(random_policy(), 3)
    assert starts(servers) == [0, 1] and engine.take_counts() == {"rollout/engine_restarts": 1}


@pytest.mark.parametrize("failing", [0, 1])
def test_servers_that_die_are_started_together_and_one_that_fails_again_alone(engine, servers, failing):
    for each in servers:
        each.kill()
    servers[1].failing_starts = failing
    engine.hand_over(random_policy(), 4)
    assert starts(servers) == [1, 1 + failing]
    assert engine.take_counts() == {"rollout/engine_restarts": 1 + failing}


def test_more_deaths_than_restarts_end_with_the_last_reason(engine, servers):
    for version in range(4, 7):
        servers[0].kill()
        engine.hand_over(random_policy(), version)
    servers[0].kill()
    words = r"http://127.0.0.1:0: its process was ended by SIGKILL; its output is in log"
    with pytest.raises(EngineError, match=rf"died after 3 restarts \({words}"):
        engine.hand_over(random_policy(), 7)
    assert starts(servers) == [3, 0]


def test_a_server_that_starts_while_the_engine_is_closed_is_ended(engine, servers):
    start = servers[0].start

    def late(seconds):
        start(seconds)
        engine.close()

    servers[0].start = late
    servers[0].kill()
    with pytest.raises(EngineError, match="was closed"):
        engine.hand_over(random_policy(), 4)
    assert not any(each.is_up for each in servers)
