"""Bounds that are guessed: the gradient is equal to the gradient of two passes, whatever the guess, for the
price of one pass and of the samples that the guess misjudged.
"""

from types import SimpleNamespace

import pytest
import torch
from tests.builders import ReadsAll, adaptive, budget_for, gradients, module, random_policy, stale_batch
from tests.modules.test_bapo_update import count_forwards

from bapo_lightning.modules.speculation import misjudged, samples_to_redo, speculate
from bapo_lightning.modules.token_tables import ON_GRAPH, OUTPUTS, token_table
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.sequences import mean_over_sequence
from bapo_lightning.objectives.surrogate import clipped_surrogate
from bapo_lightning.objectives.token_table import NAMES, reads, table_of
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
    policy, searching = random_policy(), adaptive(**dict(rule), search=mode)
    made = module(policy, searching, micro_batch_tokens=budget_for(batch, parts), **changes)
    made.manual_backward = lambda loss: loss.backward()
    made.optimizers = lambda: SimpleNamespace(zero_grad=policy.zero_grad)
    made.apply_gradients = lambda optimizer: 0.0
    made._fabric, made._trainer = None, SimpleNamespace(global_step=3, callbacks=[ReadsAll()])
    if guess is not None:
        low, high = (torch.tensor(bound) for bound in guess)
        made.last_bounds = BoundSearch(low, high, low, low > 0)
    return made


def updated(*arguments, **changes):
    made = owner(*arguments, **changes)
    outputs = made.training_step(arguments[1], 0)
    return outputs, gradients(made.policy), made


def misjudged_samples(table, bounds, micro_batches):
    """Samples of all micro-batches but the last in which a guess cuts other tokens than the true bounds."""
    cut = [
        (table.advantage > 0) & (table.ratio > high) | (table.advantage < 0) & (table.ratio < low)
        for low, high in (bounds, (table.low, table.high))
    ]
    before = sum(len(part.advantage) for part in micro_batches[:-1])
    return set(table.sequence[:before][(cut[0] != cut[1])[:before]].tolist())


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
    wrong = misjudged_samples(exact["tokens"], bounds, owner("exact", batch, parts).micro_batches(batch)[0])
    outputs, found, made = updated("guessed", batch, parts, guess=bounds, **options)
    assert outputs["bounds"][0][:2] == true[:2] == made.last_bounds[:2]
    assert outputs["metrics"]["search/guessed"] == (not wrong)
    redone = sum(batch.response_lengths[batch.sequences.index(sample)] for sample in wrong)
    assert outputs["metrics"]["search/redone_tokens"] == redone
    assert torch.equal(outputs["loss"], exact["loss"])
    for name in NAMES:
        assert torch.equal(getattr(outputs["tokens"], name), getattr(exact["tokens"], name)), name
    assert (found - gradient).norm() <= (1e-6 if wrong else 0) * gradient.norm()
    assert torch.equal(updated("guessed", batch, parts, guess=bounds, **options)[1], found)


def test_only_samples_that_a_guess_misjudged_pass_through_the_model_again(batch):
    table = updated("exact", batch, 5, rule=RULES["paper"])[0]["tokens"]
    true = float(table.low[0]), float(table.high[0])
    # a guess that only the largest ratio of a positive token distinguishes from the truth
    between = float(table.ratio[(table.advantage > 0) & (table.ratio > true[1])].min())
    for mode, guess, expected in [
        ("guessed", true, [5]),
        ("guessed", (true[0], between), [5, 5 + 1]),  # the token may be in the last micro-batch
        ("guessed", (0.9, 3.0), range(5 + 1, 5 + 5)),
        ("exact", (0.6, 1.2), [5 + 5]),
    ]:
        made = owner(mode, batch, 5, guess=guess, rule=RULES["paper"])
        calls = count_forwards(made.policy)
        made.training_step(batch, 0)
        assert len(calls) in expected


def test_whole_responses_and_objectives_of_the_whole_update(batch):
    options = {"rule": RULES["paper"], "objective": of_whole_responses}
    _, gradient, _ = updated("exact", batch, 5, **options)
    _, found, _ = updated("guessed", batch, 5, guess=(0.9, 3.0), **options)
    assert (found - gradient).norm() <= 1e-6 * gradient.norm()
    made = owner("guessed", batch, 5, guess=(0.9, 3.0), rule=RULES["paper"], objective=OfWholeUpdates())
    calls = count_forwards(made.policy)
    assert "search/guessed" not in made.training_step(batch, 0)["metrics"]
    assert calls == [False] * 5 + [True] * 5, "a statistic of the whole update needs its pass"


