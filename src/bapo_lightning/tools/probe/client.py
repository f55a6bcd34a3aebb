"""Requests log-probs from a server, by OpenAI's completions API that vLLM, SGLang and others offer."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.peers import PeerFault, PeerRefusal
from bapo_lightning.system.peers.answers import Answer, Kind, LogProb, Many, TokenCount, TokenId
from bapo_lightning.system.peers.wire import ask
from bapo_lightning.system.values import is_http_address

# vLLM's and SGLang's own. A server's defaults may come from the model's generation_config.json, and would
# change the distribution of the log-probs.
_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
_TOKEN_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
_MARK = "token_id:"  # of vLLM, before a token's number
_FLOOR = -9000.0  # nats; vLLM writes -9999 for minus infinity
# Bytes of an answer: a fixed part, and for each of its tokens.
_MOST_BYTES, _TOKEN_BYTES = 1 << 20, 2000


class ListedModel(Answer):
    """A model that a server lists."""

    id: Annotated[str, Field(min_length=1)]
    max_model_len: TokenCount | None = None


class ListedModels(Answer):
    """Answer of /v1/models."""

    data: Many[ListedModel]


def _none_below_floor(value: Any) -> Any:
    """Servers of right and of broken models give NaN, and several numbers for minus infinity."""
    return None if isinstance(value, int | float) and not value > _FLOOR else value


ReportedLogProb = Annotated[LogProb | None, BeforeValidator(_none_below_floor)]


class PromptLogProbs(Answer):
    """Log-probs of tokens, with their texts; the first token of a prompt has none."""

    token_logprobs: Many[ReportedLogProb] | None = None
    tokens: Many[str] | None = None


class ScoredPrompt(Answer):
    """A server's answer for one prompt."""

    index: Annotated[int, Field(ge=0)] | None = None
    logprobs: PromptLogProbs | None = None
    token_ids: Many[TokenId] | None = None
    prompt_token_ids: Many[TokenId] | None = None


