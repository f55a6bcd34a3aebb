"""How a problem becomes the token ids that the policy continues (conf key `data.prompt`, group `prompt`)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.types import Problem

PromptRule = Callable[
    [Any, Problem], "array[int]"
]  # transformers tokenizer, problem -> token ids of its prompt

PLACE = "{problem}"


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """The problem's text in a template, without special tokens: for models that know no chat."""

    template: str = PLACE  # with the problem's text in place of every {problem}

    def __post_init__(self) -> None:
        check_template(self.template)

    def text(self, problem: Problem) -> str:
        """What the policy continues."""
        return filled(self.template, problem)

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Token ids (typecode "i") of the prompt."""
        return array("i", tokenizer.encode(self.text(problem), add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The problem as a user's message in the chat format of the model's tokenizer, up to where the assistant
    begins to write.
    """

    system: (
        str | None
        # system message; None leaves what the tokenizer's template does without one, often a message of its
        # own
    )
    template: str  # the user's message, with the problem's text in place of every {problem}
    opening: str | None = (
        None  # what the assistant's turn begins with, unless the tokenizer's template writes it already
    )
    template_options: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the tokenizer's template, e.g. {enable_thinking: false}

    def __post_init__(self) -> None:
        check_template(self.template)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """What the tokenizer's template renders."""
        user = {"role": "user", "content": filled(self.template, problem)}
        return [user] if self.system is None else [{"role": "system", "content": self.system}, user]

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Token ids (typecode "i") of the prompt. Raises DataError when the tokenizer has no chat
        template.
        """
        return rendered(
            tokenizer, self.messages(problem), self.opening, self.template_options, type(self).__name__
        )


@dataclass(frozen=True, slots=True)
class MessagesPrompt:
    """The chat messages of the data file as they stand, system message included, as verl does; a bare problem
    is the user's message.
    """

    opening: str | None = None  # as for `ChatPrompt`
    template_options: Mapping[str, Any] = field(default_factory=dict)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """What the tokenizer's template renders."""
        own: list[dict[str, str]] | None = problem.metadata.get("messages")
        return own or [{"role": "user", "content": problem.prompt}]

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Token ids (typecode "i") of the prompt. Raises DataError when the tokenizer has no chat
        template.
        """
        return rendered(
            tokenizer, self.messages(problem), self.opening, self.template_options, type(self).__name__
        )


def rendered(
    tokenizer: Any,
    messages: list[dict[str, str]],
    opening: str | None,
    template_options: Mapping[str, Any],
    what: str,
) -> array[int]:
    """Token ids of chat messages, up to where the assistant goes on. Raises DataError when the tokenizer has
    no chat template.
    """
    if not tokenizer.chat_template:
        raise DataError(
            f"data.prompt={what} needs a chat template, and the tokenizer of "
            f"{tokenizer.name_or_path or 'the model'} has none; choose an instruction-tuned model, or give "
            "it the problem's bare text: prompt@data.prompt=plain"
        )
    options = {"add_generation_prompt": True, **template_options}
    if opening is None:
        return array(
            "i", tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
        )
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    text = text if text.endswith(opening) else text + opening
    return array("i", tokenizer.encode(text, add_special_tokens=False))


def filled(template: str, problem: Problem) -> str:
    r"""A template with the problem in it. Not str.format: other braces, as in \boxed{} or in a problem's
    text, are meant as they stand.
    """
    return template.replace(PLACE, problem.prompt)


def check_template(template: str) -> None:
    """Raise ConfigError for a template that never shows the problem."""
    if PLACE not in template:
        raise ConfigError([
            f"data.prompt.template={template!r} never shows the problem; write {PLACE} where its text goes, "
            f"e.g. {PLACE!r}"
        ])  # fmt: skip
