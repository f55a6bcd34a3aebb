"""Weights are written one at a time, and a model folder appears whole or not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from bapo_lightning.callbacks.hf_export import weight_specs
from bapo_lightning.errors import DataError
from bapo_lightning.modules.export.model_card import model_card
from bapo_lightning.modules.export.model_folder import write_model_folder
from bapo_lightning.modules.export.safetensors_shards import INDEX, WeightSpec, write_shards
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions

TINY = model_path("package://bapo_lightning/tiny_world/model")
WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5, -2.0]), "c": torch.full((4,), 0.1)}
SPECS = [WeightSpec(name, tuple(weight.shape), torch.float32) for name, weight in WEIGHTS.items()]


def test_one_file_is_what_the_library_reads(tmp_path: Path) -> None:
    write_shards(tmp_path, SPECS, WEIGHTS.items(), 10**9)
    found = load_file(tmp_path / "model.safetensors")
    assert (
        all(torch.equal(found[name], weight) for name, weight in WEIGHTS.items())
        and found.keys() == WEIGHTS.keys()
    )
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert not (tmp_path / INDEX).exists()


def test_files_stay_below_the_limit_and_a_larger_weight_stands_alone(tmp_path: Path) -> None:
    write_shards(tmp_path, SPECS, WEIGHTS.items(), 20)
    sizes = {
        file.name: [list(tensor.shape) for tensor in load_file(file).values()]
        for file in sorted(tmp_path.glob("*.safetensors"))
    }
    assert list(sizes.values()) == [[[2, 3]], [[2]], [[4]]]
    assert '"total_size": 48' in (tmp_path / INDEX).read_text()


def test_weights_are_converted_as_they_pass(tmp_path: Path) -> None:
    write_shards(tmp_path, [WeightSpec("c", (4,), torch.bfloat16)], [("c", WEIGHTS["c"])], 10**9)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["c"], WEIGHTS["c"].bfloat16())


def test_only_one_weight_is_alive_at_a_time(tmp_path: Path) -> None:
    alive, most = set(), 0

    def weights() -> Iterator[tuple[str, Tensor]]:
        nonlocal most
        import weakref

        for number in range(8):
            weight = torch.full((1000,), float(number))
            alive.add(number)
            weakref.finalize(weight, alive.discard, number)
            most = max(most, len(alive))
            yield f"w{number}", weight
            del weight

    write_shards(
        tmp_path, [WeightSpec(f"w{number}", (1000,), torch.float32) for number in range(8)], weights(), 10**9
    )
    assert most <= 2  # the one that is written, and the next


def test_a_weight_that_was_not_announced_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a \[2, 3\], got b \[2\]"):
        write_shards(tmp_path, SPECS, [("b", WEIGHTS["b"])], 10**9)


def write(target: Path, lora: LoraOptions | None = None, **options: object) -> Path:
    policy = build_policy(ModelOptions(TINY, lora=lora), 1.0)
    write_model_folder(target, TINY, weight_specs(policy), policy.named_weights(), "card", **options)  # type: ignore[arg-type]
    return target


def test_an_exported_model_loads_and_equals_the_policy(tmp_path: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(write(tmp_path / "out", max_shard_bytes=100_000))
    expected = AutoModelForCausalLM.from_pretrained(TINY).state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in loaded.state_dict().items())


def test_adapters_are_merged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = build_policy(ModelOptions(TINY, lora=LoraOptions(2, 4)), 1.0)
    with torch.no_grad():
        for parameter in policy.trained_parameters():
            parameter.normal_(std=0.1)
    ids = torch.arange(1, 9)[None]
    write_model_folder(tmp_path / "out", TINY, weight_specs(policy), policy.named_weights(), "card")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.allclose(loaded(ids).logits, policy.model(ids).logits, atol=1e-4)


def test_a_folder_that_is_there_is_kept_unless_told(tmp_path: Path) -> None:
    target = write(tmp_path / "out")
    with pytest.raises(DataError, match="exists already; name another folder"):
        write(target)
    (target / "README.md").write_text("old")
    write(target, overwrite=True)
    assert (target / "README.md").read_text() == "card"


def test_what_is_no_model_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="is no model folder"):
        write(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()


def test_an_export_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    target = write(tmp_path / "out")

    def broken() -> Iterator[tuple[str, Tensor]]:
        raise RuntimeError("the disk is full")
        yield

    policy = build_policy(ModelOptions(TINY), 1.0, on_meta=True)
    with pytest.raises(RuntimeError, match="the disk is full"):
        write_model_folder(target, TINY, weight_specs(policy), broken(), "new", overwrite=True)
    assert (target / "README.md").read_text() == "card"
    AutoModelForCausalLM.from_pretrained(target)
    write(target, overwrite=True)  # what it left behind is in nobody's way
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


RUN = {
    "name": "exp",
    "run_folder": "outputs/exp/run-1",
    "seed": 3,
    "positive_share_target": 0.4,
    "model": {"path": "owner/name"},
    "algorithm": {"name": "bapo"},
    "regime": {"name": "replay", "epochs": 2, "minibatches": 4},
    "data": {"name": "math", "validation": {"aime24": {}}},
    "scale": {"prompts_per_batch": 8, "group_size": 4, "max_new_tokens": 16},
    "rollout": {"temperature": 0.6},
    "optimizer": {"optimizer": {"lr": 1e-6, "weight_decay": 0.1}},
}


def test_a_card_tells_run_data_metrics_and_command() -> None:
    rows = [
        {"step": 0, "train/reward": 0.25, "val/aime24/avg@16": 0.5},
        {"step": 1, "train/reward": 0.5},
        {"step": 2, "train/reward": 0.75},
    ]
    card = model_card(
        RUN,
        {"command": "make train", "git_commit": "abc", "versions": {"bapo-lightning": "1.0"}},
        rows,
        2,
        "bfloat16",
    )
    assert (
        "base_model: owner/name" in card
        and "(regime replay, seed 3) on math, validated on aime24. Weights in bfloat16." in card
    )
    assert (
        "| train/reward | 0.5 | 2 |" in card
        and "| val/aime24/avg@16 | 0.5 | 1 |" in card
        and "0.75" not in card
    )
    assert "```sh\nmake train\n```" in card
