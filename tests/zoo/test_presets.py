"""Every preset stands beside what its authors' scripts set."""

import pytest
from tests.zoo.presets import KINDS, PAGE, names, own_keys, page, presets, setting, written

PRESETS = {preset.name: preset for preset in presets()}


def test_every_preset_is_in_the_table_and_every_source_is_used():
    assert sorted(PRESETS) == names()
    text = " ".join(f"{each.source} {' '.join(row.where for row in each.rows)}" for each in PRESETS.values())
    assert [name for name in written()["sources"] if name not in text.split()] == []


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_setting_of_a_preset_has_a_row_with_its_value_and_a_reason_where_it_differs(name):
    preset = PRESETS[name]
    keys = [row.key for row in preset.rows]
    assert preset.kind in KINDS and len(set(keys)) == len(keys)
    assert [
        key for key in own_keys(name) if not any(f"{key}.".startswith(f"{known}.") for known in keys)
    ] == []
    for row in preset.rows:
        if not row.key.startswith("("):
            assert setting(name, row.key) == row.here, row.key
        assert row.where and row.is_equal == (not row.reason), row.key


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "python -m tests.zoo.presets writes it again"
