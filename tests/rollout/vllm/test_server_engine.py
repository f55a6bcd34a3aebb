"""A vLLM server of our own: the contract, its death, its silence."""

import os
import signal
import threading
import time

import psutil
import pytest
from tests.builders import VOCAB_SIZE, random_policy
from tests.rollout.contract import SAMPLING, SmallSteps, requests, tokens
from tests.rollout.stream_contract import Stream, StreamContract, by_number
from tests.rollout.vllm.vllm_contract import VLLMContract
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from bapo_lightning.rollout.engine import EngineDied, GenerationRequest
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.vllm.server import VLLMServerEngine
from bapo_lightning.rollout.vllm.server_process import server_arguments
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.rollout.weight_transport import SharedMemoryTransport
from bapo_lightning.system.errors import ConfigError, EngineError


@pytest.fixture(scope="module")
def engine(folder, options, tmp_path_factory):
    # Parts far smaller than the model: several of them make one push.
    transport = SharedMemoryTransport(part_megabytes=0)
    logs = str(tmp_path_factory.mktemp("logs"))
    made = VLLMServerEngine(folder, options, transport, logs, cpu_threads=1, deadline_seconds=8)
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


class TestVLLMServerEngine(VLLMContract, StreamContract, SmallSteps):
    """Everything is inherited."""

    stops_after_a_call = False


def server_pids(engine):
    """Processes of the servers that the engine started and that are up."""
    return [process.pid for process in engine._processes if process.pid is not None]


def kill_during_generation(engine, victim, number=signal.SIGKILL):
    """Signals a process of the server, 0 or -1, while it samples; returns requests and what is raised."""
    (server,) = server_pids(engine)

    def kill():
        below = psutil.Process(server).children(recursive=True)
        os.kill([server, *(child.pid for child in below)][victim], number)

    threading.Timer(0.5, kill).start()
    many = [GenerationRequest(request.token_ids, 59, seed) for seed, request in enumerate(requests(1) * 3000)]
    with pytest.raises(EngineDied) as raised:
        engine.generate(many, SAMPLING)
    return many, raised.value


@pytest.mark.drill
@pytest.mark.parametrize("victim", [0, -1], ids=["http server", "worker"])
def test_a_killed_server_is_noticed_restarted_and_goes_on_as_if_nothing_had_happened(engine, victim):
    before = engine.generate(requests(20), SAMPLING)
    start = time.monotonic()
    many, death = kill_during_generation(engine, victim)
    assert time.monotonic() - start < 30
    assert len(death.finished) < len(many) and engine.version == -1
    engine.restart()
    with pytest.raises(EngineError, match="before it was given weights"):
        engine.generate(requests(1), SAMPLING)
    WeightSync(tolerance=1e-3).push(random_policy(), engine, 3, VOCAB_SIZE)
    after = engine.generate(requests(20), SAMPLING)
    assert tokens(after) == tokens(before)


@pytest.mark.drill
@pytest.mark.parametrize(("number", "words"), [
    (signal.SIGKILL, "EngineCore|payload|disconnected|reset"), (signal.SIGSTOP, "nothing for 8 s"),
])  # fmt: skip
def test_a_stream_ends_with_its_server_and_begins_anew_on_the_next_one(engine, number, words):
    (server,) = server_pids(engine)
    stream, many = Stream(engine), [GenerationRequest(each.token_ids, 59, 0) for each in requests(40)]
    stream.call(by_number(many), steps=1)
    os.kill(psutil.Process(server).children(recursive=True)[-1].pid, number)
    with pytest.raises(EngineDied, match=words):
        for _ in range(1000):
            stream.call()
    assert engine.version == -1
    engine.restart()
    WeightSync(tolerance=1e-3).push(random_policy(), engine, 3, VOCAB_SIZE)
    again = Stream(engine)
    again.call(by_number(requests(5)))
    again.to_the_end()
    assert [again.tokens[row] for row in range(5)] == tokens(engine.generate(requests(5), SAMPLING))


