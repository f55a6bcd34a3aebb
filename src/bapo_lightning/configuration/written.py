"""Signatures of this package as its files have them: nothing is imported, least of all torch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
NAMERS = ("typing", "collections.abc", "annotated_types", "bapo_lightning.values")  # light
PLAIN: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict)}


@lru_cache(maxsize=256)
def written(target: str) -> Callable[..., None] | None:
    """A function, never to be called, with the parameters of the class or function of a dotted name. Where an
    annotation has other names than those of `NAMERS` and what is made of them, it is Any. None where the file
    of that name does not say what it takes: it is of another package, decorated, or made by a base class.
    """
    module, _, name = target.rpartition(".")
    parameters = []
    for option, annotation in _parameters(_bound(module).get(name)):
        kind = Parameter.VAR_KEYWORD if option == "others" else Parameter.KEYWORD_ONLY
        parameters.append(Parameter(option, kind, annotation=_evaluated(annotation, module)))
    if not parameters:
        return None

    def stands_for(**_: Any) -> None: ...

    vars(stands_for)["__signature__"] = Signature(parameters)
    stands_for.__annotations__ = {one.name: one.annotation for one in parameters}
    return stands_for


def _parameters(found: ast.stmt | None) -> Iterator[tuple[str, ast.expr | None]]:
    """Names and annotations; last `others` where it takes, or may take, any others."""
    if isinstance(found, ast.ClassDef):
        made = next((node for node in found.body if getattr(node, "name", None) == "__init__"), None)
        if made is None and any("dataclass" in ast.dump(item) for item in found.decorator_list):
            for field in found.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.target.id, field.annotation
            if found.bases:
                yield "others", None
            return
        found = made
    if not isinstance(found, ast.FunctionDef) or found.decorator_list:
        return
    for argument in (*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs):
        if argument.arg != "self":
            yield argument.arg, argument.annotation
    if found.args.kwarg is not None:
        yield "others", None


@lru_cache(maxsize=256)
def _bound(module: str) -> dict[str, ast.stmt]:
    """What binds each name of a module of this package."""
    package, *parts = module.split(".")
    file = PACKAGE.joinpath(*parts).with_suffix(".py")
    if package != PACKAGE.name or not parts or not file.is_file():
        return {}
    bound: dict[str, ast.stmt] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            bound |= {item.asname or item.name: node for item in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            bound[node.targets[0].id] = node
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            bound[node.name] = node
    return bound


def _evaluated(annotation: ast.expr | None, module: str) -> Any:
    if annotation is None:
        return Any
    used = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    meant = {name: _meaning(name, module) for name in used}
    if Any in meant.values():
        return Any
    return eval(compile(ast.Expression(annotation), module, "eval"), {"__builtins__": {}, **meant})


def _meaning(name: str, module: str) -> Any:
    node = _bound(module).get(name)
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        own = next(item.name for item in node.names if name in (item.asname, item.name))
        if node.module in NAMERS:
            return getattr(import_module(node.module), own)
        return _meaning(own, node.module)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
        return _evaluated(node.value, module)
    return PLAIN.get(name, Any) if node is None else Any
