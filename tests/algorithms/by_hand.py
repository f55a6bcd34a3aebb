"""What the tests of algorithms do by hand: exact numbers, gradients of tokens, options that cannot be."""

from collections.abc import Callable

import torch
from tests.builders import group, rollout
from tests.configuration.compositions import found

from bapo_lightning.data.rollouts.replay_rule import ReplayRule
from bapo_lightning.objectives.objective import Objective, Prepares, slopes
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.types import Group


def exact(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def prepared(objective: Prepares, table: TokenTable) -> TokenTable:
    """The table with what an objective prepares of it."""
    return table.with_columns(objective.prepare(table))


def pulls(objective: Objective, table: TokenTable) -> list[float]:
    """Gradient of the objective's sum in log pi, of every token."""
    return (slopes(objective, table) * table.ratio).tolist()


def refusal(algorithm: str, option: str) -> str:
    """What is said of an option of the objective that cannot be; the rest of the configuration can."""
    (problem,) = found(f"algorithm={algorithm}", f"algorithm.objective.{option}")
    assert problem.startswith("algorithm.objective.")
    return problem.removeprefix("algorithm.objective.")


def past_group(name: str, rewards: list[float], advantages: tuple[float, ...] | list[float] = ()) -> Group:
    """A scored group of answers of one policy version."""
    answers = [rollout([1], [2, index], [-1.0, -1.0]) for index in range(len(rewards))]
    return group(name, answers, rewards, advantages)


def check_rule_memory(make: Callable[[], ReplayRule]) -> None:
    """Checks that a rule about past groups goes on where it was saved."""
    one, other = make(), make()
    for number in range(5):
        one.valued([], [past_group("a", [0.1 * number**2])])
    other.load_state_dict(one.state_dict())
    past = [past_group("b", [1.0, 0.0], [1.0, -1.0])]
    for mean in (0.9, 0.2):
        assert one.valued(past, [past_group("c", [mean])]) == other.valued(past, [past_group("c", [mean])])