class OfCandidates:
    needs = frozenset({"candidate_logp", "candidate_behaviour_logp"})

    def __call__(self, table):
        """What follows is cut by the bounds for the candidates alone: no other column's gradient is."""
        ratio = (table["candidate_logp"] - table["candidate_behaviour_logp"]).exp()
        return ratio.clamp(max=table.high[:, None]).sum(1)


def test_what_is_misjudged_by_a_column_of_candidates_alone_is_done_again():
    candidates = torch.tensor([[0.1, 0.5, 0.9]]).log().requires_grad_()
    score = torch.tensor([-1.0]).log_softmax(0).requires_grad_()

    def table(_):
        zero, one = torch.zeros(1, dtype=torch.long), torch.ones(1)
        places = dict.fromkeys(("age", "sequence", "group", "position"), zero)
        known = {"entropy": one, "count": one, "advantage": one, "weight": one}
        more = {"candidate_logp": candidates, "candidate_behaviour_logp": torch.full((1, 3), 0.4).log()}
        return table_of(score, torch.zeros(1), **places, **known, **more)

    def gradient(guess):
        candidates.grad = None
        pair = [BoundSearch(torch.tensor(0.8), torch.tensor(high), one, one > 0) for high in (guess, 2.0)]
        own = table, lambda tables: pair[1], OfCandidates(), lambda loss, _: loss.backward()
        part = speculate([1, 2], 2, pair[0], *own, lambda samples: ([1], 1))
        return candidates.grad, part.redone

    one = torch.tensor(1.0)
    exact, redone = gradient(2.0)
    assert redone == 0
    found, redone = gradient(1.2)
    assert redone == 1
    torch.testing.assert_close(found, exact)


def test_the_judge_looks_at_every_column_through_which_gradients_flow(batch):
    def every_output_on_the_graph(part):
        return tuple(torch.zeros(len(part.weight), requires_grad=True) for _ in OUTPUTS)

    (part,) = batch.split(100_000, torch.ones_like(batch.behaviour_logp), random_policy().layout)
    table = token_table(every_output_on_the_graph, part, 3)
    assert {name for name, values in table.columns.items() if values.requires_grad} == ON_GRAPH


def test_the_last_micro_batch_is_never_misjudged_since_its_bounds_are_known_before_its_gradient(batch):
    true = updated("exact", batch, 5, rule=RULES["paper"])[0]
    table, (bounds,) = true["tokens"], true["bounds"]
    between = table.ratio[(table.advantage > 0) & (table.ratio > bounds.high)].min()
    guess = bounds._replace(high=between)
    made = owner("exact", batch, 5)
    with torch.no_grad():
        tables = [made.score(part) for part in made.micro_batches(batch)[0]]
    wrong = [misjudged([table], guess, bounds, clip) for table in tables]
    (number,) = (number for number, found in enumerate(wrong) if found)
    odd, right = tables.pop(number), tables
    assert samples_to_redo([odd, *right], guess, bounds, clip) == wrong[number]
    assert samples_to_redo(right, guess, bounds, clip) is None
    assert samples_to_redo([odd, *right], bounds, bounds, clip) is None


def test_a_checkpoint_holds_the_next_guess(batch):
    _, _, made = updated("guessed", batch, 2, guess=(0.9, 3.0), rule=RULES["paper"])
    checkpoint, other = {}, owner("guessed", batch, 2)
    made.on_save_checkpoint(checkpoint)
    other.on_load_checkpoint(checkpoint)
    assert other.last_bounds == made.last_bounds
    assert owner("guessed", batch, 2).guess([1, 2]) is None, "before the first search"


def test_without_several_micro_batches_nothing_is_guessed(batch):
    outputs, gradient, _ = updated("guessed", batch, 1, guess=(0.9, 3.0), rule=RULES["paper"], objective=clip)
    assert "search/guessed" not in outputs["metrics"]
    assert torch.equal(gradient, updated("exact", batch, 1, rule=RULES["paper"])[1])
