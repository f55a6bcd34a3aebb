"""Probes of one server: the same prompts each time, so that answers can be compared over time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from bapo_lightning.system.peers import PeerRefusal
from bapo_lightning.system.phases import phase
from bapo_lightning.tools.probe.client import ProbeServer
from bapo_lightning.tools.probe.diagnosis import Case, Diagnosis, ProbeVerdict
from bapo_lightning.tools.probe.judge import gaps
from bapo_lightning.tools.probe.layout import Numbers, TokenLayout, compared
from bapo_lightning.tools.probe.weights import Weights

LONGEST_TEXT = 64  # tokens of a canary text


@dataclass(frozen=True, slots=True)
class Found:
    """A diagnosis and its inputs."""

    diagnosis: Diagnosis
    num_prompts: int
    num_scored: int  # tokens of prompts
    num_sampled: int
    notes: list[str]


@dataclass
class ProbeSession:
    """Probes one server repeatedly."""

    server: ProbeServer
    num_prompts: int  # of random tokens
    prompt_tokens: int  # in each
    sampled_tokens: int  # after each prompt
    temperature: float  # of sampling
    seed: int  # of the random tokens
    dtype: str | None = None  # of the server's computation; None: whichever fits
    _last: tuple[TokenLayout, Numbers] | None = field(default=None, init=False)
    # As it was when the newest export was made.
    _before: tuple[TokenLayout, Numbers] | None = field(default=None, init=False)

    def next_export(self) -> None:
        """Remembers the last answer as given with older weights: newer ones give another answer."""
        self._before = self._last

    def probe(self, weights: Weights, others: Sequence[Weights] = ()) -> Found:
        """Queries the server and compares it with the folder, and with others. Raises PeerFault if its answer
        is not as it should be, EngineError without log-probs, DataError if a folder cannot be read.
        """
        self.server.token_of = _reader(weights.tokenizer)
        prompts = self._prompts(weights)
        with phase("asking the server"):
            try:
                answers = self.server.answers(prompts, self.sampled_tokens, self.temperature)
            except PeerRefusal as refusal:
                if "vocab" not in str(refusal):
                    raise
                reason = f"it does not know all {weights.vocab_size} tokens of {weights.name} ({refusal})"
                return _of_another_vocabulary(reason, len(prompts))
            highest = max((token for each in answers for token in each.sampled_ids), default=0)
            if highest >= weights.vocab_size:
                reason = f"it sampled token {highest}, and {weights.name} has {weights.vocab_size} tokens"
                return _of_another_vocabulary(reason, len(prompts))
            notes = self._notes(weights)
        layout, values = compared(prompts, answers, self.temperature)
        dtypes = [self.dtype] if self.dtype else weights.likely_dtypes()
        layout, raw = as_sampled(layout, values, weights, dtypes[-1])
        before = self._before
        repeated = before is not None and before[0] == layout and np.array_equal(before[1], values)
        self._last = layout, values
        diagnosis = Case(layout, values, weights, others, dtypes, repeated).diagnose()
        sampled = int(layout.is_sampled.sum())
        return Found(diagnosis, len(prompts), len(values) - sampled, sampled, [*notes, *raw])

    def _prompts(self, weights: Weights) -> list[list[int]]:
        self.server.find_model()
        room = getattr(weights.config, "max_position_embeddings", None) or 1 << 20
        room = min(room, self.server.context or room)
        room = max(2, room - max(1, self.sampled_tokens))
        allowed = allowed_tokens(weights.vocab_size, weights.tokenizer)
        texts = canary_prompts(weights.tokenizer, min(room, LONGEST_TEXT)) if weights.tokenizer else []
        length, generator = min(room, self.prompt_tokens), random.Random(self.seed)
        return texts + [generator.choices(allowed, k=length) for _ in range(self.num_prompts)]

    def _notes(self, weights: Weights) -> list[str]:
        notes = []
        if self.server.refused:
            notes.append(f"the server does not take vLLM's fields, such as top_k: {self.server.refused}")
        if weights.tokenizer is None:
            notes.append(f"{weights.name} has no tokenizer: only random tokens were used")
        elif (theirs := self.server.tokens_of(CANARIES)) is not None:
            local = [list(weights.tokenizer(text)["input_ids"]) for text in CANARIES]
            if count := sum(one != other for one, other in zip(local, theirs, strict=True)):
                notes.append(
                    f"the server makes other tokens of {count} of {len(local)} texts than the tokenizer of "
                    f"{weights.name}"
                )
        return notes


def _of_another_vocabulary(reason: str, num_prompts: int) -> Found:
    return Found(Diagnosis(ProbeVerdict.DIFFERS, reason, "", {}), num_prompts, 0, 0, [])


def as_sampled(
    layout: TokenLayout, server: Numbers, weights: Weights, dtype: str
) -> tuple[TokenLayout, list[str]]:
    """Returns the layout with the temperature of the server's log-probs of sampled tokens: the
    temperature of sampling, or 1, vLLM's default; and a note in the second case.
    """
    raw = replace(layout, temperature=1.0)
    if layout.temperature == 1.0 or not layout.is_sampled.any():
        return layout, []
    zero = np.zeros_like(server)
    away = [gaps(each, server, weights.scores(each, dtype), zero)["sampled"].mean for each in (layout, raw)]
    if not away[1] < away[0]:
        return layout, []
    note = (
        f"its log-probs are those before temperature {layout.temperature:g}; a trainer that divides by them "
        "needs --logprobs-mode processed_logprobs of vLLM"
    )
    return raw, [note]


def _reader(tokenizer: Any | None) -> Callable[[str], int | None]:
    """Returns a function from the text of a token to its number; None for a text that several tokens have."""

    @cache
    def table() -> dict[str, int | None]:
        numbers: dict[str, int | None] = {}
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))]) if tokenizer else []
        for token, text in enumerate(texts):
            numbers[text] = None if text in numbers else token
        return numbers

    return lambda text: table().get(text)


# Random tokens reach rows of the embedding that no test text has; texts reach what training changes.
CANARIES = (
    "The river rises in the hills above the town and reaches the sea after some forty miles, past three "
    "old mills and a bridge of stone.",
    "def mean(values):\n    if not values:\n        raise ValueError('no values')\n    return sum(values) / "
    "len(values)\n",
    "Question: Anna has 12 apples and gives a third of them to Ben. How many are left?\nAnswer: 12 / 3 = 4, "
    "and 12 - 4 = 8, so 8 apples are left.",
    "El tren sale a las ocho y llega a las diez y media. Der Zug fährt um acht ab und kommt um halb elf an.",
)


def canary_prompts(tokenizer: Any, longest: int) -> list[list[int]]:
    """Returns the canary texts as tokens, cut after `longest`; one token alone would not be scored."""
    prompts = [list(tokenizer(text)["input_ids"])[:longest] for text in CANARIES]
    return [ids for ids in prompts if len(ids) > 1]


def allowed_tokens(vocab_size: int, tokenizer: Any | None) -> list[int]:
    """Returns the tokens that a prompt may have: known to the model, and ordinary in its tokenizer. Added
    tokens may stand for pictures, which a server would look for in vain.
    """
    if tokenizer is None:
        return list(range(vocab_size))
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return [token for token in range(min(vocab_size, len(tokenizer))) if token not in special]
