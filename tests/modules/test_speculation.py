"""Bounds that are guessed: the gradient is that of two passes, whatever the guess, for the price of one where
it held.
"""

from types import SimpleNamespace

import pytest
import torch
from tests.builders import (
    ReadsAll,
    adaptive,
    budget_for,
    gradients,
    module,
    random_policy,
    stale_batch,
)
from tests.modules.test_bapo_update import count_forwards

from bapo_lightning.modules.speculation import MOST_REDONE, REMEMBERED, Guesses
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.clip import clip
from bapo_lightning.objectives.sequences import mean_over_sequence
from bapo_lightning.objectives.surrogate import clipped_surrogate
from bapo_lightning.objectives.token_table import NAMES, reads
from bapo_lightning.objectives.weighting import sequence_mean

RULES = {
    "paper": {"target": 0.55},
    "surrogate, lower first": {"target": 0.5, "kind": "surrogate", "order": "lower_first"},
    "ratio, unweighted": {"target": 1.0, "measure": "ratio", "weight": "none"},
    "rest": {"target": 0.1, "rest": {"low": 0.8, "high": 1.2}},
    "memory": {"target": 0.55, "memory": 4},
}
GUESSES = {"true": None, "start": (0.6, 1.2), "end": (0.9, 3.0), "no token between": "beside"}


def of_whole_responses(table):
    ratio = mean_over_sequence(table.log_ratio, table).exp()
    return clipped_surrogate(ratio, table.advantage, table.low, table.high)


class OfWholeUpdates:
    @reads("ratio")
    def prepare(self, table):
        return {"mean": table.ratio.mean()}

    def __call__(self, table):
        return clip(table) / table["mean"]


@pytest.fixture(scope="module")
def batch():
    return stale_batch(random_policy(), num_groups=8)


def owner(mode, batch, parts, guess=None, rule=(), **changes):
    policy = random_policy()
    made = module(
        policy, adaptive(**dict(rule), search=mode), micro_batch_tokens=budget_for(batch, parts), **changes
    )
    made.manual_backward = lambda loss: loss.backward()
    made.optimizers = lambda: SimpleNamespace(zero_grad=policy.zero_grad)
    made.apply_gradients = lambda optimizer: 0.0
    made._fabric, made._trainer = None, SimpleNamespace(global_step=3, callbacks=[ReadsAll()])
    if guess is not None:
        low, high = (torch.tensor(bound) for bound in guess)
        made.guesses.last = BoundSearch(low, high, low, low > 0)
    return made


def updated(*arguments, **changes):
    made = owner(*arguments, **changes)
    outputs = made.training_step(arguments[1], 0)
    return outputs, gradients(made.policy), made


def holds(table, bounds, micro_batches):
    """Whether a guess clips the same tokens as the true bounds, in all micro-batches but the last."""
    cut = [
        (table.advantage > 0) & (table.ratio > high) | (table.advantage < 0) & (table.ratio < low)
        for low, high in (bounds, (table.low, table.high))
    ]
    before = sum(len(part.advantage) for part in micro_batches[:-1])
    return torch.equal(cut[0][:before], cut[1][:before])


@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("parts", [2, 5])
def test_the_gradient_is_that_of_two_passes_whatever_the_guess(rule, guess, parts, batch):
    options = {"rule": RULES[rule], "weighting": sequence_mean}
    exact, gradient, _ = updated("exact", batch, parts, **options)
    (true,) = exact["bounds"]
    bounds = GUESSES[guess] or (float(true.low), float(true.high))
    if bounds == "beside":
        bounds = float(true.low) * (1 + 1e-6), float(true.high)
    held = holds(exact["tokens"], bounds, owner("exact", batch, parts).micro_batches(batch)[0])
    for mode in ("speculative", "bitwise"):
        outputs, found, _ = updated(mode, batch, parts, guess=bounds, **options)
        assert outputs["bounds"][0][:2] == true[:2]
        assert outputs["metrics"]["search/guessed"] == held
        assert (outputs["metrics"]["search/redone_tokens"] > 0) != held
        assert torch.equal(outputs["loss"], exact["loss"])
        for name in NAMES:
            assert torch.equal(getattr(outputs["tokens"], name), getattr(exact["tokens"], name)), name
        if held or mode == "bitwise":
            assert torch.equal(found, gradient)
        assert (found - gradient).norm() <= 1e-6 * gradient.norm()


