"""Whatever a vLLM server says, a run gets right tokens, or one sentence about that server in time."""

import time
from array import array
from pathlib import Path

import pytest
import torch
from tests.rollout import lying_vllm
from tests.rollout.lying_vllm import COMPLETIONS, LOGPROB, STREAM, TOKEN, LyingVLLM, instead, put
from tests.system.peers import hostile
from tests.system.peers.hostile import serving, whole

import bapo_lightning
from bapo_lightning.rollout.engine import EngineDied, GenerationRequest, SamplingParams, StreamCall
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.vllm.server import VLLMServerEngine
from bapo_lightning.rollout.weight_transport import SharedMemoryTransport
from bapo_lightning.system.errors import ConfigError, EngineError

MODEL = str(Path(bapo_lightning.__file__).parent / "tiny_worlds/additions/model")
SAMPLING = SamplingParams(1.0, (1,), num_candidates=2)
LENGTH, DEADLINE, LIMIT = 6, 1.0, 60
HTTP_LIES = {mode: mode for mode in hostile.MODES}
COMPLETION_LIES, STREAM_LIES = lying_vllm.COMPLETION_LIES | HTTP_LIES, lying_vllm.STREAM_LIES | HTTP_LIES
REFUSALS = {"deep_error", "escapes_in_error", "login"}  # statuses below 500: the server lives and says no


class Weights:
    """A policy of one weight."""

    def named_weights(self, wanted=None):
        yield "weight", torch.zeros(2)


def requests(count=4):
    return {row: GenerationRequest(array("i", [3, 4, 5]), LENGTH, row) for row in range(count)}


def engine_of(server, deadline=DEADLINE):
    given = MODEL, VLLMOptions(max_model_len=2000), SharedMemoryTransport(), "/unused", [server.url]
    return VLLMServerEngine(*given, deadline_seconds=deadline, start_seconds=LIMIT)


def test_a_server_that_uses_the_long_rotary_factors_is_refused(monkeypatch):
    monkeypatch.setattr("bapo_lightning.rollout.vllm.server.longest_short", lambda config: 1999)
    with serving(LyingVLLM()) as server, pytest.raises(ConfigError, match=r"with --max-model-len=1999"):
        engine_of(server)


def check(segments):
    for segment in segments:
        assert set(segment.token_ids) <= {TOKEN} and set(segment.logprobs) <= {LOGPROB}
        assert len(segment.token_ids) == len(segment.logprobs)


def generate(engine):
    engine.load_weights(Weights(), 0)
    made = engine.generate(list(requests().values()), SAMPLING)
    check(each.segment for each in made)
    return [len(each.segment.token_ids) for each in made]


def stream(engine, versions=1):
    engine.load_weights(Weights(), 0)
    lengths, ended, call = dict.fromkeys(requests(), 0), set(), StreamCall(requests(), steps=2)
    for version in range(1, 100):
        for row, each in engine.stream(call, SAMPLING).items():
            check(each.segments)
            lengths[row] += sum(len(segment.token_ids) for segment in each.segments)
            ended |= {row} if each.finish is not None else set()
        if len(ended) == len(lengths):
            return list(lengths.values())
        if version < versions:
            engine.load_weights(Weights(), version)
        call = StreamCall({}, steps=2)
    raise AssertionError(f"{set(lengths) - ended} never ended")


def death(server, work):
    """What `work` ends with: one sentence that names the server, in time."""
    with serving(server):
        engine, start = engine_of(server), time.monotonic()
        try:
            with pytest.raises(EngineError) as raised:
                work(engine)
            text = str(raised.value)
            assert time.monotonic() - start < LIMIT
            assert server.url in text and text.splitlines() == [text] and len(text) < 800
            return raised.value
        finally:
            engine.close()


@pytest.mark.parametrize("work", [generate, stream, lambda engine: stream(engine, versions=3)])
def test_a_server_that_is_well_is_sampled_from(work):
    with serving(LyingVLLM()) as server:
        engine = engine_of(server, deadline=LIMIT)
        assert work(engine) == [LENGTH] * len(requests())
        engine.close()


@pytest.mark.parametrize("name", COMPLETION_LIES)
def test_a_completion_that_cannot_be_is_the_death_of_its_server(name):
    error = death(LyingVLLM(COMPLETIONS, COMPLETION_LIES[name], after=2), generate)
    assert isinstance(error, EngineDied) != (name in REFUSALS)


