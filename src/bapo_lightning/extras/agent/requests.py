"""Requests and answers of OpenAI's protocol: /v1/chat/completions and /v1/completions.

A program's requests are judged here. `Asked.news` compares a request with the conversation so far, message
by message: what is new after the last answer, or None if the program changed what came before it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen
from pydantic_core import from_json

from bapo_lightning.environments.call_formats import LENIENT_JSON, TAG, is_deeper
from bapo_lightning.system.peers import PeerFault
from bapo_lightning.system.peers.answers import Answer, Json, Kind, Many, judged
from bapo_lightning.types import Problem

Edits = Literal["cut", "ignore", "branch"]
Message = dict[str, Any]  # {"role": ..., "content": text}, maybe with "tool_calls" as templates read them
# Options that the run decides on.
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "response_format", "reasoning_effort"),
    "tool_choice",
)
_ROLES = {"developer": "system", "function": "tool"}  # other names of roles
MOST_CHOICES = 16  # of a request
TEXT = "text"  # role of the prompt of /v1/completions


class RequestRefused(Exception):
    """A request that gets no completion, with the HTTP status and the reason."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class TextPart(Answer):
    """A part of a content."""

    text: str


class _Part(TextPart):
    type: Literal["text"]


def text_of(content: str | Sequence[TextPart] | None) -> str:
    """Returns a content as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


class SentFunction(Answer):
    """Name and arguments of a call."""

    name: str
    arguments: str = "{}"


class SentCall(Answer):
    """A call of a tool."""

    function: SentFunction


class SentMessage(Answer):
    """A message as a program sends it."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Many[_Part] | None = None
    tool_calls: Many[SentCall] | None = None

    def plain(self) -> Message:
        """The message as chat templates read it."""
        calls = [(call.function.name, _read(call.function.arguments)) for call in self.tool_calls or ()]
        return _message(_ROLES.get(self.role, self.role), text_of(self.content), calls)


class _StreamOptions(Answer):
    include_usage: bool = False