def test_only_what_a_guess_misjudged_passes_through_the_model_again(batch):
    (true,) = updated("exact", batch, 5, rule=RULES["paper"])[0]["bounds"]
    for mode, guess, expected in [
        ("speculative", tuple(map(float, true[:2])), 5),
        ("bitwise", tuple(map(float, true[:2])), 5),
        ("bitwise", (0.6, 1.2), 5 + 5),
        ("exact", (0.6, 1.2), 5 + 5),
    ]:
        made = owner(mode, batch, 5, guess=guess, rule=RULES["paper"])
        calls = count_forwards(made.policy)
        made.training_step(batch, 0)
        assert len(calls) == expected
    # a guess that only the largest ratio of a positive token tells from the truth
    table = updated("exact", batch, 5, rule=RULES["paper"])[0]["tokens"]
    between = table.ratio[(table.advantage > 0) & (table.ratio > true.high)].min()
    made = owner("speculative", batch, 5, guess=(float(true.low), float(between)), rule=RULES["paper"])
    calls = count_forwards(made.policy)
    outputs = made.training_step(batch, 0)
    assert len(calls) in (5, 5 + 2)  # the micro-batch of that token, and the last one
    assert outputs["metrics"]["search/redone_tokens"] < batch.num_tokens


def test_whole_responses_and_objectives_of_the_whole_update(batch):
    options = {"rule": RULES["paper"], "objective": of_whole_responses}
    _, gradient, _ = updated("exact", batch, 5, **options)
    _, found, _ = updated("speculative", batch, 5, guess=(0.9, 3.0), **options)
    assert (found - gradient).norm() <= 1e-6 * gradient.norm()
    made = owner("bitwise", batch, 5, guess=(0.9, 3.0), rule=RULES["paper"], objective=OfWholeUpdates())
    calls = count_forwards(made.policy)
    assert "search/guessed" not in made.training_step(batch, 0)["metrics"]
    assert calls == [False] * 5 + [True] * 5, "a statistic of the whole update needs its pass"


def test_guesses_end_while_they_cost_more_than_they_save_and_begin_again(batch):
    made = owner("bitwise", batch, 2, guess=(0.9, 3.0), rule=RULES["paper"])
    calls = count_forwards(made.policy)
    costs = []
    for _ in range(8):
        made.guesses.last = BoundSearch(torch.tensor(0.9), torch.tensor(3.0), *made.guesses.last[2:])
        calls.clear()
        made.training_step(batch, 0)
        costs.append(sum(calls))  # passes with a gradient
    first_refused = costs.index(2)
    assert costs == [4] * first_refused + [2] * (8 - first_refused)
    assert 1 - (1 - 1 / REMEMBERED) ** first_refused > MOST_REDONE
    for _ in range(20):
        calls.clear()
        made.training_step(batch, 0)
    assert calls == [True, True], "the bounds stay the same, and guesses are right"


def test_a_guess_goes_on_after_a_checkpoint_and_an_old_one_begins_without(batch):
    _, _, made = updated("bitwise", batch, 2, guess=(0.9, 3.0), rule=RULES["paper"])
    state, other = made.guesses.state(), Guesses("bitwise")
    torch.testing.assert_close(state["redone"], 1 / REMEMBERED)
    other.load(state)
    assert other.last == made.guesses.last and other.redone == made.guesses.redone
    other.load({})
    assert other.for_part([1, 2], torch.device("cpu")) is None


def test_without_several_micro_batches_nothing_is_guessed(batch):
    outputs, gradient, _ = updated("bitwise", batch, 1, guess=(0.9, 3.0), rule=RULES["paper"], objective=clip)
    assert "search/guessed" not in outputs["metrics"]
    assert torch.equal(gradient, updated("exact", batch, 1, rule=RULES["paper"])[1])
