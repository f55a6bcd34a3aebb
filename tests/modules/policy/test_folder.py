"""A path is a folder or a hub name, and what cannot be loaded is named before anything is."""

from pathlib import Path

import pytest

from bapo_lightning.modules.policy.folder import is_hub_name, model_folder_problems


@pytest.mark.parametrize(
    ("path", "is_name"),
    [
        ("owner/name", True),
        ("models/typo", False),  # a folder of this name exists
        ("./name", False),
        ("/name", False),
        ("~/name", False),
        ("name", False),
        ("a/b/c", False),
        ("package://bapo_lightning/nowhere", False),
    ],
)
def test_a_hub_name_is_owner_and_name(
    path: str, is_name: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert is_hub_name(path) is is_name
    assert bool(list(model_folder_problems(path, None))) is not is_name


def test_a_command_that_makes_the_model_is_named() -> None:
    (problem,) = model_folder_problems("models/no/such", "make smollm2")
    assert problem == "model.path=models/no/such does not exist yet; make it: make smollm2"
