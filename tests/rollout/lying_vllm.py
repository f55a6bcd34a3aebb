"""A server that speaks as vLLM does, samples token 3 with log-prob -0.5, and lies at one place."""

import asyncio
import json

from tests.system.peers import hostile
from tests.system.peers.hostile import DEEP, Hostile, whole

TOKEN, LOGPROB = 3, -0.5
COMPLETIONS, STREAM = "/v1/completions", "/inference/v1/generate"


class LyingVLLM(Hostile):
    """`lie` is made of what would be right; it is told to `path` from the call with number `after` on."""

    def __init__(self, path="", lie=None, after=0):
        super().__init__()
        self.path, self.lie, self.after = path, lie, after
        self.version, self.calls, self.tokens = "default", 0, 0
        self.is_paused, self.stops_for_pauses = False, True

    def right(self, path, body):
        """What vLLM would say."""
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path in ("/pause", "/resume"):
            self.is_paused = path == "/pause"
        results = {"end_reload": [], "weight_digests": {"all": 2**70}}
        models = [{"id": "policy", "max_model_len": 2000}, {"id": "adapter", "max_model_len": None}]
        return {
            "/v1/models": {"data": models}, "/weight_info": {"weight_version": self.version},
            "/get_world_size": {"world_size": 1}, "/reset_prefix_cache": {"success": True},
            "/collective_rpc": {"results": [results.get((body or {}).get("method"))]},
            "/metrics": f'vllm:generation_tokens_total{{model="policy"}} {float(self.tokens)}\n',
            COMPLETIONS: self.completion((body or {}).get("max_tokens", 0)),
        }.get(path, {})  # fmt: skip

    def completion(self, count):
        self.tokens += count
        top = [{f"token_id:{TOKEN}": LOGPROB} for _ in range(count)]
        scores = {"token_logprobs": [LOGPROB] * count, "top_logprobs": top}
        choice = {"index": 0, "finish_reason": "length", "token_ids": [TOKEN] * count, "logprobs": scores}
        return {"choices": [choice]}

    async def reply(self, path, body, writer):
        path = path.split("?")[0]
        self.calls += path == self.path
        lies = path == self.path and self.calls > self.after
        if lies and self.lie in hostile.MODES:
            return await super().reply(f"/{self.lie}", body, writer)
        if path == STREAM:
            return await self.stream(body, writer, self.lie if lies else None)
        content = self.right(path, body)
        if lies:
            content = told(self.lie, content)
        if not isinstance(content, bytes):
            content = whole(content if isinstance(content, str) else json.dumps(content))
        writer.write(content)
        await writer.drain()

    async def stream(self, body, writer, lie):
        count = body["sampling_params"]["max_tokens"]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: a comment\n\n")
        versions = []
        for number in range(count):
            while self.is_paused and self.stops_for_pauses:
                await asyncio.sleep(0.001)
            versions.append(self.version)
            part = {"choices": [self.streamed_choice(versions, number + 1 == count)]}
            if lie is not None:
                part = told(lie, part)
            for each in part if isinstance(part, list) else [part]:
                line = each if isinstance(each, bytes) else json.dumps(each).encode()
                writer.write(b"data: " + line + b"\n\n")
            await writer.drain()
            await asyncio.sleep(0.002)
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()

    def streamed_choice(self, versions, is_last):
        top = [{"token_id": TOKEN, "logprob": LOGPROB}]
        content = [{"token_id": TOKEN, "logprob": LOGPROB, "top_logprobs": top}]
        choice = {"index": 0, "token_ids": [TOKEN], "finish_reason": None, "logprobs": {"content": content}}
        if is_last:
            starts = [i for i in range(len(versions)) if i == 0 or versions[i] != versions[i - 1]]
            ends = [*starts[1:], len(versions)]
            places = zip(starts, ends, strict=True)
            spans = [{"version": versions[start], "start": start, "end": end} for start, end in places]
            choice |= {"finish_reason": "length", "weight_versions": spans}
        return choice


def told(lie, said):
    """A lie that returns None changes what is said."""
    made = lie(said)
    return said if made is None else made


def put(*path, to):
    """A lie: the value at a path is another one."""

    def lie(said):
        *way, last = path
        for key in way:
            said = said[key]
        if to is ...:
            said.pop(last, None)
        else:
            said[last] = to

    return lie


def at_end(lie):
    """The lie, in the last part of a stream only."""

    return lambda part: lie(part) if part["choices"][0]["finish_reason"] is not None else None


def instead(said):
    """A lie: something else."""
    return lambda _: said


