"""What is no name is refused in words for every group of files, however it is written."""

from pathlib import Path

import pytest

from bapo_lightning.configuration.compose import composed_run
from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.group_names import NODES
from bapo_lightning.system.errors import ConfigError

GROUPS = sorted({
    file.parent.relative_to(conf_dir()).as_posix() for file in Path(conf_dir()).rglob("*/*.yaml")
})  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_no_name_is_refused_for_every_group_in_one_sentence(group):
    values = ("null", "[null]", "NULL", "7", "1.5", "true", "nan", "[1]", "[none,7]", "{a:1}", "[[none]]")
    for override in (f"+{group}=null", *(f"{group}={value}" for value in values)):
        with pytest.raises(ConfigError) as refused:
            composed_run([override, "seed=1"])
        (text,) = refused.value.problems
        assert text.startswith(f"{override} is none of its values; write {group}=")


def test_the_remedy_can_be_written():
    for override in ("environment=none", "logger=[]", "ranks=none"):
        composed_run([override])
    for override in ("resume=null", "cpu_threads=null", "callbacks.console=null"):  # keys, not groups
        composed_run([override])


@pytest.mark.parametrize("node", NODES)
def test_hydra_keeps_its_own_settings(node):
    for override in (*(f"{node}={value}" for value in ("null", "7", "abc", "[1]", "true")), f"~{node}"):
        with pytest.raises(ConfigError, match=rf"removes Hydra's own .*; write {node}\.KEY=VALUE"):
            composed_run([override])
