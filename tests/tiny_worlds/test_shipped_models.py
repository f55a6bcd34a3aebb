"""The models that ship with the package, and the command that makes them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import bapo_lightning.tiny_worlds
from bapo_lightning.tiny_worlds import warm_start
from bapo_lightning.tiny_worlds.additions.measure import StartingFigures, measure
from bapo_lightning.tiny_worlds.locks.measure import measure as measure_locks
from bapo_lightning.tiny_worlds.locks.task import Locks
from bapo_lightning.tiny_worlds.tokenizer import build_tokenizer

ROOT = Path(bapo_lightning.tiny_worlds.__file__).parent
WORLDS = pytest.mark.parametrize("world", ["additions", "locks", "sums"])


def loaded(world: str) -> tuple[Any, Any]:
    folder = ROOT / world / "model"
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def figures() -> StartingFigures:
    return measure(*loaded("additions"), seed=1, num_problems=128)


@WORLDS
def test_the_shipped_folder_is_small_and_says_how_it_was_made(world: str) -> None:
    folder = ROOT / world / "model"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4_000_000
    assert f"python -m bapo_lightning.tiny_worlds.warm_start {world} " in (folder / "README.md").read_text()


@WORLDS
def test_the_shipped_tokenizer_is_the_one_that_the_code_builds(world: str) -> None:
    shipped, built = loaded(world)[1], build_tokenizer(warm_start.WORLDS[world].characters)
    assert shipped.get_vocab() == built.get_vocab()
    assert (shipped.eos_token, shipped.pad_token, shipped.padding_side) == ("#", "<pad>", "left")


@WORLDS
def test_the_shipped_weights_are_float32_with_heads_of_32(world: str) -> None:
    model = loaded(world)[0]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.hidden_size // model.config.num_attention_heads == 32
    assert 90_000 < model.num_parameters() < 120_000


def test_the_model_of_the_additions_samples_with_the_promised_accuracy(figures: StartingFigures) -> None:
    assert 0.22 < figures.sampled_accuracy < 0.45
    assert figures.first_value_right > 0.8


def test_its_wrong_answers_are_clearly_longer_than_its_right_ones(figures: StartingFigures) -> None:
    assert figures.length_not_right > 1.4 * figures.length_right
    assert 0.4 < figures.cut_fraction < 0.8


def test_the_model_of_the_locks_prefers_the_popular_key_and_knows_which_keys_open() -> None:
    found = measure_locks(*loaded("locks"))
    world = Locks()
    assert found.popular_key == pytest.approx(world.popular, abs=0.05)
    assert found.master_key == pytest.approx(world.master, abs=0.02)
    assert found.master_key_of_the_rarest_tenth > world.master / 3
    assert min(found.ends_where_it_opens, found.searches_where_it_does_not) > 0.95


@pytest.mark.slow
@WORLDS
def test_warm_start_makes_the_same_loadable_model_twice(
    world: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if world != "locks":  # which is measured without a sample
        found = warm_start.WORLDS[world]
        measured = replace(found, measure=partial(found.measure, num_problems=8))
        monkeypatch.setitem(warm_start.WORLDS, world, measured)
    for name in ("first", "second"):
        warm_start.main([world, "--output", str(tmp_path / name), "--steps", "2", "--seed", "3"])
    first, second = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("first", "second")
    )
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert "step     2/2" in capsys.readouterr().out


def test_warm_start_refuses_zero_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        warm_start.main(["additions", "--output", str(tmp_path), "--steps", "0"])
    assert "--steps is 0" in capsys.readouterr().err
