"""Turn taking of a run or an evaluation, and the tokens that end a turn."""

from __future__ import annotations

from typing import Any

from bapo_lightning.configuration.sections import EnvironmentSection
from bapo_lightning.data.rollouts.conversations import Conversations
from bapo_lightning.data.rollouts.feedback import ChatFeedback
from bapo_lightning.errors import ConfigError


def build_conversations(
    environment: EnvironmentSection | None, tokenizer: Any, max_new_tokens: int, max_feedback_tokens: int
) -> Conversations | None:
    """Makes the turn taking; None where a response is one turn.

    Raises:
        DataError: the tokenizer's chat template cannot be continued by feedback.
    """
    if environment is None:
        return None
    feedback = environment.feedback.make()
    if isinstance(feedback, ChatFeedback):
        feedback.check(tokenizer)
    return Conversations(
        environment=environment.answers.make(),
        feedback=feedback,
        tokenizer=tokenizer,
        max_turns=environment.max_turns,
        max_reply_tokens=environment.max_reply_tokens,
        max_feedback_tokens=max_feedback_tokens,
        max_new_tokens=max_new_tokens,
        workers=environment.workers,
    )


def turn_ends(environment: EnvironmentSection | None, tokenizer: Any) -> tuple[int, ...]:
    """Returns the tokens that end a turn besides the end tokens. Raises ConfigError for a text of several."""
    texts = environment.stop if environment is not None else ()
    encoded = {text: tokenizer.encode(text, add_special_tokens=False) for text in texts}
    problems = [
        f"environment.stop: {text!r} is {len(ids)} tokens of this model, and a turn ends with one; write "
        "another text, or let the end token end turns: environment.stop=[]"
        for text, ids in encoded.items()
        if len(ids) != 1
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(token for (token,) in encoded.values())
