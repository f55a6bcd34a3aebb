"""Signatures as the files of a package have them: nothing is imported, least of all torch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec, resolve_name
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal

PACKAGES = ("bapo_lightning", "lightning", "torch")
NAMERS = ("typing", "collections.abc", "annotated_types", "bapo_lightning.values")  # light
PLAIN: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict)}


@lru_cache(maxsize=256)
def written(target: str) -> Callable[..., None] | None:
    """A function, never to be called, with the parameters of the class or function of a dotted name. Where an
    annotation has other names than those of `NAMERS` and what is made of them, it is Any. None where the file
    of that name does not say what it takes: it is of no package of `PACKAGES`, made by a base class, or its
    decorator does not keep what it takes.
    """
    module, _, name = target.rpartition(".")
    found, _, module = _found(name, module)
    parameters = []
    for option, annotation in _parameters(found, module):
        kind = Parameter.VAR_KEYWORD if option == "others" else Parameter.KEYWORD_ONLY
        parameters.append(Parameter(option, kind, annotation=_evaluated(annotation, module)))
    if not parameters:
        return None

    def stands_for(**_: Any) -> None: ...

    vars(stands_for)["__signature__"] = Signature(parameters)
    stands_for.__annotations__ = {one.name: one.annotation for one in parameters}
    return stands_for


def _parameters(found: ast.stmt | None, module: str) -> Iterator[tuple[str, ast.expr | None]]:
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
    if not isinstance(found, ast.FunctionDef) or not all(_wraps(it, module) for it in found.decorator_list):
        return
    for argument in (*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs):
        if argument.arg != "self":
            yield argument.arg, argument.annotation
    if found.args.kwarg is not None:
        yield "others", None


def _wraps(decorator: ast.expr, module: str) -> bool:
    """Whether it is a function that returns what has the signature of what it is given."""
    found = _found(decorator.id, module)[0] if isinstance(decorator, ast.Name) else None
    inner = found.body if isinstance(found, ast.FunctionDef) else []
    made = [item for node in inner if isinstance(node, ast.FunctionDef) for item in node.decorator_list]
    return any(isinstance(item, ast.Call) and getattr(item.func, "id", "") == "wraps" for item in made)


def _found(
    name: str, module: str, passed: frozenset[tuple[str, str]] = frozenset()
) -> tuple[ast.stmt | None, str, str]:
    """What binds a name, through imports, and its name and module there; the last import where that is of no
    module of `PACKAGES`, or of one of `NAMERS`.
    """
    node = _bound(module).get(name)
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return node, name, module
    own = next(item.name for item in node.names if name in (item.asname, item.name))
    step = own, node.module
    if node.module in NAMERS or own not in _bound(node.module) or step in passed:
        return node, own, module
    return _found(*step, passed | {step})


@lru_cache(maxsize=256)
def _bound(module: str) -> dict[str, ast.stmt]:
    """What binds each name of a module of `PACKAGES`; relative imports have their full names."""
    package, *parts = module.split(".")
    spec = find_spec(package) if package in PACKAGES else None  # of a package at the top: imports nothing
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).parent.joinpath(*parts)
    is_package = path.is_dir()
    file = path / "__init__.py" if is_package else path.with_suffix(".py")
    bound: dict[str, ast.stmt] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else ():
        if isinstance(node, ast.ImportFrom):
            if node.level:
                within = module if is_package else module.rpartition(".")[0]
                node.module = resolve_name("." * node.level + (node.module or ""), within)
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
    is_quoted = any(isinstance(getattr(node, "value", None), str) for node in ast.walk(annotation))
    if Any in meant.values() or (
        is_quoted and not any(one in (Literal, Annotated) for one in meant.values())
    ):
        return Any
    return eval(compile(ast.Expression(annotation), module, "eval"), {"__builtins__": {}, **meant})


def _meaning(name: str, module: str) -> Any:
    node, name, module = _found(name, module)
    if isinstance(node, ast.ImportFrom) and node.module in NAMERS:
        return getattr(import_module(node.module), name)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
        return _evaluated(node.value, module)
    return PLAIN.get(name, Any) if node is None else Any
