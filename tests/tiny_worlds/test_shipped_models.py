"""The models that ship with the package, and the command that makes them."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import warm_start
from transformers import AutoModelForCausalLM, AutoTokenizer

import bapo_lightning.tiny_worlds
from bapo_lightning.tiny_worlds.locks.task import Locks
from bapo_lightning.tiny_worlds.sums.task import Sums
from bapo_lightning.tiny_worlds.tokenizer import build_tokenizer
from world_figures import measure_additions, measure_locks, measure_sums

ROOT = Path(bapo_lightning.tiny_worlds.__file__).parent
WORLDS = pytest.mark.parametrize("world", ["additions", "locks", "sums"])


def loaded(world):
    folder = ROOT / world / "model"
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@WORLDS
def test_the_shipped_folder_is_small_and_has_what_the_code_builds(world):
    folder = ROOT / world / "model"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4_000_000
    assert f"python scripts/warm_start.py {world} " in (folder / "README.md").read_text()
    model, shipped = loaded(world)
    assert shipped.get_vocab() == build_tokenizer(warm_start.WORLDS[world].characters).get_vocab()
    assert (shipped.eos_token, shipped.pad_token, shipped.padding_side) == ("#", "<pad>", "left")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.hidden_size // model.config.num_attention_heads == 32
    assert 90_000 < model.num_parameters() < 120_000


def test_the_model_of_the_additions_is_half_right_and_its_wrong_answers_are_longer():
    additions = measure_additions(*loaded("additions"), seed=1, num_problems=128)
    assert 0.22 < additions.sampled_accuracy < 0.45
    assert additions.first_value_right > 0.8
    assert additions.length_not_right > 1.4 * additions.length_right
    assert 0.4 < additions.cut_fraction < 0.8


def test_the_model_of_the_locks_prefers_the_popular_key_and_knows_which_keys_open():
    found = measure_locks(*loaded("locks"))
    world = Locks()
    assert found.popular_key == pytest.approx(world.popular, abs=0.05)
    assert found.master_key == pytest.approx(world.master, abs=0.02)
    assert found.master_key_of_the_rarest_tenth > world.master / 3
    assert min(found.ends_where_it_opens, found.searches_where_it_does_not) > 0.95


def test_the_model_of_the_sums_calls_its_calculator_with_slips_and_cannot_add():
    found, world = measure_sums(*loaded("sums"), seed=1, num_problems=500, samples=4), Sums()
    assert found.calls == pytest.approx(world.call, abs=0.03)
    assert found.unreadable_calls == pytest.approx(world.unreadable, abs=0.06)
    assert 0.6 < found.right_calls < 0.85
    assert 0.7 < found.right_after_a_right_call < 0.95
    assert found.right_without_a_call < 0.01
    assert 0.05 < found.reward < 0.15
    report = found.report()
    assert "500 validation problems, 4 conversations each" in report
    assert f"| reward | {found.reward:.3f} |" in report


@pytest.mark.slow
@WORLDS
def test_warm_start_makes_the_same_loadable_model_twice(world, tmp_path, capsys, monkeypatch):
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


def test_warm_start_refuses_zero_steps(tmp_path, capsys):
    with pytest.raises(SystemExit):
        warm_start.main(["additions", "--output", str(tmp_path), "--steps", "0"])
    assert "--steps: 0 must be a whole number of at least 1" in capsys.readouterr().err