class Completions(Answer):
    """Answer of /v1/completions."""

    choices: Many[ScoredPrompt]


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Log-probs of one prompt, in nats; NaN if the server has no finite number."""

    prompt: list[float]  # of its tokens from the second; empty if the server scores none
    sampled_ids: list[int]  # tokens that it sampled; empty if it does not name them
    sampled: list[float]


@dataclass(slots=True)
class ProbeServer:
    """One server. Every method raises PeerFault if it does not answer, or not as OpenAI's API does.

    `token_of` returns a token's number for its text, for servers that give no numbers, or None.
    """

    url: str  # with or without /v1
    model: str | None = None  # name in requests; None: the first that the server lists
    key_variable: str | None = None  # environment variable with the API key
    timeout: float = 120.0  # seconds of one request
    token_of: Callable[[str], int | None] = lambda text: None
    refused: str = field(default="", init=False)  # why requests omit vLLM's own fields, if they do
    context: int | None = field(default=None, init=False)  # tokens that it takes, if it reports them
    _sends_extensions: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        base = self.url.rstrip("/").removesuffix("/v1").rstrip("/")
        self.url = base if "://" in self.url else f"http://{base}"
        if not is_http_address(self.url):
            raise ConfigError([f"URL={self.url} is not a server address; write http://HOST:PORT"])
        if self.key_variable and not os.environ.get(self.key_variable):
            raise ConfigError([f"--api-key-from {self.key_variable}: this variable is not set; export it"])

    def find_model(self) -> str:
        """Name of the requested model."""
        if self.model is None:
            listed = self._ask(ListedModels, "/v1/models").data
            if not listed:
                raise PeerFault(f"{self.url}/v1/models lists no model; name one with --model NAME")
            self.model, self.context = listed[0].id, listed[0].max_model_len
        return self.model

    def answers(
        self, prompts: Sequence[Sequence[int]], num_sampled: int, temperature: float
    ) -> list[LogProbs]:
        """Log-probs of the prompts' tokens, and of `num_sampled` tokens after each.

        These are two requests: sampling reads the server's prefix cache, which may be stale, and scoring
        does not. A server that refuses the second request scores no prompts.
        """
        sampled = self._choices(prompts, {"max_tokens": num_sampled, "temperature": temperature})
        try:
            echoed = self._choices(prompts, {"max_tokens": 1, "temperature": temperature, "echo": True})
        except PeerRefusal:
            echoed = [ScoredPrompt()] * len(prompts)
        return [
            LogProbs(_of_prompt(choice, len(prompt)), *self._of_sampled(other, num_sampled))
            for prompt, choice, other in zip(prompts, echoed, sampled, strict=True)
        ]

    def tokens_of(self, texts: Sequence[str]) -> list[list[int]] | None:
        """Tokens that the server makes of texts; None if it does not say."""
        try:
            choices = self._choices(texts, {"max_tokens": 1})
        except PeerRefusal:
            return None
        tokens = [list(choice.prompt_token_ids or ()) for choice in choices]
        return tokens if all(tokens) else None

    def _choices(self, prompts: Sequence[Any], options: dict[str, Any]) -> list[ScoredPrompt]:
        plain = [prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts]
        body = {"model": self.find_model(), "prompt": plain, "n": 1, "logprobs": 1, "seed": 0}
        body |= {"temperature": 1.0, "top_p": 1.0}
        body |= options
        tokens = sum(len(prompt) + options["max_tokens"] for prompt in plain)  # or letters of a text
        most = _MOST_BYTES + _TOKEN_BYTES * tokens
        extensions = _NEUTRAL | _TOKEN_IDS if self._sends_extensions else {}
        try:
            answer = self._ask(Completions, "/v1/completions", body | extensions, most)
        except PeerRefusal as refusal:
            if not self._sends_extensions or refusal.status not in (400, 422):
                raise
            answer = self._ask(Completions, "/v1/completions", body, most)  # only OpenAI's own fields
            self._sends_extensions, self.refused = False, str(refusal)
        choices = sorted(answer.choices, key=lambda choice: choice.index or 0)
        numbers = [choice.index for choice in choices if choice.index is not None]
        if len(choices) != len(prompts) or numbers not in ([], list(range(len(prompts)))):
            raise PeerFault(f"{self.url} gave answers {numbers or len(choices)} to {len(prompts)} prompts")
        return choices

    def _of_sampled(self, choice: ScoredPrompt, num_sampled: int) -> tuple[list[int], list[float]]:
        scores = choice.logprobs or PromptLogProbs()
        values, texts = scores.token_logprobs or (), scores.tokens or ()
        ids = [*(choice.token_ids or map(self._token_named, texts))]
        if len(values) > num_sampled or len(ids) > num_sampled:
            raise PeerFault(f"{self.url} sampled more than the {num_sampled} tokens that it was asked for")
        known = [token for token in ids if token is not None]
        if not values or len(ids) != len(values) or len(known) < len(ids):
            return [], []
        return known, _numbers(values)

    def _token_named(self, text: str) -> int | None:
        number = text.removeprefix(_MARK)
        if number == text:
            return self.token_of(text)
        return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None

    def _ask(
        self, kind: type[Kind], path: str, body: dict[str, Any] | None = None, most_bytes: int = _MOST_BYTES
    ) -> Kind:
        secret = os.environ[self.key_variable] if self.key_variable else None
        return ask(kind, self.url + path, self.timeout, body, secret, most_bytes)


def _of_prompt(choice: ScoredPrompt, length: int) -> list[float]:
    values = (choice.logprobs or PromptLogProbs()).token_logprobs or ()
    # A server that ignores `echo` only scores the sampled token; the first token has no log-prob.
    return _numbers(values[1:length]) if len(values) >= length else []


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
