"""The NCCL transport between vLLM's own engines on both sides. What stands in is NCCL itself: a queue between
two threads.
"""

import queue
import threading
from dataclasses import replace

import pytest
import torch
from gpu.checks import Machine
from gpu_check import checks_of
from tests.bench.faults_of_checks import read_rehearsal
from tests.builders import logprobs, random_policy
from tests.configuration.compositions import found
from tests.rollout.contract import SAMPLING, requests
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer import nccl_engine

from bapo_lightning.rollout.engine import MERGED, EngineDied, Wanted
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.nccl import NCCLTransport, StreamedWeights
from bapo_lightning.system.errors import EngineError


class Group:
    """A communicator of the trainer and one worker; `is_stuck`: its receiver died."""

    def __init__(self):
        self.sent, self.is_stuck, self.destroyed = queue.Queue(), False, threading.Event()

    def broadcast(self, tensor, src):
        if self.is_stuck:
            assert self.destroyed.wait(20), "the broadcast was not aborted"
        self.sent.put(tensor.clone())

    def destroy(self):
        self.destroyed.set()


class Client:
    """A server's control calls, in this process."""

    def __init__(self, engine):
        self.engine, self.failure, self.version = engine, None, ""

    def get_world_size(self):
        return 1

    def init_weight_transfer_engine(self, init_info):
        self.engine._llm.collective_rpc("init_weight_transfer_engine", args=(init_info,))

    def call_workers(self, method, *arguments):
        if method == "load_transferred" and self.failure is not None:
            raise self.failure
        return list(self.engine._llm.collective_rpc(method, args=arguments))

    def update_weight_version(self, version):
        self.version = version


class Watched:
    """A policy that counts the passes over its weights, and may leave some out."""

    def __init__(self, policy, left_out=()):
        self.policy, self.left_out, self.passes = policy, left_out, 0

    def weight_shapes(self):
        return (each for each in self.policy.weight_shapes() if each[0] not in self.left_out)

    def named_weights(self, wanted=MERGED):
        self.passes += 1
        return (each for each in self.policy.named_weights(wanted) if each[0] not in self.left_out)


def produce(iterator, group, src, post_iter_func, **sizes):
    for item in iterator:
        group.broadcast(post_iter_func(item), src)


def consume(iterator, group, src, post_unpack_func, **sizes):
    for name, (shape, dtype) in iterator:
        tensor = group.sent.get(timeout=20)
        assert (list(tensor.shape), tensor.dtype) == (shape, dtype)
        post_unpack_func([(name, tensor)])


@pytest.fixture(scope="module")
def engine(folder, options):
    extra = {"weight_transfer_config": WeightTransferConfig(backend="nccl")}
    made = VLLMLocalEngine(folder, replace(options, extra=extra))
    made.load_weights(random_policy(), version=1)
    yield made
    made.close()


@pytest.fixture
def groups(monkeypatch):
    """The communicators that were made."""
    made, ready = [], threading.Event()

    def open_on_worker(init_info, parallel_config):
        assert ready.wait(20)
        ready.clear()
        return made[-1]

    def open_on_trainer(init_info):
        made.append(Group())
        ready.set()
        return made[-1]

    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", open_on_trainer)
    monkeypatch.setattr(nccl_engine, "worker_init_process_group", open_on_worker)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", produce)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_consumer", consume)
    return made


def agrees(engine, policy):
    engine._llm.reset_prefix_cache()
    asked = requests(4)
    for request, made in zip(asked, engine.generate(asked, SAMPLING), strict=True):
        expected = logprobs(policy, list(request.token_ids), list(made.segment.token_ids))
        if max(abs(a - b) for a, b in zip(made.segment.logprobs, expected, strict=True)) > 1e-4:
            return False
    return True


def test_the_shipped_configuration_passes():
    assert found("rollout=vllm_server", "rollout/engine/transport=nccl") == []


def test_what_is_announced_is_what_comes_and_takes_no_pass_over_the_weights():
    policy = random_policy()
    for dtype in (None, "bfloat16"):
        watched = Watched(policy)
        weights = StreamedWeights(watched, Wanted(dtype=dtype))
        announced = [(meta.name, meta.dtype, meta.shape) for meta in weights.metadata()]
        assert watched.passes == 0
        assert [(name, weight.dtype, tuple(weight.shape)) for name, weight in weights] == announced
        assert {meta.dtype for meta in weights.metadata()} == {getattr(torch, dtype or "float32")}


def test_each_send_brings_the_weights_of_its_own_source(engine, groups):
    transport, client = NCCLTransport(), Client(engine)
    sources = [Watched(random_policy(seed)) for seed in (5, 6)]
    transport.connect(client, sources[0], MERGED)
    for version, source in enumerate(sources, 2):
        transport.send(source, [client], version, MERGED)
        assert (source.passes, client.version) == (1, str(version))
        assert agrees(engine, source.policy)
    assert len(groups) == 1 and not agrees(engine, sources[0].policy)


def test_a_weight_that_did_not_come_is_an_error(engine, groups):
    transport, client = NCCLTransport(), Client(engine)
    source = Watched(random_policy(5), left_out=["model.norm.weight"])
    transport.connect(client, source, MERGED)
    with pytest.raises(EngineError, match=r"left 1 weights unset, first 'model\.norm\.weight'"):
        transport.send(source, [client], 2, MERGED)


def test_a_receiver_that_died_ends_the_broadcast_and_its_successor_gets_all(engine, groups):
    transport, client, source = NCCLTransport(), Client(engine), Watched(random_policy(7))
    transport.connect(client, source, MERGED)
    groups[0].is_stuck, client.failure = True, EngineDied("it is gone")
    with pytest.raises(EngineDied, match="it is gone"):
        transport.send(source, [client], 2, MERGED)
    assert groups[0].destroyed.is_set() and client.version == ""
    client.failure = None
    transport.connect(client, source, MERGED)
    transport.send(source, [client], 2, MERGED)
    assert len(groups) == 2 and agrees(engine, source.policy)


def test_the_gpu_check_rehearses_it(monkeypatch):
    (check,) = (each for each in checks_of("vllm") if each.title == "vLLM's server")
    read_rehearsal(check, Machine("cuda"), monkeypatch)
