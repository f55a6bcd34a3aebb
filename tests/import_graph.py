"""Which module imports which, read from source files without importing them.

Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePath

Name = tuple[str, ...]  # parts of a dotted name
Graph = Mapping[str, set[str]]  # what each file, or room, imports


def dotted_name(file: PurePath) -> Name:
    """Returns the name of a module, given its path from the folder that imports start at."""
    parts = file.with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported_modules(tree: ast.AST, module: Name, is_package: bool) -> Iterator[tuple[int, Name]]:
    """Yields line and full dotted name of each import, also inside functions; relative ones are resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            named = tuple(node.module.split(".")) if node.module else ()
            anchor = module if is_package else module[:-1]
            base = anchor[: len(anchor) - (node.level - 1)] + named if node.level else named
            for alias in node.names:
                yield node.lineno, (*base, alias.name)


def imports_of(file: PurePath, text: str) -> list[tuple[int, Name]]:
    """Returns line and name of what a file imports, given its path as in `dotted_name`."""
    return list(imported_modules(ast.parse(text), dotted_name(file), file.name == "__init__.py"))


def imports_between(imports: Mapping[Name, Collection[tuple[int, Name]]]) -> Graph:
    """Returns which of these modules each imports, by dotted name. Imports inside functions, which dodge a
    circle, and those for type checkers alone count, too.
    """
    return {
        ".".join(importer): {
            ".".join(module if module in imports else module[:-1])
            for _, module in imported
            if module in imports or module[:-1] in imports
        }
        - {".".join(importer)}
        for importer, imported in imports.items()
    }


def circle(graph: Graph) -> list[str]:
    """Returns names that import one another in a circle; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def floors(graph: Graph) -> dict[str, int]:
    """Returns the floor of each name: 1 where it imports none, or one above the highest that it imports.

    Raises:
        CycleError: there is a circle.
    """
    found: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        found[name] = 1 + max((found[other] for other in graph.get(name, ())), default=0)
    return found


def reached(graph: Graph, start: str, rooms: Collection[str]) -> set[str]:
    """Returns the modules reached along imports from one, itself included, through these rooms alone."""
    found, left = set(), [start]
    while left:
        name = left.pop()
        if name not in found and name.split(".")[1] in rooms:
            found.add(name)
            left += graph[name]
    return found
