"""Every preset stands beside what its authors' scripts set."""

import csv
from dataclasses import replace

import pytest
from scripts.doc_tables import parts
from tests.zoo import presets
from tests.zoo.presets import Flag, commands, not_compared

PRESETS = {preset.name: preset for preset in presets.presets()}


def test_every_preset_is_in_the_table_and_every_source_is_used():
    assert sorted(PRESETS) == presets.names()
    text = " ".join(f"{each.source} {' '.join(row.where for row in each.rows)}" for each in PRESETS.values())
    assert [name for name in presets.written()["sources"] if name not in text.split()] == []


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_setting_of_a_preset_has_a_row_with_its_value_and_a_reason_where_it_differs(name):
    preset = PRESETS[name]
    keys = [row.key for row in preset.rows]
    assert preset.kind in presets.KINDS and len(set(keys)) == len(keys)
    own = presets.own_keys(name)
    assert all(any(f"{key}.".startswith(f"{known}.") for known in keys) for key in own)
    for row in preset.rows:
        if not row.key.startswith("("):
            assert presets.setting(name, row.key) == row.here, row.key
        assert row.where and row.is_equal == (not row.reason), row.key


def test_every_command_has_its_flags_and_those_without_a_row_are_seen():
    with_commands = {name for name, preset in PRESETS.items() if preset.kind in presets.WITH_COMMANDS}
    assert commands().keys() | presets.WITHOUT_FLAGS.keys() == with_commands
    for name, flags in commands().items():
        assert len(flags) >= 10 and len({flag.text for flag in flags}) == len(flags), name
    spoken_of = [name for name, flags in commands().items() if len(not_compared(PRESETS[name])) < len(flags)]
    assert len(spoken_of) >= 0.75 * len(commands()), "others have rows about code and defaults alone"
    texts = {name: [flag.text for flag in not_compared(PRESETS[name])] for name in commands()}
    assert "--remove_clip True" not in texts["simpletir"], "it was missing here, and nobody saw it"
    assert "actor_rollout_ref.actor.entropy_coeff=0.0" in texts["simpletir"]


def test_a_row_speaks_of_the_flags_in_its_lines():
    preset = replace(PRESETS["simpletir"], rows=PRESETS["simpletir"].rows[:1])
    assert preset.rows[0].where == "train.sh:13"
    assert preset.cites("train.sh", 13) and not preset.cites("train.sh", 14) and not preset.cites("", 13)
    assert Flag.read("3,train.sh:13 a.b=1 2") == Flag("a.b=1 2", (("", 3), ("train.sh", 13)))


def test_the_page_is_current():
    old = [name for name, table in presets.tables().items() if parts(presets.PAGE, name)[1] != table]
    for name, rows in presets.files().items():
        with (presets.FOLDER_OF_PAGE / name).open(newline="") as file:
            old += [name] * ([*csv.reader(file)] != [[*map(str, row)] for row in rows])
    assert not old, "make tables writes them again"
