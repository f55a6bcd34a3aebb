"""Tables in as few parts as fit."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from bapo_lightning.report.progress.tables import fits, in_parts


def table(columns):
    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_column("name", no_wrap=True)
    for _ in columns:
        made.add_column(no_wrap=True)
    made.add_row("name", *(f"value {number}" for number in columns))
    return made


def console(width):
    return Console(file=io.StringIO(), width=width, color_system=None)


@pytest.mark.parametrize(
    ("width", "parts"), [(80, [4]), (36, [4]), (35, [3, 1]), (22, [2, 2]), (13, [1, 1, 1, 1]), (5, [1] * 4)]
)
def test_each_part_has_as_many_columns_as_fit(width, parts):
    made = list(in_parts(table, 4, console(width)))
    assert [len(part.columns) - 1 for part in made] == parts
    assert fits(table(range(4)), console(width)) == (len(parts) == 1)


def test_no_column_is_lost():
    printed = console(20)
    for part in in_parts(table, 4, printed):
        printed.print(part)
    assert [f"value {number}" in printed.file.getvalue() for number in range(4)] == [True] * 4
