"""Files behind a run's keys are part of the run: a resume, an export and an evaluation find other ones."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.commands import run_command, train, train_to_end
from tests.runs.written import manifest

from bapo_lightning.modules.policy.folder import model_digests, model_path, models_behind
from bapo_lightning.system.errors import DataError
from bapo_lightning.tools.evaluation.subject import find_subject

TINY = model_path("package://bapo_lightning/tiny_worlds/additions/model")
DATED = "{{ strftime_now('%Y%m%d%H%M%S%f') }}{{ messages[0]['content'] }}"


@pytest.fixture
def model(tmp_path):
    shutil.copytree(TINY, tmp_path / "model")
    return tmp_path / "model"


def other_weights(model):
    weights = load_file(model / "model.safetensors")
    save_file({name: weight + 1e-3 for name, weight in weights.items()}, model / "model.safetensors")


def other_content(name):
    def change(model):
        file = model / name
        file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), "x": 1}))

    return change


CHANGES = {
    "weights": other_weights,
    "configuration": other_content("config.json"),
    "tokenizer": other_content("tokenizer_config.json"),
    "chat template": other_content("chat_template.json"),
}


@pytest.mark.parametrize("part", CHANGES)
def test_each_part_of_a_model_has_a_digest(part, model):
    before = model_digests(str(model))
    assert before == model_digests(TINY) and before.keys() == CHANGES.keys()
    CHANGES[part](model)
    after = model_digests(str(model))
    assert {name for name in before if before[name] != after[name]} == {part}


def test_other_weights_of_a_large_tensor_are_found_wherever_they_are(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = set()
    for first in range(0, 4096, 512):
        weight = torch.zeros(4096, 64)
        weight[first : first + 512] = 1e-3
        save_file({"weight": weight}, tmp_path / "model.safetensors")
        found.add(model_digests(str(tmp_path))["weights"])
    assert len(found) == 8


def test_models_of_the_algorithm_are_found(model):
    plain = {
        "model": {"path": TINY},
        "algorithm": {"stages": {"steps": {"critic": str(model), "k": ["a/b"], "hint": "a b/c" * 1000}}},
    }
    assert models_behind(plain).keys() == {"model.path", "algorithm.stages.steps.critic"}


def test_the_hubs_revision_stands_for_the_weights(tmp_path, monkeypatch):
    snapshot = tmp_path / "snapshots" / ("a" * 40)
    shutil.copytree(TINY, snapshot)
    file = str(snapshot / "config.json")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda path, name: file)
    assert model_digests("owner/name") == {**model_digests(TINY), "weights": "a" * 40}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda path, name: None)
    assert model_digests("owner/name") == {}


OWN = ("callbacks.validation.every=0", "callbacks.checkpoint.every=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [("model/lora=default", "model.lora.rank=4"), ("algorithm=grpo",)], ids=["lora", "full"]
)
def test_a_run_is_not_taken_up_with_other_files_than_it_began_with(setting, model, tmp_path):
    run, whole = tmp_path / "run", tmp_path / "whole"
    train_to_end(run, 1, *OWN, *setting, f"model.path={model}")
    shutil.copytree(model, whole)
    longer = (*OWN, *setting, f"model.path={model}", f"run_folder={run}", f"resume={run}")
    longer += ("scale.num_rollout_batches=2",)
    for part, change in CHANGES.items():
        change(model)
        is_needed = part != "weights" or "lora" in setting[0]
        told = (
            rf"model\.path: the {part} of {re.escape(str(model))} (are not those|is not the one) that the run"
        )
        if is_needed:
            done = train(*longer)
            assert done.returncode == 1 and re.search(told, done.stderr), done.stderr
            with pytest.raises(DataError, match=told):
                find_subject(str(run))
            exported = run_command("bapo_lightning.tools.commands.export", str(run), str(tmp_path / "out"))
            assert exported.returncode == 2 and re.search(told, exported.stderr)
        else:
            assert find_subject(str(run)).version
            done = train(*longer)
            assert done.returncode == 0 and re.search(f"warning: {told}", done.stdout), done.stdout
            longer = (*longer[:-1], "scale.num_rollout_batches=3")
        shutil.rmtree(model)
        shutil.copytree(whole, model)
    assert "resumed" in train(*longer).stdout


@pytest.mark.slow
def test_a_template_writes_the_date_of_the_runs_start_in_every_session(model, tmp_path):
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": DATED}))
    run = tmp_path / "run"
    own = (*OWN, f"model.path={model}", "data/prompt=chat", "scale.max_prompt_tokens=64")
    train_to_end(run, 1, *own)
    date, first = (manifest(run)[name] for name in ("date", "first_prompt"))
    train_to_end(run, 2, *own, f"resume={run}")
    assert [manifest(run)[name] for name in ("date", "first_prompt")] == [date, first]
    assert find_subject(str(run)).date == datetime.fromisoformat(date)
    assert abs(datetime.fromisoformat(date) - datetime.now(UTC)) < timedelta(hours=1)
