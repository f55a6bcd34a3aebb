"""Keys that had other names before are refused with the new name."""

import pytest
from omegaconf import OmegaConf
from tests.commands import run_command
from tests.configuration.compositions import composed

from bapo_lightning.configuration.renamed import RENAMED, RENAMED_CHOICES, renamed_problems


@pytest.mark.parametrize("old", RENAMED)
def test_an_earlier_name_is_answered_with_the_new_one(old):
    (text,) = renamed_problems([f"{old}=7"])
    assert text == f"{old} is now {RENAMED[old]}; write {RENAMED[old]}=7"


def test_every_new_name_exists():
    config = OmegaConf.create(composed("regime=partial"))
    keys = [new for new in RENAMED.values() if "/" not in new]
    missing = object()
    assert [key for key in keys if OmegaConf.select(config, key, default=missing) is missing] == []


def test_choices_that_are_gone_say_what_to_write():
    for key, value in RENAMED_CHOICES:
        assert len(renamed_problems([f"{key}={value}"])) == 1
    assert renamed_problems(["experiment=bapo_7b", "rollout.placement=each", "scale.group_size=4"]) == []


@pytest.mark.slow
def test_the_command_names_all_of_them_and_trains_nothing(tmp_path):
    overrides = ["regime.overlap=true", "trainer.cpu_threads=1", f"output_root={tmp_path}"]
    done = run_command("bapo_lightning.cli.train", *overrides, cwd=tmp_path)
    assert done.returncode == 1
    assert "regime.overlap is now regime.async_generation" in done.stderr
    assert "trainer.cpu_threads is now cpu_threads" in done.stderr
    assert list(tmp_path.iterdir()) == []
