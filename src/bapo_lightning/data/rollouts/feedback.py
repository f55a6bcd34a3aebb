"""Turns an environment's reply into the tokens between two turns (key `environment.feedback`)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from bapo_lightning.data.problems.prompts import chat_template, opened, template_problems
from bapo_lightning.system.errors import DataError

# transformers tokenizer, text of a reply -> token ids (typecode "i") from the end of a turn to the next turn
FeedbackRule = Callable[[Any, str], "array[int]"]

PLACEHOLDER = "{feedback}"
Message = Mapping[str, str]
reply_problems = partial(template_problems, placeholder=PLACEHOLDER, what="reply")


@dataclass(frozen=True, slots=True)
class PlainFeedback:
    """The reply in a template, without special tokens: for models without a chat format."""

    problems = staticmethod(reply_problems)
    template: str = PLACEHOLDER  # every {feedback} in it is replaced by the reply

    def __call__(self, tokenizer: Any, text: str) -> array[int]:
        """Returns the token ids of the feedback."""
        filled = self.template.replace(PLACEHOLDER, text)
        return array("i", tokenizer.encode(filled, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class ChatFeedback:
    """The reply as a message in the chat format of the model's tokenizer, up to the policy's next turn.

    The turns of the policy stay as they were sampled, even if the template would trim them.
    """

    problems = staticmethod(reply_problems)
    role: Literal["tool", "user"] = "tool"  # of the message
    template: str = PLACEHOLDER  # its content; every {feedback} in it is replaced by the reply
    opening: str | None = None  # of the policy's turns, as in data.prompt
    template_options: Mapping[str, Any] = field(default_factory=dict)  # of the template, as in data.prompt

    def __call__(self, tokenizer: Any, text: str) -> array[int]:
        """Returns the token ids from the end of the policy's message to the beginning of its next message."""
        message = {"role": self.role, "content": self.template.replace(PLACEHOLDER, text)}
        between = self.between(tokenizer, message)
        return array("i", tokenizer.encode(between, add_special_tokens=False))

    def between(self, tokenizer: Any, *replies: Message) -> str:
        """Returns what the template writes from the end of a message of the policy to its next one."""
        opening = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
        whole = self.rendered(tokenizer, [*opening, *replies], True)
        _, answer, rest = whole.partition(_ANSWER + tokenizer.eos_token)
        if not answer:
            raise DataError(
                f"the chat template of {tokenizer.name_or_path} does not end the policy's messages with its "
                f"end token {tokenizer.eos_token!r}; write environment/feedback=plain with a template"
            )
        return rest

    def rendered(self, tokenizer: Any, messages: Sequence[Message], opens: bool) -> str:
        """Returns messages as text; if it `opens` a turn, up to the point where the policy continues."""
        options = {"add_generation_prompt": opens, **self.template_options}
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
        return opened(text, self.opening) if opens else text

    def check(self, tokenizer: Any) -> None:
        """Raises DataError unless messages rendered one by one give the same text as all of them together."""
        template = chat_template(tokenizer, self.template_options)
        if not template:
            raise DataError(
                "environment.feedback=ChatFeedback needs a chat template, and the tokenizer of "
                f"{tokenizer.name_or_path or 'the model'} has none; write environment/feedback=plain"
            )
        refused = f"the chat template of {tokenizer.name_or_path} cannot be continued by feedback"
        remedy = (
            f"write environment.feedback.role={'user' if self.role == 'tool' else 'tool'}, model.path of a "
            "model whose template keeps messages as they are, or environment/feedback=plain with a template "
            "of your own"
        )
        opening = [{"role": "user", "content": _QUESTION}]
        thought = _THOUGHT if "think" in template else ""
        answers = [{"role": "assistant", "content": f"{thought}{_ANSWER} {number}"} for number in range(3)]
        replies = [{"role": self.role, "content": f"{_REPLY} {number}"} for number in range(2)]
        messages = [*opening, answers[0], replies[0], answers[1], replies[1], answers[2]]
        try:
            pieces = [self.rendered(tokenizer, opening, True)]
            for message, reply in zip(answers, [*replies, None], strict=True):
                pieces.append(message["content"].removeprefix(self.opening or "") + tokenizer.eos_token)
                pieces += [self.between(tokenizer, reply)] if reply is not None else []
            whole = self.rendered(tokenizer, messages, False)
        except DataError:
            raise
        except Exception as error:  # whatever a template raises for a role that it does not know
            raise DataError(f"{refused}: {error}; {remedy}") from None
        ids = [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]
        if not whole.startswith("".join(pieces)):
            raise DataError(
                f"{refused}: it writes earlier messages in another way than the policy wrote them (it may "
                f"leave out thoughts); {remedy}"
            )
        if tokenizer.encode("".join(pieces), add_special_tokens=False) != ids:
            raise DataError(f"{refused}: tokens span two messages; {remedy}")


_QUESTION, _ANSWER, _REPLY = "How many?", "Let me see", "Four"
_THOUGHT = "<think>\nhm\n</think>\n\n"  # which some templates leave out of earlier messages
