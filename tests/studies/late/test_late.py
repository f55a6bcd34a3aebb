"""The audit: rules by hand, what each flow promises, the command in small, and the published page."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bapo_lightning.objectives.advantages.group import group_advantages
from studies.commands import with_parts
from studies.exact.world import ExactWorld
from studies.late.claims import mean_until
from studies.late.flow import Flow, trained_parts
from studies.late.measure import graded, setting_of, summary
from studies.late.page import page_parts
from studies.late.rules import advantages_among, kept
from studies.map.__main__ import main
from studies.map.plan import read_settings

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
SPANS, AGES = np.array([0, 2, 3]), np.array([[5, 4], [5, 3], [5, 2]])
RULES = read_settings(["map=late"]).rules


def flowed(action, bound=4, batches=60, world="hard"):
    """A flow, and for each of its batches the groups and what trains; the policy stays as it began."""
    config = read_settings(["map=late"])
    exact, difficulty = graded(config.world.make(ExactWorld), config.easiest)
    flow = Flow(setting_of(config, config.worlds[world], exact, action, bound), 0)
    first_CA = exact.log_probs(exact.prior)[:, 0].exp().cumsum(-1).numpy()
    first_CA[:, -1] = 1
    made = []
    for _ in range(batches):
        batch = flow.batch(first_CA)
        made.append((batch, *trained_parts(flow, batch)))
    return flow, made, summary(flow, difficulty.numpy())


def test_the_rules_by_hand():
    every = [[True, True]] * 3
    assert [each.tolist() for each in kept("evict", 4, SPANS, AGES)] == [[True] * 3, every]
    counted, trained = kept("drop_rollout", 4, SPANS, AGES)
    assert counted.tolist() == [True, True, False] == trained[:, 0].tolist()
    counted, trained = kept("withhold", 4, SPANS, AGES)
    assert counted.all()
    assert trained.tolist() == [*every[:2], [False, False]]
    assert kept("mask", 4, SPANS, AGES)[1].tolist() == [[False, True]] * 3


def test_advantages_are_relative_to_the_answers_that_count():
    rewards = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    counted = torch.tensor([[True, True, False], [True, True, True]])
    found = advantages_among(group_advantages, rewards, counted)
    torch.testing.assert_close(found[0], torch.tensor([-(0.5**0.5), 0.5**0.5, 0.0]))
    torch.testing.assert_close(found[1:], group_advantages(rewards[1:]))


@pytest.mark.parametrize("rule", RULES)
def test_every_flow_has_whole_batches_without_repeats_and_keeps_its_bound(rule):
    action = RULES[rule].action
    flow, made, found = flowed(action)
    numbers = [group.number for batch, *_ in made for group in batch]
    assert len({*numbers}) == len(numbers) == 60 * 16
    spans = [
        flow.spans(group)[own].max()
        for batch, _, counted, _ in made
        for group, own in zip(batch, counted, strict=True)
    ]
    ages = [(version - versions)[trained].max() for version, (_, versions, _, trained) in enumerate(made)]
    if action in ("pace", "evict", "mask"):
        assert max(ages) == 4
    if action == "drop_rollout":
        assert max(spans) == 2
    assert (found["waste"] < 1e-9) == (action in ("wait", "pace"))
    assert flow.now >= 60 * flow.setting.train_time


def test_the_same_group_has_the_same_problem_and_lengths_under_every_rule():
    first, second = (flowed(action, batches=4)[0].groups[40] for action in ("wait", "evict"))
    assert first.context == second.context
    np.testing.assert_array_equal(first.length_G, second.length_G)
    np.testing.assert_array_equal(first.luck_GK, second.luck_GK)


def test_a_mean_over_time_ends_where_it_should():
    assert mean_until(np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.0, 9.0]), 2.0) == 1.5


def test_the_command_writes_tables_page_and_picture_and_measures_once(tmp_path, capsys):
    options = ["map=late", "seeds=3", "num_updates=4", "bounds=[4]", f"output={tmp_path}"]
    options += [f"worlds.{name}=null" for name in ("tools", "rambling", "starved")]
    claim = "{name: a, claim: b, quantity: waste, rule: wait, against: 0.0, expected: equal, worlds: [hard]}"
    options.append(f"claims=[{claim}]")
    assert main(options) == 0 == main(options)
    assert "0 of 8 to compute" in capsys.readouterr().out
    assert "- b 1 of 1; +0.000" in (tmp_path / "late.md").read_text()
    assert {"claims.csv", "rules.csv", "late.png"} <= {path.name for path in tmp_path.iterdir()}
    next((tmp_path / "runs").iterdir()).write_text("")
    assert main(options) == 2
    assert "is damaged" in capsys.readouterr().err
    assert main([*options, f"claims=[{claim.replace('wait', 'x').replace('hard', 'y')}]"]) == 2
    assert "a names x, which is none of rules" in capsys.readouterr().err


def test_the_page_has_the_numbers_of_its_tables():
    page = (RESULTS / "late.md").read_text()
    again = 'make map MAP=late ARGS="publish=docs/results"'
    assert with_parts(page, "make map MAP=late", page_parts(RESULTS / "late")) == page, again
