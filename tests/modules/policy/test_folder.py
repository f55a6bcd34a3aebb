"""A path is a folder or a hub name, and what cannot be loaded is named before anything is."""

import pytest
from huggingface_hub import constants

from bapo_lightning.modules.policy.folder import hub_problem, model_folder_problems
from bapo_lightning.system.hub import is_hub_name


@pytest.mark.parametrize(
    "path",
    [
        "owner/name", "models/typo", "./name", "/name", "~/name", "name", "a/b/c",
        "package://bapo_lightning/nowhere",
    ],
)  # fmt: skip
def test_a_hub_name_is_owner_and_name(path, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert is_hub_name(path) is (path == "owner/name")
    assert bool(list(model_folder_problems(path, None))) is (path != "owner/name")


def test_a_command_that_makes_the_model_is_named():
    (problem,) = model_folder_problems("models/no/such", "make smollm2")
    assert problem == "model.path=models/no/such does not exist yet; make it: make smollm2"


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Folder of owner/name in a cache that holds its config.json and nothing else."""
    model = tmp_path / "models--owner--name"
    snapshot = model / "snapshots" / ("0" * 40)
    for folder in (model / "refs", snapshot):
        folder.mkdir(parents=True)
    (model / "refs" / "main").write_text(snapshot.name)
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return snapshot


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model-00001-of-00002.bin"])
def test_a_model_is_had_from_the_cache_when_it_has_weights_there(weights, cached):
    problem = hub_problem("owner/name", "checkpoint")
    assert problem == (
        f"checkpoint=owner/name is neither a folder here nor in the cache ({cached.parents[2]}), and the hub "
        f"({constants.ENDPOINT}) is not asked (HF_HUB_OFFLINE=1); write checkpoint=FOLDER, or fetch it on "
        "a machine with a network: hf download owner/name"
    )
    (cached / weights).touch()
    assert hub_problem("owner/name") is None


def test_neither_a_folder_nor_a_hub_that_answers_is_a_problem(cached, monkeypatch):
    assert hub_problem(str(cached)) is hub_problem("package://bapo_lightning/models") is None
    monkeypatch.setattr("bapo_lightning.modules.policy.folder.stay_offline_without_hub", lambda: None)
    assert hub_problem("owner/name") is None
