import pytest
import torch

from bapo_lightning.objectives.bounds import (
    bound_grid,
    contribution_curves,
    positive_contribution,
    search_bounds,
)

LOWS, HIGHS, ONES = torch.tensor([0.5, 0.75]), torch.tensor([1.25, 1.5, 2.0]), torch.ones(4)


@pytest.mark.parametrize(
    ("start", "end", "step", "points"),
    [
        (0.6, 0.9, 0.02, 16),
        (1.2, 3.0, 0.05, 37),
        (0.8, 0.95, 0.05, 4),
        (1.2, 2.0, 0.1, 9),
        (0.8, 0.8, 0.02, 1),
    ],
)
def test_the_papers_grids_reach_their_end(start, end, step, points) -> None:
    grid = bound_grid(start, end, step)
    assert grid.dtype == torch.float32
    assert grid.shape == (points,)
    assert grid[0].item() == pytest.approx(start)
    assert grid[-1].item() == pytest.approx(end)
    assert (grid.diff() > 0).all()


def test_a_step_that_does_not_fit_stops_before_the_end() -> None:
    assert bound_grid(1.0, 2.0, 0.4).tolist() == pytest.approx([1.0, 1.4, 1.8])
    assert bound_grid(0.0, 0.5, 1.0, torch.float64).tolist() == [0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.6, 0.9, 0.0), "step of a bound must be positive, got 0.0"),
        ((0.6, 0.9, -0.1), "step of a bound must be positive, got -0.1"),
        ((0.9, 0.6, 0.1), "got start 0.9 and end 0.6"),
        ((0.6, float("nan"), 0.1), "got start 0.6 and end nan"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        bound_grid(*arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: contribution_curves(ONES, ONES, ONES, None, LOWS, HIGHS, "value"),
            "kind must be one of gradient, surrogate",
        ),
        (
            lambda: contribution_curves(ONES, ONES[:3], ONES, None, LOWS, HIGHS),
            r"advantage must have the shape of ratio, \[4\]",
        ),
        (
            lambda: contribution_curves(ONES, ONES, ONES, ONES[:1], LOWS, HIGHS),
            r"weight must have the shape .* got \[1\]",
        ),
        (
            lambda: contribution_curves(ONES, ONES, ONES, None, LOWS[:0], HIGHS),
            "lows must be an ascending 1-D grid",
        ),
        (
            lambda: contribution_curves(ONES, ONES, ONES, None, LOWS, HIGHS[0]),
            "highs must be an ascending 1-D grid",
        ),
        (
            lambda: search_bounds(HIGHS, LOWS, LOWS, HIGHS, 0.4, "both", "share"),
            "order must be one of upper_first, lower_first",
        ),
        (
            lambda: search_bounds(HIGHS, LOWS, LOWS, HIGHS, 0.4, "upper_first", "sum"),
            "measure must be one of share, ratio",
        ),
        (
            lambda: search_bounds(LOWS, HIGHS, LOWS, HIGHS, 0.4, "upper_first", "share"),
            r"shape of highs, \[3\], got \[2\]",
        ),
        (
            lambda: positive_contribution(ONES, ONES, "mean"),
            "measure must be one of share, ratio, got 'mean'",
        ),
    ],
)
def test_arguments_that_cannot_be_are_refused(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()
