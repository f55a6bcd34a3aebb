"""Values of the right kind that would train nonsense, or end in a traceback later."""

import pytest
from tests.configuration.compositions import found


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("name='c$x_{y'", "letters, digits and . _ + - only"),
        ("name=..", "begin with a letter or digit"),
        ("algorithm.name='<b>'", "letters, digits and . _ + - only"),
        ("scale.max_prompt_tokens=200000", "leaves no room for a response"),
        ("seed=-1", "from 0 to 4294967295"),
        ("regime.max_new_tokens=1", "a copy, for the age bound, of scale.max_new_tokens=32"),
        ("data.validation.additions.limit=-1", "a whole number of at least 1"),
        ("optimizer.optimizer.lr=inf", "optimizer.lr=inf must be finite"),
        ("optimizer.optimizer.lr=-1e-4", "optimizer.lr=-0.0001"),
        (
            "optimizer.optimizer.betas=[0.9,1.0]",
            "optimizer.optimizer is refused by torch.optim.AdamW: Invalid beta",
        ),
        ("optimizer.optimizer.weight_decay=-1", "Invalid weight_decay value: -1"),
        (
            "reward._target_=tests.rewards.test_functions.right",
            "returns numbers; write reward=functions reward.functions=[...]",
        ),
        ("optimizer.scheduler.warmup_updates=inf", "a whole number of at least 0"),
        ("algorithm.bounds.low.step=inf", "must have finite numbers"),
        ("algorithm.bounds.high.end=inf", "must have finite numbers"),
        ("algorithm.objective.dual_clip=nan", "must be above 1"),
    ],
)
def test_values_that_would_train_nonsense_are_refused(override, words):
    (problem,) = found(override)
    assert problem.startswith(override.partition("=")[0].partition(".")[0]) and words in problem


@pytest.mark.parametrize(
    "option", ["ngram=0", "ngram=1000", "common=0", "min_shared=1000000", "min_share=40"]
)
def test_the_overlap_filter_cannot_be_switched_off_by_a_number(option):
    (problem,) = found("data=math", "reward=math", f"data.filters.overlap.{option}")
    assert problem.startswith(f"data.filters.overlap.{option} must be")


@pytest.mark.parametrize("minibatches", [7, 999_983])
def test_the_nearest_division_of_a_huge_batch_is_found_at_once(minibatches):
    problems = found("scale.prompts_per_batch=1000000", f"regime.minibatches={minibatches}")
    assert any("does not divide scale.prompts_per_batch=1000000" in problem for problem in problems)
