"""A cluster whose head node is gone: each call of ours ends with a sentence, before Ray ends the process."""

import os
import signal
import socket
import threading
from types import SimpleNamespace

import psutil
import pytest
from tests.commands import Command, wait_until

from bapo_lightning.extras.ray import joining
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.run_folder.record import read_run

GONE = "the Ray cluster at 127.0.0.1:.* is gone"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A head node and a raylet that are pretended, and which a test may close."""
    head, raylet = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    path = str(tmp_path / "raylet")
    raylet.bind(path)
    raylet.listen()
    address = f"127.0.0.1:{head.getsockname()[1]}"
    node = SimpleNamespace(gcs_address=address, raylet_socket_name=path)
    monkeypatch.setattr(joining.ray._private.worker, "_global_node", node)
    monkeypatch.setattr(joining, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.05)
    joining.check_cluster()
    accepted, _ = raylet.accept()
    yield SimpleNamespace(head=head, raylet=raylet, accepted=accepted)
    for each in (head, raylet, accepted):
        each.close()
    joining.raylet_connection.cache_clear()
    joining._gone.clear()


def test_the_loss_of_the_head_node_is_an_error_after_it_had_time_to_come_back(cluster, monkeypatch):
    address = cluster.head.getsockname()
    cluster.head.close()
    monkeypatch.setattr(joining, "HEAD_SECONDS", 60)
    back = threading.Timer(0.1, lambda: setattr(cluster, "head", socket.create_server(address)))
    back.start()
    joining.check_cluster()
    back.join()
    cluster.head.close()
    monkeypatch.setattr(joining, "HEAD_SECONDS", 0.2)
    with pytest.raises(EngineError, match=GONE):
        joining.check_cluster()
    monkeypatch.setattr(joining, "HEAD_SECONDS", 1e9)
    with pytest.raises(EngineError, match=GONE):
        joining.check_cluster()


def test_the_end_of_rays_process_on_this_machine_is_an_error_at_once(cluster, monkeypatch):
    monkeypatch.setattr(joining, "HEAD_SECONDS", 1e9)
    cluster.raylet.close()
    cluster.accepted.close()
    with pytest.raises(EngineError, match=GONE):
        joining.check_cluster()


def test_a_call_that_waits_for_a_lost_head_node_ends_and_others_give_their_value_or_error(cluster):
    assert joining.while_alive(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        joining.while_alive(lambda: 1 / 0)
    cluster.head.close()
    with pytest.raises(EngineError, match=GONE):
        joining.while_alive(threading.Event().wait)


def test_ray_waits_for_a_lost_head_node_in_this_process_alone(monkeypatch):
    monkeypatch.setenv("RAY_other", "1")
    with joining.patient():
        assert joining.PATIENCE.items() <= os.environ.items()
    assert not joining.PATIENCE.keys() & os.environ.keys()


@pytest.mark.slow
def test_ranks_on_nodes_are_stopped_once_when_the_head_node_is_gone(cluster, monkeypatch, capfd):
    from bapo_lightning.extras.ray import nodes

    sent = []
    look = SimpleNamespace(remote=lambda: ([None], []))
    send = SimpleNamespace(remote=lambda *signal: sent.append(signal))
    both = [nodes.Node(SimpleNamespace(look=look, send_signal=send), 1) for _ in range(2)]
    monkeypatch.setattr(nodes.ray, "get", lambda made, timeout: made)
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.0)
    for node in both:
        node.look()
    assert sent == []
    cluster.head.close()
    for node in both * 3:
        node.look()
    assert sent == [(0, signal.SIGTERM)] * 2
    assert capfd.readouterr().err.count("is gone") == 1


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize("victims", [("gcs_server",), ("gcs_server", "raylet")])
def test_a_run_whose_head_node_dies_ends_with_one_error_and_its_status(victims, tmp_path):
    run = tmp_path / "run"
    options = (
        *("experiment=additions", "debug=fast", "scale.num_rollout_batches=500", "rollout=ray"),
        *("rollout.engine.actors=1", "callbacks.checkpoint.every=100000", "cpu_threads=1"),
    )
    command = Command("bapo_lightning.cli.train", [*options, f"run_folder={run}"])
    rows = run / "metrics.jsonl"
    wait_until(lambda: rows.exists() and rows.read_text().count("\n") > 2, command)
    for process in psutil.Process(command.pid).children(recursive=True):
        if process.name() in victims:
            process.kill()
    output, errors = command.communicate()
    assert command.returncode == 1
    assert errors.count("error: the Ray cluster at") == 1, output + errors
    assert "Traceback" not in errors and "The program will terminate" not in errors
    record = read_run(run)
    assert record.manifest["status"] == "failed" and "is gone" in record.manifest["error"]
    (last,) = (run / "checkpoints").iterdir()
    assert last.name == f"update{rows.read_text().count(chr(10)):06d}"
