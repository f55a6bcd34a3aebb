"""Rewards of a user, most of them wrong."""

import random

import numpy as np
import torch

from bapo_lightning.types import Score, ScoreStatus

MADE = []


class Stateful:
    """A reward that remembers, draws and changes what it is given."""

    def __init__(self) -> None:
        MADE.append(self)
        self.seen, self.is_closed = [], False

    def __call__(self, problems, completions):
        self.seen += completions
        problems[0].metadata.clear()
        random.random(), np.random.rand(), torch.rand(1)
        return [Score(1.0, ScoreStatus.CORRECT)] * len(completions)

    def close(self) -> None:
        self.is_closed = True


def of_last_reply(problems, completions):
    return [Score(item.replies[-1].score, ScoreStatus.WRONG) for item in completions]


def one_for_all(problems, completions):
    return [Score(1.0, ScoreStatus.CORRECT)]


def not_a_number(problems, completions):
    return [Score(float("nan"), ScoreStatus.CORRECT)] * len(completions)


def fails(problems, completions):
    return [Score(1.0, ScoreStatus.CORRECT, problem.metadata["gone"]) for problem in problems]


def wants_rubric(completions, rubric):
    return [1.0] * len(completions)


def nothing(completions):
    return None


def length(completion_ids):
    return [float(len(ids)) for ids in completion_ids]