def test_a_server_that_a_killed_run_left_paused_samples_again_with_the_first_weights(engine, options, folder):
    (client,) = engine._clients
    client.pause()
    own = {"urls": [client.url], "deadline_seconds": 8}
    other = VLLMServerEngine(folder, options, SharedMemoryTransport(), "unused", **own)
    other.load_weights(random_policy(), 3)
    assert len(other.generate(requests(3), SAMPLING)) == 3


@pytest.mark.drill
def test_a_server_that_hangs_is_dead_after_its_deadline(engine):
    start = time.monotonic()
    _, death = kill_during_generation(engine, -1, signal.SIGSTOP)
    assert time.monotonic() - start < 30
    assert "nothing for 8 s" in str(death)
    start = time.monotonic()
    with pytest.raises(EngineDied, match="did not answer"):
        engine.load_weights(random_policy(), 4)
    assert time.monotonic() - start < 60
    restarting = RestartingEngine(engine, WeightSync(tolerance=1e-3), VOCAB_SIZE, max_restarts=1)
    restarting.load_weights(random_policy(), 3)
    assert restarting.take_counts() == {"rollout/engine_restarts": 1}
    assert len(restarting.generate(requests(5), SAMPLING)) == 5


def test_a_second_client_finds_the_server_by_its_url(engine, options, folder):
    (url,) = [client.url for client in engine._clients]
    VLLMServerEngine(folder, options, SharedMemoryTransport(), "unused", urls=[url])
    with pytest.raises(ConfigError, match="serves at most 64 tokens, prompt and response need 65"):
        VLLMServerEngine(folder, VLLMOptions(max_model_len=65), SharedMemoryTransport(), "unused", urls=[url])


@pytest.mark.drill
def test_a_server_that_another_started_anew_is_not_sampled_before_it_has_weights(engine, options, folder):
    (process,) = engine._processes
    client = VLLMServerEngine(folder, options, SharedMemoryTransport(), "unused", urls=[process.url])
    client.load_weights(random_policy(), 5)
    before = client.generate(requests(5), SAMPLING)
    process.start(deadline_seconds=300)
    with pytest.raises(EngineDied, match="version 5 was sent: the server was restarted"):
        client.generate(requests(5), SAMPLING)
    client.restart()
    client.load_weights(random_policy(), 5)
    assert client.generate(requests(5), SAMPLING) == before
    process.start(deadline_seconds=300)
    with pytest.raises(EngineDied, match="the server was restarted"):
        client.load_weights(random_policy(), 6)
    client.restart()
    client.load_weights(random_policy(), 6)
    assert tokens(client.generate(requests(5), SAMPLING)) == tokens(before)
    engine._connected.clear()  # it knows nothing of the other client
    engine.load_weights(random_policy(), 3)


def test_an_unreachable_server_is_an_error_at_once(options):
    with pytest.raises(ConfigError, match=r"no vLLM server answers at http://127\.0\.0\.1:9"):
        VLLMServerEngine("unused", options, SharedMemoryTransport(), "unused", urls=["http://127.0.0.1:9"])


def test_vllms_own_parser_reads_every_option_as_it_was_given(folder):
    extra = {
        "hf_overrides": {"head_dtype": "model", "rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        "compilation_config": {"cudagraph_capture_sizes": [1, 2]}, "cudagraph_capture_sizes": [1, 8],
        "reasoning_parser": None, "enable_chunked_prefill": True,
    }  # fmt: skip
    options = VLLMOptions(max_model_len=64, dtype="bfloat16", extra=extra)
    flags, _ = server_arguments(folder, options, "nccl", cpu_threads=1)
    read = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    assert read.hf_overrides == extra["hf_overrides"]
    assert read.compilation_config.cudagraph_capture_sizes == [1, 2]
    assert read.cudagraph_capture_sizes == [1, 8]
    assert read.enable_chunked_prefill and read.max_model_len == 64
    assert read.weight_transfer_config.backend == "nccl"


def test_a_server_that_cannot_start_says_why(folder, tmp_path):
    options = VLLMOptions(max_model_len=10_000)
    engine = VLLMServerEngine(folder, options, SharedMemoryTransport(), str(tmp_path))
    with pytest.raises(EngineError, match=r"ended while it started.*max_model_len"):
        engine.load_weights(random_policy(), 0)
    assert server_pids(engine) == []
