"""Weights are written one file at a time, and a model folder appears whole or not at all."""

import json
import os
import shutil
import weakref

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.rollout.engine import Wanted
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.pretrained import read_pretrained
from bapo_lightning.tools.export.model_card import model_card
from bapo_lightning.tools.export.model_folder import INDEX, rounding_problem, write_model_folder, write_shards

TINY = model_path("package://bapo_lightning/tiny_worlds/additions/model")
WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5, -2.0]), "c": torch.full((4,), 0.1)}


def test_one_file_is_what_the_library_reads(tmp_path):
    assert write_shards(tmp_path, WEIGHTS.items(), 10**9) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[name], weight) for name, weight in WEIGHTS.items())
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_files_stay_below_the_limit_and_a_larger_weight_stands_alone(tmp_path):
    assert write_shards(tmp_path, WEIGHTS.items(), 20) == 3
    files = sorted(tmp_path.glob("*.safetensors"))
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert [file.name for file in files] == names
    shapes = [[list(tensor.shape) for tensor in load_file(file).values()] for file in files]
    assert shapes == [[[2, 3]], [[2]], [[4]]]
    index = {"metadata": {"total_size": 48}, "weight_map": dict(zip("abc", names, strict=True))}
    assert json.loads((tmp_path / INDEX).read_text()) == index
    folder = tmp_path / "two"
    folder.mkdir()
    write_shards(folder, WEIGHTS.items(), 32)  # 24, 8 and 16 bytes
    assert [sorted(load_file(file)) for file in sorted(folder.glob("*.safetensors"))] == [["a", "b"], ["c"]]


def test_only_one_file_s_weights_are_alive_at_a_time(tmp_path):
    alive, most = set(), 0

    def weights():
        nonlocal most
        for number in range(12):
            weight = torch.full((1000,), float(number))
            alive.add(number)
            weakref.finalize(weight.untyped_storage(), alive.discard, number)
            most = max(most, len(alive))
            yield f"w{number}", weight

    write_shards(tmp_path, weights(), 3 * 4000)
    assert len(list(tmp_path.glob("model-*-of-00004.safetensors"))) == 4
    assert most == 4  # three of a file, and the next one


def write(target, overwrite=False, source=TINY):
    weights = build_policy(ModelOptions(TINY), 1.0).named_weights()
    write_model_folder(target, str(source), weights, "card", torch.float32, overwrite=overwrite)
    return target


def test_an_exported_model_loads_and_scores_as_the_policy_its_adapters_merged(tmp_path):
    torch.manual_seed(0)
    policy = build_policy(ModelOptions(TINY, lora=LoraOptions(2, 4)), 1.0)
    with torch.no_grad():
        for parameter in policy.trained_parameters():
            parameter.normal_(std=0.1)
    ids = torch.arange(1, 9)[None]
    write_model_folder(tmp_path / "out", TINY, policy.named_weights(), "card", torch.float32, 100_000)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.allclose(loaded(ids).logits, policy.model(ids).logits, atol=1e-4)


