"""How a problem becomes the token ids that the policy continues (conf key `data.prompt`)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.types import Problem

PromptRule = Callable[[Any, Problem], "array[int]"]  # transformers tokenizer, problem -> token ids of its prompt

_PLACE = "{problem}"


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """The problem's text as it stands, without special tokens."""

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Token ids (typecode "i") of the prompt."""
        return array("i", tokenizer.encode(problem.prompt, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The problem as a user's message in the chat format of the model's tokenizer, up to where the assistant begins to write."""

    system: str | None  # system message; None leaves what the tokenizer's template does without one, often a message of its own
    template: str  # the user's message, with the problem's text in place of every {problem}

    def __post_init__(self) -> None:
        if _PLACE not in self.template:
            raise ConfigError(
                [f"data.prompt.template={self.template!r} never shows the problem; write {_PLACE} where its text goes, e.g. {_PLACE!r}"]
            )

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Token ids (typecode "i") of the prompt. Raises DataError when the tokenizer has no chat template."""
        if not tokenizer.chat_template:
            raise DataError(
                f"data.prompt={type(self).__name__} needs a chat template, and the tokenizer of {tokenizer.name_or_path or 'the model'} "
                "has none; choose an instruction-tuned model, or give it the problem's bare text: "
                f"~data.prompt '+data.prompt={{_target_: {PlainPrompt.__module__}.{PlainPrompt.__name__}}}'"
            )
        # Not str.format: other braces, in the template (\boxed{}) or in a problem's text, are meant as they stand.
        user = {"role": "user", "content": self.template.replace(_PLACE, problem.prompt)}
        messages = [user] if self.system is None else [{"role": "system", "content": self.system}, user]
        return array("i", tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False))
