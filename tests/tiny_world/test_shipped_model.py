"""The model that ships with the package, and the command that makes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import bapo_lightning.tiny_world
from bapo_lightning.tiny_world import warm_start
from bapo_lightning.tiny_world.measure import StartingFigures, measure
from bapo_lightning.tiny_world.tokenizer import build_tokenizer

FOLDER = Path(bapo_lightning.tiny_world.__file__).parent / "model"


@pytest.fixture(scope="module")
def figures() -> StartingFigures:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
    return measure(model, tokenizer, seed=1, num_problems=128)


def test_the_shipped_folder_is_small_and_says_how_it_was_made() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 4_000_000
    assert "python -m bapo_lightning.tiny_world.warm_start" in (FOLDER / "README.md").read_text()


def test_the_shipped_tokenizer_is_the_one_that_the_code_builds() -> None:
    shipped, built = AutoTokenizer.from_pretrained(FOLDER), build_tokenizer()
    assert shipped.get_vocab() == built.get_vocab()
    assert (shipped.eos_token, shipped.pad_token, shipped.padding_side) == ("#", "<pad>", "left")


def test_the_shipped_weights_are_float32_with_heads_of_32() -> None:
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.hidden_size // model.config.num_attention_heads == 32
    assert 90_000 < model.num_parameters() < 120_000


def test_the_shipped_model_samples_with_the_promised_accuracy(figures: StartingFigures) -> None:
    assert 0.22 < figures.sampled_accuracy < 0.45
    assert figures.first_value_right > 0.8


def test_the_shipped_model_s_wrong_answers_are_clearly_longer_than_its_right_ones(
    figures: StartingFigures,
) -> None:
    assert figures.length_not_right > 1.4 * figures.length_right
    assert 0.4 < figures.cut_fraction < 0.8


@pytest.mark.slow
def test_warm_start_makes_the_same_loadable_model_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        warm_start.main(["--output", str(tmp_path / name), "--steps", "2", "--seed", "3"])
    first, second = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("first", "second")
    )
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert "step     2/2" in capsys.readouterr().out


def test_warm_start_refuses_zero_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        warm_start.main(["--output", str(tmp_path), "--steps", "0"])
    assert "--steps is 0" in capsys.readouterr().err