def test_files_have_the_modes_of_the_umask_and_the_tokenizer_s_are_those_of_the_model(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(TINY, source)
    (source / "special_tokens_map.json").write_text('{"eos_token": "#"}')  # which transformers 5 leaves out
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates/rag.jinja").write_text("9")
    previous = os.umask(0o027)
    try:
        target = write(tmp_path / "out", source=source)
    finally:
        os.umask(previous)
    assert {file.stat().st_mode & 0o777 for file in target.iterdir() if file.is_file()} == {0o640}
    for file in sorted(source.rglob("*")):
        if "token" in file.name or file.suffix == ".jinja":
            assert (target / file.relative_to(source)).read_bytes() == file.read_bytes()


def test_an_existing_folder_is_kept_without_overwrite(tmp_path):
    target = write(tmp_path / "out")
    with pytest.raises(DataError, match="exists already; name another folder"):
        write(target)
    (target / "README.md").write_text("old")
    write(target, overwrite=True)
    assert (target / "README.md").read_text() == "card"


def test_what_is_no_model_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="is not a model folder"):
        write(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()


def test_an_export_that_fails_leaves_the_old_one(tmp_path):
    target = write(tmp_path / "out")

    def broken():
        raise RuntimeError("the disk is full")
        yield

    with pytest.raises(RuntimeError, match="the disk is full"):
        write_model_folder(target, TINY, broken(), "new", torch.float32, overwrite=True)
    assert (target / "README.md").read_text() == "card"
    AutoModelForCausalLM.from_pretrained(target)
    write(target, overwrite=True)  # what it left behind is in nobody's way
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


RUN = {
    "name": "exp", "run_folder": "outputs/exp/run-1", "seed": 3,
    "algorithm": {"name": "bapo", "positive_share_target": 0.4, "bounds": {"target": 0.4}},
    "model": {"path": "owner/name"},
    "regime": {"name": "replay", "epochs": 2, "minibatches": 4},
    "data": {"name": "math", "validation": {"aime24": {}}},
    "scale": {"prompts_per_batch": 8, "group_size": 4, "max_new_tokens": 16}, "rollout": {"temperature": 0.6},
    "optimizer": {"optimizer": {"lr": 1e-6, "weight_decay": 0.1}},
}  # fmt: skip


def test_a_card_shows_run_settings_metrics_and_command():
    rows = [{"step": step, "train/reward": value} for step, value in enumerate((0.25, 0.5, 0.75))]
    rows[0]["val/aime24/avg@16"] = 0.5
    manifest = {"command": "make train", "git_commit": "abc", "versions": {"bapo-lightning": "1.0"}}
    card = model_card(RUN, manifest, rows, 2, "bfloat16")
    assert "base_model: owner/name" in card
    assert "(regime replay, seed 3) on math, validated on aime24. Weights in bfloat16." in card
    assert "| train/reward | 0.5 | 2 |" in card and "| val/aime24/avg@16 | 0.5 | 1 |" in card
    assert "0.75" not in card
    assert "| algorithm.positive_share_target | 0.4 |" in card and "license" not in card
    assert 'pipeline("text-generation", model=".")' in card
    fixed = {**RUN, "algorithm": {"name": "grpo", "positive_share_target": 0.4, "bounds": {"low": 0.8}}}
    assert "positive_share_target" not in model_card(fixed, {}, rows, 2, "bfloat16")
    shipped = {**RUN, "model": {"path": "package://bapo_lightning/tiny_worlds/locks/model"}}
    assert "license: apache-2.0" in model_card(shipped, {}, rows, 2, "float32")
    assert "```sh\nmake train\n```" in card


def test_an_update_that_rounding_took_is_reported():
    assert [rounding_problem(kept, "bfloat16") for kept in (None, 1.0, 0.995)] == [None] * 3
    assert "in bfloat16 hold 12% of what the adapters have" in rounding_problem(0.12, "bfloat16")


def test_an_export_names_no_code_that_it_does_not_hold(tmp_path):
    """A model with an architecture of transformers may name code of its own as well."""
    shutil.copytree(TINY, tmp_path / "model")
    for name in ("config.json", "tokenizer_config.json"):
        file = tmp_path / "model" / name
        named = {"auto_map": {"AutoConfig": "code.Config", "AutoTokenizer": ["code.Tokenizer", None]}}
        file.write_text(json.dumps(json.loads(file.read_text()) | named))
    policy = build_policy(ModelOptions(str(tmp_path / "model")), 1.0)
    weights = policy.named_weights(Wanted(names="files"))
    write_model_folder(tmp_path / "out", str(tmp_path / "model"), weights, "card", torch.float32)
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in json.loads((tmp_path / "out" / name).read_text())
    exported, own = (read_pretrained(AutoTokenizer, str(path)) for path in (tmp_path / "out", TINY))
    assert exported.encode("1+2") == own.encode("1+2")