NUMBERS = {
    "nan": float("nan"), "infinite": float("inf"), "positive": 2.0, "float32 overflow": -1e300,
    "impossible": -9999.0, "text": "-1", "true": True, "null": None, "list": [-1.0],
}  # fmt: skip
TOKENS = {
    "negative": -1, "unknown": 10**6, "2^40": 2**40, "2^70": 2**70, "text": "3", "half": 3.5, "true": True,
    "nested": [3], "null": None,
}  # fmt: skip
CHOICE, SCORES = ("choices", 0), ("choices", 0, "logprobs")
ERROR = {"error": {"message": "\x1b]0;x\x07 dead\n\nengine"}}
LIES = {
    "no object": instead([1]), "null": instead("null"), "no choices": instead({}),
    "no choice": instead({"choices": []}) , "choices are numbers": instead({"choices": [1]}),
    "choices are null": instead({"choices": None}),
    "two choices": lambda said: {"choices": said["choices"] * 2},
    "no reason": put(*CHOICE, "finish_reason", to=...), "aborted": put(*CHOICE, "finish_reason", to="abort"),
    "no tokens": put(*CHOICE, "token_ids", to=...), "tokens are null": put(*CHOICE, "token_ids", to=None),
    "tokens are a text": put(*CHOICE, "token_ids", to="333"),
    "scores are null": put(*CHOICE, "logprobs", to=None),
    "scores are a list": put(*CHOICE, "logprobs", to=[1]), "nested": instead('{"choices": ' + DEEP + "}"),
    **{f"token is {name}": put(*CHOICE, "token_ids", 0, to=value) for name, value in TOKENS.items()},
}  # fmt: skip
COMPLETION_LIES = {
    **LIES, "stopped without a stop token": put(*CHOICE, "finish_reason", to="stop"),
    "more tokens": lambda said: LyingVLLM().completion(len(said["choices"][0]["token_ids"]) + 1),
    "fewer tokens": lambda said: LyingVLLM().completion(len(said["choices"][0]["token_ids"]) - 1),
    "nothing": lambda said: LyingVLLM().completion(0),
    "fewer scores": lambda said: said["choices"][0]["logprobs"]["token_logprobs"].pop() and None,
    "fewer places": lambda said: said["choices"][0]["logprobs"]["top_logprobs"].clear(),
    **{f"score is {k}": put(*SCORES, "token_logprobs", 0, to=v) for k, v in NUMBERS.items()},
    **{f"candidate is {k}": put(*SCORES, "top_logprobs", 0, to={"token_id:3": v}) for k, v in NUMBERS.items()
       if k != "impossible"},
    **{f"a candidate is named {k}": put(*SCORES, "top_logprobs", 0, to={k: -0.5})
       for k in ("x", "token_id:x", "token_id:-1", "token_id:1000000", "")},
}  # fmt: skip
STREAM_LIES = {
    **LIES, "no json": instead(b"{not json"), "no utf-8": instead(b'{"a": "\xff"}'),
    "half a character": instead(b'"\\ud800"'),
    "long line": instead(b"x" * (1 << 22)), "an error": instead(ERROR),
    "two tokens, one score": put(*CHOICE, "token_ids", to=[TOKEN] * 2),
    "another token than its score": put(*SCORES, "content", 0, "token_id", to=TOKEN + 1),
    "the request never ends": at_end(lambda part: [told(put(*CHOICE, "finish_reason", to=None), part)] * 40),
    "it ends early": put(*CHOICE, "finish_reason", to="length"),
    "it stops without a stop token": put(*CHOICE, "finish_reason", to="stop"),
    "it ends without its last token": at_end(instead([])),
    "no versions": at_end(put(*CHOICE, "weight_versions", to=...)),
    "versions are null": at_end(put(*CHOICE, "weight_versions", to=None)),
    "versions are a text": at_end(put(*CHOICE, "weight_versions", to="abc")),
    "versions without ends": at_end(put(*CHOICE, "weight_versions", to=[{"version": "1"}])),
    "a version is a number": at_end(put(*CHOICE, "weight_versions", 0, "version", to=1)),
    **{f"score is {k}": put(*SCORES, "content", 0, "logprob", to=v) for k, v in NUMBERS.items()},
    **{f"candidate is {k}": put(*SCORES, "content", 0, "top_logprobs", 0, "logprob", to=v)
       for k, v in NUMBERS.items() if k != "impossible"},
    **{f"candidate has token {k}": put(*SCORES, "content", 0, "top_logprobs", 0, "token_id", to=v)
       for k, v in TOKENS.items()},
}  # fmt: skip
