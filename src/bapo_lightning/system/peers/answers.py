"""Types of peers' answers, and their validation. Nothing is converted: neither "1" nor true is a number."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Le, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, JsonValue, ValidationError
from pydantic_core import from_json

from bapo_lightning.system.peers import PeerFault

LONGEST_REASON = 300  # characters of a sentence that comes from a peer
ROUNDING = 1e-6  # nats above 0 that the logarithm of a sum may have in float32
LEAST = -10_000.0  # nats; vLLM writes -9999 for minus infinity, which JSON does not have

Item = TypeVar("Item")


class _FailFast(FailFast):
    def __hash__(self) -> int:  # without it, `Many[Item] | None` would not be a type
        return hash(self.fail_fast)


Many = Annotated[tuple[Item, ...], _FailFast()]  # an error for each item of a long list would take memory
TokenId = Annotated[int, Ge(0), Lt(2**31)]  # the caller checks whether the vocabulary has it
LogProb = Annotated[float, Ge(LEAST), Le(ROUNDING)]
TokenCount = Annotated[int, Ge(1), Lt(2**31)]


def _finite(value: Any) -> Any:
    json.dumps(value, allow_nan=False)
    return value


Json = Annotated[JsonValue, AfterValidator(_finite)]  # any JSON value with finite numbers


class Answer(BaseModel):
    """An answer of a peer, or a part of one. Undeclared fields are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", frozen=True)


Kind = TypeVar("Kind", bound=Answer)


def judged(kind: type[Kind], said: bytes | str, peer: str) -> Kind:
    """A peer's message as an answer of a kind. Raises PeerFault if it is not one: also for half characters,
    numbers without end, and JSON that is nested deeper than 200.
    """
    try:
        return kind.model_validate_json(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        text = f"{where}: {first['msg']}" if where else str(first["msg"])
        raise PeerFault(f"{peer} sent an answer that cannot be used: {shortened(text)}") from None


def reason_of(said: bytes, status: int) -> str:
    """The reason in an error answer, in the format of OpenAI's API or FastAPI, or else its first words."""
    try:
        answer = from_json(said)
    except ValueError:
        answer = None
    reason = (answer.get("error") or answer.get("detail")) if isinstance(answer, dict) else None
    if isinstance(reason, dict):
        reason = reason.get("message") or reason
    if reason:
        return shortened(reason if isinstance(reason, str) else str(reason))
    return shortened(f"HTTP {status} {said[:LONGEST_REASON].decode(errors='replace')}")


def shortened(text: str) -> str:
    """A peer's text as a part of one sentence."""
    text = " ".join(text[: 4 * LONGEST_REASON].split())
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."
