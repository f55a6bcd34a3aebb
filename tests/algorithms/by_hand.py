"""What the tests of algorithms do by hand: exact numbers, gradients of tokens, options that cannot be."""

import torch
from tests.configuration.compositions import found

from bapo_lightning.objectives.objective import Objective, Prepares, slopes
from bapo_lightning.objectives.token_table import TokenTable


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
