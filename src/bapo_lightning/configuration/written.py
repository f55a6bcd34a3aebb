"""Names and signatures as the files of a module have them: nothing is imported, least of all torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from inspect import Parameter, Signature
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, Literal

from bapo_lightning.errors import nearest

NAMERS = ("typing", "collections.abc", "annotated_types", "bapo_lightning.values")  # light
# A module that has one of these may have any name: of star imports, of functions that make names.
ANY_NAME = {"*", "__getattr__", "__path__", "globals", "vars", "exec", "setattr"}
PLAIN: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict)}


@lru_cache(maxsize=256)
def written(target: str) -> Callable[..., None] | None:
    """A function, never to be called, with the parameters of the class or function of a dotted name. Where an
    annotation has other names than those of `NAMERS` and what is made of them, it is Any. None where the file
    of that name does not say what it takes: it is no Python, made by a base class, or its decorator does not
    keep what it takes.
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


def misspelt(target: str) -> str | None:
    """What to do about a dotted name that the files of its modules do not have; None where they have it, or
    may have it.
    """
    module, names = "", target.split(".")
    while names and all(map(str.isidentifier, names)):
        bound, step = _bound(module) if module else {}, ".".join(filter(None, (module, names[0])))
        if names[0] in bound or ANY_NAME & bound.keys():  # also names of the modules within
            return None
        if _spec(step) is None:
            if step in sys.modules:
                return None
            folders = _folders(module) if module else None
            inner = [each.name for each in iter_modules(folders)]
            near = nearest(names[0], [*bound, *inner])
            meant = ".".join(filter(None, (module, *near, *names[1:])))
            return f"did you mean {meant}?" if near else f"check its spelling: there is no {step}"
        module, names = step, names[1:]
    return None


def _parameters(found: ast.stmt | None, module: str) -> Iterator[tuple[str, ast.expr | None]]:
    """Names and annotations; last `others` where it takes, or may take, any others."""
    own = 0  # arguments that Python gives
    if isinstance(found, ast.ClassDef):
        is_data = any("dataclass" in ast.dump(item) for item in found.decorator_list)
        has_new = any(getattr(node, "name", None) == "__new__" for node in found.body)
        if found.keywords or has_new or len(found.decorator_list) > is_data:
            return
        made = next((node for node in found.body if getattr(node, "name", None) == "__init__"), None)
        if made is None and is_data:
            for field in found.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.target.id, field.annotation
            if found.bases:
                yield "others", None
            return
        found, own = made, 1
    if not isinstance(found, ast.FunctionDef) or not all(_wraps(it, module) for it in found.decorator_list):
        return
    for argument in [*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs][own:]:
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
    """What binds a name, through imports, and its name and module there; the last import where its file
    does not bind the name, or it is of one of `NAMERS`.
    """
    node = _bound(module).get(name)
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return node, name, module
    own = next(item.name for item in node.names if name in (item.asname, item.name))
    step = own, node.module
    if node.module in NAMERS or own not in _bound(node.module) or step in passed:
        return node, own, module
    return _found(*step, passed | {step})


@lru_cache(maxsize=1024)
def _spec(module: str) -> ModuleSpec | None:
    """Where a module is; its packages are not imported."""
    parent = module.rpartition(".")[0]
    if parent:
        return PathFinder.find_spec(module, _folders(parent))
    try:
        return find_spec(module)
    except ValueError:  # it was made in this process
        return None


def _folders(module: str) -> list[str]:
    """Where its submodules are."""
    spec = _spec(module)
    return list((spec and spec.submodule_search_locations) or ())


@lru_cache(maxsize=256)
def _bound(module: str) -> dict[str, ast.stmt]:
    """What binds each name of a module at last, and `ANY_NAME` of it; relative imports have their full names.
    What is bound within another statement, such as an if, has that one.
    """
    spec = _spec(module)
    if spec is None or spec.loader is None:  # a folder of modules
        return {}
    unsaid: dict[str, ast.stmt] = {"*": ast.Pass()}
    if spec.origin is None or not spec.origin.endswith(".py"):
        return unsaid
    try:
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.level:
                within = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
                node.module = resolve_name("." * node.level + (node.module or ""), within)
    except (OSError, ValueError, SyntaxError, ImportError, RecursionError):
        return unsaid
    used = {inner.id: tree.body[0] for inner in ast.walk(tree) if isinstance(inner, ast.Name)}
    bound = {name: used[name] for name in ANY_NAME & used.keys()}
    for node in tree.body:
        is_own = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in (node,) if is_own else ast.walk(node):
            bound |= dict.fromkeys(_names(inner), node)
    return bound


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


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
    try:
        return eval(compile(ast.Expression(annotation), module, "eval"), {"__builtins__": {}, **meant})
    except (TypeError, AttributeError):  # such as Annotated[int]: an error of whoever wrote it
        return Any


def _meaning(name: str, module: str) -> Any:
    node, name, module = _found(name, module)
    if isinstance(node, ast.ImportFrom) and node.module in NAMERS:
        return getattr(import_module(node.module), name, Any)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
        return _evaluated(node.value, module)
    return PLAIN.get(name, Any) if node is None else Any
