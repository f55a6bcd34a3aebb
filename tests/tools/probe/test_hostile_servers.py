"""The probe of a server that lies, hangs or redirects ends in time, in words, and keeps the API key."""

import json
import time

import pytest
from tests.system.peers import hostile
from tests.system.peers.hostile import DEEP, Hostile, serving, whole
from tests.tools.probe.conftest import TRAINED

from bapo_lightning.tools.commands.probe import main

FEW = ("--prompts", "2", "--tokens", "6", "--sampled", "4", "--api-key-from", "PROBE_KEY")
LIMIT = 60


def models(**card):
    return {"data": [{"id": "policy", "max_model_len": 2048} | card]}


MODELS = {
    "a list": [1], "data is an object": {"data": {"a": 1}}, "data is a text": {"data": "abc"},
    "cards are texts": {"data": ["x"]}, "cards are null": {"data": [None]}, "no cards": {"data": []},
    "no data": {}, "name is an object": models(id={"a": 1}), "no name": models(id=""),
    **{f"length is {value!r}": models(max_model_len=value)
       for value in ("abc", -5, 12.5, [1], 1e30, float("nan"), True, 0, 10**300)},
    "nested": '{"data": ' + DEEP + "}", "half a character": '{"data": [{"id": "\\ud800"}]}',
}  # fmt: skip


def choice(prompt, body, index):
    """What a good server says of a prompt."""
    count, length = body["max_tokens"], len(prompt) if body.get("echo") else 0
    values = [-2.0] * (length + count)
    texts = ["token_id:5"] * len(values)
    scores = {"token_logprobs": [None, *values[1:]] if length else values, "tokens": texts}
    ids = list(prompt) if not isinstance(prompt, str) else [1, 2, 3]
    return {"index": index, "token_ids": [5] * count, "prompt_token_ids": ids, "logprobs": scores}


def field(name, value):
    return lambda each: each | {name: value}


def scores(name, value):
    def lie(each):
        said = each["logprobs"]
        return each | {"logprobs": said | {name: value(said["token_logprobs"])}}

    return lie


def named(text):
    """Tokens that are named by their texts alone."""
    renamed = scores("tokens", lambda values: [text] * len(values))
    return lambda each: renamed({key: value for key, value in each.items() if key != "token_ids"})


CHOICES = {
    "a number": lambda each: 1, "null": lambda each: None, "index is a text": field("index", "a"),
    "all are the first": field("index", 0), "index is negative": field("index", -1),
    "scores are a list": field("logprobs", [1]), "scores are a text": field("logprobs", "abc"),
    **{f"tokens are {value!r:.20}": field("token_ids", value) for value in ([-1] * 4, [2**70] * 4, ["x"] * 4,
     7, [1.5] * 4, [[1]] * 4, [None] * 4, [True] * 4, [5] * 3000)},
    **{f"values are {value!r:.20}": scores("token_logprobs", lambda v, value=value: [value] * len(v))
       for value in (float("inf"), 1e308, 3.0, "-2", True, 10**400, [1])},
    **{f"values: {value!r:.20}": scores("token_logprobs", lambda v, value=value: value)
       for value in (5, "abcdefgh" * 20, {"a": 1}, [-2.0] * 100_000)},
    "texts are numbers": scores("tokens", lambda v: [5] * len(v)),
    "texts are null": scores("tokens", lambda v: [None] * len(v)),
    **{f"prompt is {value!r}": field("prompt_token_ids", value) for value in (5, "abc", [None], [-1])},
}  # fmt: skip
ANSWERS = {
    "a list": lambda all: [1], "choices are null": lambda all: {"choices": None},
    "choices are an object": lambda all: {"choices": {"a": 1}}, "nothing": lambda all: {},
    "one is missing": lambda all: {"choices": all[:-1]},
    "one is too many": lambda all: {"choices": all + all[:1]},
    "indices are mixed": lambda all: {"choices": [all[0], *(each | {"index": "x"} for each in all[1:])]},
    "nested": lambda all: '{"choices": ' + DEEP + "}",
    **{f"a choice: {name}": lambda all, lie=lie: {"choices": [lie(each) for each in all]}
       for name, lie in CHOICES.items()},
}  # fmt: skip
# What is odd, but is an answer: the probe says what it found.
VERDICTS = {
    "a token that the model does not have": field("token_ids", [10**6] * 4),
    "values are NaN": scores("token_logprobs", lambda v: [float("nan")] * len(v)),
    "values are null": scores("token_logprobs", lambda v: [None] * len(v)),
    "tokens have no numbers": named("token_id:abc"),
    "tokens have endless numbers": named("token_id:" + "9" * 5000),
}  # fmt: skip


class Liar(Hostile):
    """Tells one lie about its models or its completions: another answer, or a mode of `hostile`."""

    def __init__(self):
        super().__init__()
        self.models = self.completions = None  # lie of each

    async def reply(self, path, body, writer):
        lie = self.models if path == "/v1/models" else self.completions
        if lie in hostile.MODES or not path.startswith("/v1/"):
            return await super().reply(f"/{lie}" if path.startswith("/v1/") else path, body, writer)
        if path == "/v1/models":
            said = models() if lie is None else lie
        else:
            made = [choice(prompt, body, index) for index, prompt in enumerate(body["prompt"])]
            said = {"choices": made} if lie is None else lie(made)
        writer.write(whole(said if isinstance(said, str) else json.dumps(said)))
        await writer.drain()


@pytest.fixture(scope="module")
def liar():
    with serving(Liar()) as made:
        yield made


@pytest.fixture
def end(liar, capsys, monkeypatch):
    """Probes the server with its lies; returns exit code and what was printed."""
    monkeypatch.setenv("PROBE_KEY", "SECRET")

    def probed(models=None, completions=None, timeout="1"):
        liar.models, liar.completions, liar.heads = models, completions, []
        start = time.monotonic()
        code = main([liar.url, TRAINED, *FEW, "--timeout", timeout])
        assert time.monotonic() - start < LIMIT
        assert not any("/canary" in head for head in liar.heads)
        return code, capsys.readouterr()

    return probed


def check_sentence(done, url):
    code, printed = done
    (line,) = [line for line in printed.err.splitlines() if "error" in line]
    assert code == 2 and url in line and len(line) < 800
    assert not printed.out and "Traceback" not in printed.err


def test_a_good_server_gets_a_verdict(end):
    code, printed = end(timeout=str(LIMIT))
    assert code == 1 and "differs" in printed.out


@pytest.mark.parametrize("lie", [*MODELS, *hostile.MODES])
def test_a_hostile_list_of_models_is_one_sentence(lie, end, liar):
    check_sentence(end(models=MODELS.get(lie, lie)), liar.url)


@pytest.mark.parametrize("lie", [*ANSWERS, *hostile.MODES])
def test_a_hostile_completion_is_one_sentence(lie, end, liar):
    check_sentence(end(completions=ANSWERS.get(lie, lie)), liar.url)


@pytest.mark.parametrize("lie", VERDICTS)
def test_what_is_odd_and_can_be_is_judged(lie, end):
    told = VERDICTS[lie]
    code, printed = end(completions=lambda all: {"choices": [told(each) for each in all]}, timeout=str(LIMIT))
    assert code == 1 and "differs" in printed.out