@pytest.mark.parametrize("name", STREAM_LIES)
def test_a_part_of_a_stream_that_cannot_be_is_the_death_of_its_server(name):
    error = death(LyingVLLM(STREAM, STREAM_LIES[name], after=2), stream)
    assert isinstance(error, EngineDied) != (name in REFUSALS)


def test_tokens_of_other_versions_end_the_run():
    def lie(part):
        for span in part["choices"][0].get("weight_versions", ()):
            span["version"] = "7"

    error = death(LyingVLLM(STREAM, lie), stream)
    assert not isinstance(error, EngineDied) and "labelled wrongly" in str(error)


def test_a_server_that_samples_while_it_is_paused_is_noticed():
    class Slow(Weights):
        def named_weights(self, wanted=None):
            time.sleep(1.0)
            yield from super().named_weights()

    def work(engine):
        engine.load_weights(Weights(), 0)
        call = StreamCall({0: GenerationRequest(array("i", [3]), 1000, 0)}, steps=1)
        engine.stream(call, SAMPLING)
        engine.load_weights(Slow(), 1)
        engine.stream(StreamCall({}, steps=1), SAMPLING)

    server = LyingVLLM()
    server.stops_for_pauses = False
    assert "keeps sampling while it is paused" in str(death(server, work))


CONTROL = {
    "/weight_info": [{}, [1], None, *({"weight_version": value} for value in (None, 1, ["0"]))],
    "/collective_rpc": [{}, None, [1], {"results": None}, {"results": []}, {"results": 5}, {"results": [5]},
                        {"results": [{"a": "x"}]}],
    "/reset_prefix_cache": [{}, None, [1], {"success": "yes"}, {"success": 1}, {"success": None}],
    "/v1/models": [{}, None, [1], *({"data": value} for value in ([], {"a": 1}, [1], [{"id": "p"}])),
                   *({"data": [{"id": "p", "max_model_len": value}]} for value in ("64", -1, 1.5, True)),
                   {"data": [{"id": "p", "max_model_len": 2**40}]},
                   {"data": [{"id": 5, "max_model_len": 64}]}],
    "/metrics": ["vllm:generation_tokens_total x\n", "vllm:generation_tokens_total nan\n",
                 "vllm:generation_tokens_total 1e999\n", whole(b"vllm:generation_tokens_total \xff\n")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "lie"),
    [(path, instead("null" if lie is None else lie)) for path, lies in CONTROL.items() for lie in lies]
    + [(path, mode) for path in CONTROL for mode in hostile.MODES if path != "/metrics"],
)
def test_an_answer_of_the_control_plane_that_cannot_be_is_the_death_of_its_server(path, lie):
    server = LyingVLLM(path, lie, after=path in ("/weight_info", "/collective_rpc", "/v1/models"))
    if path == "/metrics":  # is looked at while requests run
        hang = server.right
        server.right = lambda asked, body: "" if asked == COMPLETIONS else hang(asked, body)
    error = death(server, generate)
    lives = lie in {*REFUSALS, "list_in_error", "odd_status", "endless_error"}
    assert isinstance(error, EngineDied) != lives


@pytest.mark.parametrize("kind", ["counts nothing", "counts backwards", "counts for ever", "counts NaN"])
def test_a_server_that_only_counts_tokens_is_dead(kind):
    server = LyingVLLM(COMPLETIONS, "hang")
    right, steps = server.right, iter(range(10**9))

    def counting(path, body):
        number = next(steps)
        values = {"counts backwards": 1e9 - number, "counts for ever": 1e5 * number, "counts NaN": "NaN"}
        value = values.get(kind, 5)
        return f"vllm:generation_tokens_total {value}\n" if path == "/metrics" else right(path, body)

    server.right = counting
    assert isinstance(death(server, generate), EngineDied)


def test_no_weights_are_taken_for_proven_by_digests_that_cannot_be():
    for value in ("x", None, 1.5, True):
        server = LyingVLLM("/collective_rpc", put("results", 0, "all", to=value))
        with serving(server):
            engine = engine_of(server)
            with pytest.raises(EngineDied, match="cannot be used"):
                engine.weight_digests(0)