class _Request(Answer):
    model: str = ""
    messages: Annotated[Many[SentMessage], MaxLen(10_000)] | None = None
    prompt: str | None = None
    tools: Many[dict[str, Json]] | None = None
    stop: str | Many[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Annotated[int, Ge(1), Le(MOST_CHOICES)] | None = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    logprobs: Literal[False] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a completion."""

    messages: tuple[Message, ...]  # /v1/completions: one with the prompt, whose role is `TEXT`
    tools: tuple[Mapping[str, Any], ...] = ()
    stop: tuple[str, ...] = ()
    model: str = ""
    is_streamed: bool = False
    shows_usage: bool = False
    num_choices: int = 1  # n of the protocol
    choice: int = 0  # which of them; others than the first begin branches

    @property
    def is_chat(self) -> bool:
        """Whether it is one of /v1/chat/completions."""
        return self.messages[0]["role"] != TEXT

    @property
    def digest(self) -> str:
        """Equal for requests of the same choice with the same messages and tools."""
        parts = [[_compared(each) for each in self.messages], self.tools]
        text = json.dumps([*parts, self.choice] if self.choice else parts, sort_keys=True)
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()

    def answer(self, text: str) -> Message:
        """Returns the message that the program gets for a text of the policy, cut at the first of its stops,
        with the calls of tools if there are tools and every call in it is well written.
        """
        for stop in self.stop:
            text = text.partition(stop)[0]
        calls = list(_calls(text)) if self.tools and self.is_chat else []
        if not calls or None in calls:
            return _message("assistant" if self.is_chat else TEXT, text, [])
        begin = TAG.search(text)
        return _message("assistant", text[: begin.start() if begin else 0], [each for each in calls if each])

    def news(self, text: str, later: Asked, edits: Edits = "cut") -> list[Message] | None:
        """Returns the messages that a later request adds after the policy's `text`, its answer to this one;
        None if it does not continue it. Ignored edits may change contents, calls and tools, or drop the
        answer; a branch may add answers that the policy did not write.
        """
        ignores_edits = edits == "ignore"
        given, count = self.answer(text), len(self.messages)
        if later.is_chat is not self.is_chat:
            return None
        if not self.is_chat:
            before, after = self.messages[0]["content"] + given["content"], later.messages[0]["content"]
            is_longer = after.startswith(before) and len(after) > len(before)
            return [_message("user", after[len(before) :], [])] if is_longer else None
        skipped = count + 1
        if ignores_edits and len(later.messages) > count and later.messages[count]["role"] != "assistant":
            skipped = count  # the answer is left out
        earlier = (*self.messages, given)[:skipped]
        same = [
            one["role"] == other["role"] if ignores_edits else _compared(one) == _compared(other)
            for one, other in zip(earlier, later.messages, strict=False)
        ]
        added = list(later.messages[skipped:])
        is_longer = bool(added) and all(
            new["role"] != "assistant" for new in (added[-1:] if edits == "branch" else added)
        )
        return added if is_longer and all(same) and (ignores_edits or later.tools == self.tools) else None

    def begins(self, problem: Problem) -> bool:
        """Returns whether a conversation about the problem begins with this request."""
        messages, tools = problem.metadata.get("messages"), problem.metadata.get("tools") or ()
        wanted = Asked(tuple(messages or [_message("user", problem.prompt, [])]), tuple(tools))
        text = Asked((_message(TEXT, problem.prompt, []),))
        return self.digest == wanted.digest or (not messages and self.digest == text.digest)


def read(body: bytes, is_chat: bool, refuses_settings: bool) -> Asked:
    """Returns the request of an HTTP body. Raises RequestRefused."""
    parsed = accepted(_Request, body, SAMPLING if refuses_settings else ())
    if is_chat and parsed.messages:
        messages = tuple(message.plain() for message in parsed.messages)
    elif not is_chat and parsed.prompt:
        messages = (_message(TEXT, parsed.prompt, []),)
    else:
        raise RequestRefused(f"the request has no {'messages' if is_chat else 'prompt'}")
    stops = (parsed.stop,) if isinstance(parsed.stop, str) else parsed.stop or ()
    return Asked(
        messages,
        tuple(parsed.tools or ()),
        tuple(stop for stop in stops if stop),  # an empty one would be everywhere
        parsed.model,
        bool(parsed.stream),
        parsed.stream_options is not None and parsed.stream_options.include_usage,
        parsed.n or 1,
    )


def accepted(kind: type[Kind], body: bytes, refused: Sequence[str]) -> Kind:
    """Returns an HTTP body as a request of a kind. Raises RequestRefused, also for `refused` options."""
    try:
        request = judged(kind, body, "the program")
    except PeerFault as fault:
        raise RequestRefused(str(fault).replace("an answer", "a request")) from None
    given = from_json(body) if refused else {}
    if decided := sorted(name for name in refused if given.get(name) is not None):
        raise RequestRefused(f"the run decides on {', '.join(decided)}; leave them out")
    return request


def completion(request: Asked, *texts: str) -> dict[str, Any]:
    """Returns the body of the answer to a request that gets texts of the policy, one for each choice."""
    choices = list[dict[str, Any]]()
    for choice, text in enumerate(texts):
        chosen = replace(request, choice=choice)
        if request.is_chat:
            message, reason = sent(chosen, text)
            choices.append({"message": message, "finish_reason": reason})
        else:
            given = chosen.answer(text)["content"]
            choices.append({"text": given, "logprobs": None, "finish_reason": "stop"})
    return _body(request, *choices)


def chunks(request: Asked, *texts: str) -> Iterator[dict[str, Any]]:
    """Yields the events of the streamed answer, in OpenAI's order, one choice after another."""
    for choice, text in enumerate(texts):
        chosen = replace(request, choice=choice)
        for part in _parts(chosen, text):
            yield _body(request, {"index": choice, **part})
    if request.shows_usage:
        yield _body(request)


def _parts(request: Asked, text: str) -> Iterator[dict[str, Any]]:
    if not request.is_chat:
        yield {"text": request.answer(text)["content"], "finish_reason": None}
        yield {"text": "", "finish_reason": "stop"}
        return
    message, reason = sent(request, text)
    calls = [{"index": number, **call} for number, call in enumerate(message.pop("tool_calls", ()))]
    for delta in (message, *([{"tool_calls": calls}] if calls else ())):
        yield {"delta": delta, "finish_reason": None}
    yield {"delta": {}, "finish_reason": reason}


def sent(request: Asked, text: str) -> tuple[Message, str]:
    """Returns an assistant's message as the protocol has it, and the reason for its end."""
    given, digest = request.answer(text), request.digest
    message: Message = {"role": "assistant", "content": given["content"]}
    if not (calls := given.get("tool_calls")):
        return message, "stop"
    message["content"] = given["content"] or None
    message["tool_calls"] = [
        {
            "id": f"call_{digest}_{number}",
            "type": "function",
            "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
        }
        for number, call in enumerate(calls)
    ]
    return message, "tool_calls"


def _body(request: Asked, *choices: dict[str, Any]) -> dict[str, Any]:
    kind = ("chat.completion" if request.is_chat else "text_completion") + (
        ".chunk" if request.is_chat and request.is_streamed else ""
    )
    body: dict[str, Any] = {"id": f"cmpl-{request.digest}", "object": kind, "created": int(time.time())}
    body |= {"model": request.model, "choices": [{"index": at, **each} for at, each in enumerate(choices)]}
    if not choices or not request.is_streamed:  # the endpoint knows texts, and no numbers of tokens
        body["usage"] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return body


def _message(role: str, text: str, calls: Sequence[tuple[str, Any]]) -> Message:
    items = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    return {"role": role, "content": text, **({"tool_calls": items} if items else {})}


def _compared(message: Message) -> list[Any]:
    """Parts that two equal messages share: programs add fields, and drop white space at both ends."""
    text = message["content"]
    return [message["role"], text if message["role"] == TEXT else text.strip(), message.get("tool_calls", [])]


def _read(arguments: str) -> Any:
    try:
        value = LENIENT_JSON.decode(arguments)
    except (ValueError, RecursionError):
        return arguments
    return arguments if is_deeper(value) else value  # deep ones stay a text


def _calls(text: str) -> Iterator[tuple[str, Any] | None]:
    """Yields name and arguments of each call in a turn; None for one that is not well written."""
    for match in TAG.finditer(text):
        try:
            call, _ = LENIENT_JSON.raw_decode(text, match.end())
            name, given = call["name"], call["arguments"]
            is_call = isinstance(name, str) and isinstance(given, dict) and not is_deeper(given)
            yield (name, given) if is_call else None
        except (ValueError, RecursionError, TypeError, KeyError):
            yield None
