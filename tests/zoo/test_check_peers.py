"""The comparison with TRL's and verl's own code finds what it is for; neither has to be installed."""

import sys
from dataclasses import replace

import pytest
import torch
from tests.zoo import peers
from tests.zoo.peer_cases import CASES, Case
from tests.zoo.peer_jobs import answers
from tests.zoo.peers import OUTDATED, SAME, TOO_FAR, Row

GRPO = Case("ppo", "grpo", {})
EVERY = [pytest.param(case, id=f"{peer}-{case.name}") for peer, cases in CASES.items() for case in cases]


def padded(gradient, given):
    """A gradient of the objective as a peer answers it: that of its loss, in rows."""
    rows = torch.zeros(given.mask.shape, dtype=torch.float64)
    rows[given.mask] = -gradient
    return rows


@pytest.fixture(scope="module")
def given():
    return peers.sample(0)


@pytest.fixture(scope="module")
def right(given):
    """What a peer with our GRPO answers, over any number of micro-batches."""
    return dict.fromkeys(peers.PARTS, padded(peers.our_gradient(GRPO, given), given))


def test_our_own_gradient_is_the_same(given, right):
    row = peers.row(GRPO, [right], [given])
    assert (row.verdict, row.split_verdict, row.fails) == (SAME, SAME, False)


def test_another_gradient_is_too_far_unless_the_reading_is_named(given, right):
    wrong = {parts: 1.001 * gradient for parts, gradient in right.items()}
    assert peers.row(GRPO, [wrong], [given]).verdict == TOO_FAR
    named = peers.row(replace(GRPO, reading="a thousandth more"), [wrong], [given])
    assert (named.verdict, named.fails) == ("a thousandth more", False)


def test_a_gradient_that_depends_on_the_split_fails_unless_that_is_known(given, right):
    parted = right | {5: 1.5 * right[5]}
    row = peers.row(GRPO, [right, parted], [given, given])
    assert row.splits == {2: 0.0, 5: pytest.approx(0.5)} and row.split_verdict == TOO_FAR and row.fails
    assert not peers.row(replace(GRPO, split="its mean"), [parted], [given]).fails


def test_a_known_difference_that_is_not_found_fails():
    assert Row(replace(GRPO, reading="other bounds"), 0.0, {}).verdict == OUTDATED
    assert Row(replace(GRPO, split="its mean"), 0.0, {2: 0.0}).fails
    assert Row(GRPO, float("nan"), {}).fails


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_our_side_of_every_case_can_be_computed_and_every_option_changes_it(case, given):
    ours = {"factor": peers.our_factor, "advantage": peers.our_advantages}.get(case.kind, peers.our_gradient)
    found = ours(case, given)
    assert found.abs().sum() > 0
    if case.overrides or case.correction:
        assert not ours(replace(case, overrides=(), correction=()), given).equal(found)


def test_gaps_and_ratios_of_the_sample_are_on_both_sides_of_bounds(given):
    token = peers.correction("masked_is")
    response = peers.correction("sequence_masked_is", "weights.weigh=false")
    table = peers.table_from(given.columns, peers.algorithms.method("grpo"))
    for weights in (token(table), response(table)):
        assert 0 < (weights == 0).float().mean() < 1


def test_a_script_answers_each_case_over_each_number_of_micro_batches(monkeypatch, tmp_path):
    table = {"mask": torch.ones(4, 3), "logp": torch.zeros(4, 3), "advantage": torch.ones(4, 3)}
    cases = [
        {"name": "mean", "kind": "loss", "options": {}},
        {"name": "one", "kind": "factor", "options": {}},
    ]
    torch.save({"tables": [table], "cases": cases, "parts": (1, 2)}, tmp_path / "job")
    monkeypatch.setattr(sys, "argv", ["answers", str(tmp_path / "job"), str(tmp_path / "answers")])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    def mean(part, options, parts, whole):
        return -(part["logp"] * part["advantage"]).mean()

    answers.answer("1.0", mean, {"factor": lambda table, options: table["mask"]})
    told = torch.load(tmp_path / "answers")
    found = told["answers"]["mean"][0]
    assert told["version"] == "1.0" and told["answers"]["one"][0].equal(table["mask"])
    torch.testing.assert_close(found[1], torch.full((4, 3), -1 / 12))
    torch.testing.assert_close(found[2], torch.full((4, 3), -1 / 6))


def test_a_peer_that_is_not_there_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(peers, "python", lambda peer: tmp_path / peer)
    assert peers.show(["trl", "verl"]) == []
    assert capsys.readouterr().out.splitlines() == [
        "trl: not compared; first: make setup-trl",
        "verl: not compared; first: make setup-verl",
    ]


def test_a_script_that_fails_is_reported_with_its_last_words(monkeypatch, tmp_path, capsys):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'ImportError: no trl' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(peers, "python", lambda peer: broken)
    assert peers.show(["trl"]) == ["trl"]
    assert "trl_answers.py failed: ImportError: no trl" in capsys.readouterr().out


def test_the_table_names_what_is_not_as_it_is_known_to_be(monkeypatch, tmp_path, capsys):
    rows = [Row(GRPO, 1e-3, {2: 0.0, 5: 0.0})]
    monkeypatch.setattr(peers, "python", lambda peer: tmp_path)
    monkeypatch.setattr(peers, "compare", lambda *_: ("9.9", rows))
    assert peers.show(["trl"], only=["grpo"]) == ["trl's ppo"]
    shown = capsys.readouterr().out
    assert "trl 9.9" in shown and TOO_FAR in shown and "not as it is known to be: trl's ppo" in shown
    assert peers.show(["trl"], only=["gapo"]) == [], "none of its cases is ours"
