"""Asks a server for log-probs, by the completions of OpenAI's API that vLLM, SGLang and others offer."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from bapo_lightning.errors import ConfigError, EngineError
from bapo_lightning.rollout.vllm.http import DIRECT, error_message
from bapo_lightning.values import is_http_address

# vLLM's and SGLang's own. A server's defaults may come from the model's generation_config.json, and would
# change what log-probs are of.
_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
_TOKEN_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
_MARK = "token_id:"  # of vLLM, before a token's number
_FLOOR = -9000.0  # nats; vLLM writes -9999 for minus infinity


@dataclass(frozen=True, slots=True)
class Answer:
    """Log-probs of one prompt, in nats; NaN where the server has no finite number."""

    prompt: list[float]  # of its tokens from the second on; empty where the server scores none
    sampled_ids: list[int]  # tokens that it sampled; empty where it does not tell which
    sampled: list[float]


@dataclass(slots=True)
class ProbeServer:
    """One server. Every method raises EngineError where it does not answer, or not as OpenAI's API does.

    `token_of` makes a token's number of its text, for servers that tell no numbers, or None.
    """

    url: str  # with or without /v1
    model: str | None = None  # name that requests give; None: the first that the server lists
    key_variable: str | None = None  # environment variable with the API key
    timeout: float = 120.0  # seconds of one request
    token_of: Callable[[str], int | None] = lambda text: None
    refused: str = field(default="", init=False)  # why requests go without vLLM's own fields, if they do
    context: int | None = field(default=None, init=False)  # tokens that it takes, where it tells
    _own_fields: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        base = self.url.rstrip("/").removesuffix("/v1").rstrip("/")
        self.url = base if "://" in self.url else f"http://{base}"
        if not is_http_address(self.url):
            raise ConfigError([f"URL={self.url} is no address of a server; write http://HOST:PORT"])
        if self.key_variable and not os.environ.get(self.key_variable):
            raise ConfigError([f"--api-key-from {self.key_variable}: this variable is not set; export it"])

    def find_model(self) -> str:
        """Name of the model that is asked."""
        if self.model is None:
            listed = self._call("/v1/models").get("data") or [{}]
            if not (name := listed[0].get("id")):
                raise EngineError(f"{self.url}/v1/models lists no model; name one with --model NAME")
            self.model, self.context = str(name), listed[0].get("max_model_len")
        return self.model

    def answers(self, prompts: Sequence[Sequence[int]], num_sampled: int, temperature: float) -> list[Answer]:
        """Log-probs of the prompts' tokens, and of `num_sampled` tokens after each.

        These are two requests: what a server samples reads its prefix cache, which may be stale, and what it
        scores does not. A server that refuses the second one scores no prompts.
        """
        sampled = self._choices(prompts, {"max_tokens": num_sampled, "temperature": temperature})
        try:
            echoed = self._choices(prompts, {"max_tokens": 1, "temperature": temperature, "echo": True})
        except Refused:
            echoed = [{}] * len(prompts)
        return [
            Answer(self._of_prompt(choice, len(prompt)), *self._of_sampled(other))
            for prompt, choice, other in zip(prompts, echoed, sampled, strict=True)
        ]

    def tokens_of(self, texts: Sequence[str]) -> list[list[int]] | None:
        """Tokens that the server makes of texts; None where it does not tell."""
        try:
            choices = self._choices(texts, {"max_tokens": 1})
        except Refused:
            return None
        found = [choice.get("prompt_token_ids") for choice in choices]
        return [list(ids) for ids in found if ids] if all(found) else None

    def _choices(self, prompts: Sequence[Any], options: dict[str, Any]) -> list[dict[str, Any]]:
        plain = [prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts]
        body = {"model": self.find_model(), "prompt": plain, "n": 1, "logprobs": 1, "seed": 0}
        body |= {"temperature": 1.0, "top_p": 1.0}
        body |= options
        try:
            answer = self._call("/v1/completions", body | (_NEUTRAL | _TOKEN_IDS if self._own_fields else {}))
        except Refused as refusal:
            if not self._own_fields or refusal.status not in (400, 422):
                raise
            answer = self._call("/v1/completions", body)  # OpenAI's own fields alone
            self._own_fields, self.refused = False, str(refusal)
        choices = sorted(answer.get("choices") or [], key=lambda choice: choice.get("index", 0))
        if len(choices) != len(prompts):
            raise EngineError(f"{self.url} gave {len(choices)} answers to {len(prompts)} prompts")
        return choices

    def _of_prompt(self, choice: dict[str, Any], length: int) -> list[float]:
        values = (choice.get("logprobs") or {}).get("token_logprobs") or []
        # A server that ignores `echo` tells of the sampled token alone; the first token has no log-prob.
        return [_number(value) for value in values[1:length]] if len(values) >= length else []

    def _of_sampled(self, choice: dict[str, Any]) -> tuple[list[int], list[float]]:
        told = choice.get("logprobs") or {}
        values, texts = told.get("token_logprobs") or [], told.get("tokens") or []
        ids = choice.get("token_ids") or [
            int(text.removeprefix(_MARK)) if text.startswith(_MARK) else self.token_of(text) for text in texts
        ]
        if not values or len(ids) != len(values) or None in ids:
            return [], []
        return [int(token) for token in ids], [_number(value) for value in values]

    def _call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.key_variable:
            headers["Authorization"] = f"Bearer {os.environ[self.key_variable]}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with DIRECT.open(request, timeout=self.timeout) as response:
                found = json.loads(response.read())
        except urllib.error.HTTPError as error:
            reason = error_message(error.read(), error.code)
            raise Refused(f"{self.url}{path} was refused: {reason}", error.code) from None
        except (OSError, ValueError, HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            raise EngineError(f"{self.url}{path} does not answer as OpenAI's API does: {cause}") from None
        if not isinstance(found, dict):
            raise EngineError(f"{self.url}{path} does not answer as OpenAI's API does: no JSON object")
        return found


class Refused(EngineError):
    """A request that the server refuses, with the status of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and value > _FLOOR else float("nan")
