"""The model of the sums that ships with the package: it knows by half how to use its calculator."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import bapo_lightning.tiny_worlds.sums
from bapo_lightning.tiny_worlds.sums.measure import SumFigures, measure
from bapo_lightning.tiny_worlds.sums.task import Sums

FOLDER = Path(bapo_lightning.tiny_worlds.sums.__file__).parent / "model"


@pytest.fixture(scope="module")
def figures() -> SumFigures:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
    return measure(model, tokenizer, seed=1, num_problems=500, samples=4)


def test_it_calls_as_rarely_as_the_demonstrations_do(figures: SumFigures) -> None:
    world = Sums()
    assert figures.calls == pytest.approx(world.call, abs=0.03)
    assert figures.unreadable_calls == pytest.approx(world.unreadable, abs=0.06)


def test_it_copies_the_terms_and_the_result_with_slips(figures: SumFigures) -> None:
    assert 0.6 < figures.right_calls < 0.85
    assert 0.7 < figures.right_after_a_right_call < 0.95


def test_it_cannot_add(figures: SumFigures) -> None:
    assert figures.right_without_a_call < 0.01
    assert 0.05 < figures.reward < 0.15


def test_the_report_names_every_share(figures: SumFigures) -> None:
    report = figures.report()
    assert "500 validation problems, 4 conversations each" in report
    assert f"| reward | {figures.reward:.3f} |" in report
