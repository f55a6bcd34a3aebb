"""Errors a user can meet. Each message says what was expected, what was got, and what to do instead."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

_MANY = 12  # options, too many to list with the one that is meant


class BapoLightningError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(BapoLightningError, ValueError):
    """The configuration cannot work. Holds every problem found, to show them all at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        lines = "\n".join(f"  {number}. {text}" for number, text in enumerate(self.problems, 1))
        return f"the configuration has {count} problem{'s' if count != 1 else ''}:\n{lines}"


class MachineError(ConfigError):
    """This machine does not have what a run needs: what it needs and finds, and what to do instead."""

    def __init__(self, name: str, needs: Sequence[str], advice: Sequence[str]) -> None:
        super().__init__(needs)
        self.name, self.advice = name, tuple(advice)
        self.args = (name, self.problems, self.advice)

    def __str__(self) -> str:
        lines = [f"{number}. {text}" for number, text in enumerate(self.problems, 1)]
        return "\n  ".join([f"{self.name} cannot run on this machine:", *lines, *self.advice])


class DataError(BapoLightningError, ValueError):
    """A data set, a problem or a model folder is missing, corrupt or not what it was declared to be."""


class StaleDataError(BapoLightningError, RuntimeError):
    """A token older than the bound reached the trainer, or one from a version that does not exist yet."""


class EngineError(BapoLightningError, RuntimeError):
    """A rollout engine failed, or it does not hold the weights that it claims to hold."""


class RewardError(BapoLightningError, RuntimeError):
    """Answers cannot be judged: the verifier's processes cannot be started."""


class EnvironmentFault(BapoLightningError, RuntimeError):
    """An environment could not answer a turn; faults of the policy are feedback instead."""


class TrainingError(BapoLightningError, RuntimeError):
    """Training cannot go on, for example after too many non-finite gradients in a row."""


class CheckpointError(BapoLightningError, RuntimeError):
    """A checkpoint is torn or corrupt, or a run cannot go on from it."""


class DiskFull(BapoLightningError, OSError):
    """A file could not be written, for lack of room."""


class RankError(BapoLightningError, RuntimeError):
    """One of several ranks failed, so that the others cannot go on."""


class RankLost(RankError):
    """The connection to another rank broke: its process is gone."""


@dataclass(frozen=True)
class Outcome:
    """Result of work in another process."""

    value: Any = None
    error: BapoLightningError | None = None

    def result(self) -> Any:
        """The value. Raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


def outcome_of(
    work: Callable[[], Any], message: str, kind: type[BapoLightningError] = EngineError
) -> Outcome:
    """Value or error of `work`; a foreign error, maybe not picklable, becomes one of `kind`, its text in
    `message`.
    """
    try:
        return Outcome(work())
    except BapoLightningError as error:
        return Outcome(error=error)
    except Exception as error:
        traceback.print_exc()
        return Outcome(error=kind(message.format(f"{type(error).__name__}: {error}")))


def first_line(error: BaseException) -> str:
    """First line of an error's message that is not empty, or else its type."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def nearest(given: str, options: Iterable[str], count: int = 1) -> list[str]:
    """The options that are likeliest meant by `given`, of other case alone first; never `given`."""
    by_fold = {option.casefold(): option for option in options if option != given}
    near = get_close_matches(given.casefold(), by_fold, max(count, 3))
    # Letters that changed places are likelier than one that is wrong: gpro is grpo.
    near.sort(key=lambda name: sorted(name) != sorted(given.casefold()))
    near.sort(key=lambda name: name != given.casefold())
    return [by_fold[name] for name in near[:count]]


def taken(option: str, options: Sequence[str]) -> str:
    """The end of a sentence about an unknown `option`: the one that is meant, and all there are if few."""
    near = nearest(option, options)
    if near and len(options) > _MANY:
        return f"did you mean {near[0]}?"
    return f"{f'did you mean {near[0]}? ' if near else ''}it takes {', '.join(options) or 'none'}"
