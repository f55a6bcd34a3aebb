"""`_target_` nodes of a configuration: the signature of the named object is their schema.

A class may have a static method `problems(options)` that yields conflicts between its own options, each text
beginning with the name of an option; a user's class is checked in the same way. A part of an algorithm
may have `run_problems(options, run)` as well, about its options and the run (`data.run_facts`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from functools import lru_cache, partial
from inspect import Parameter, isclass
from inspect import signature as uncached_signature
from typing import Any, get_args, get_origin, get_type_hints

from hydra.errors import InstantiationException
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from bapo_lightning.configuration.hydra_versions import instantiate, raised_by
from bapo_lightning.configuration.wording import accepted, flattened, value_problem
from bapo_lightning.system.errors import (
    BapoLightningError,
    ConfigError,
    in_words,
    nearest,
    pass_stops,
    suggestion,
)
from bapo_lightning.system.values import imported

TARGET, PARTIAL = "_target_", "_partial_"
NO_DOTTED_NAME = "write the dotted name of a class or function, such as torch.optim.AdamW"
HYDRA_KEYS = {TARGET, PARTIAL, "_args_", "_recursive_", "_convert_"}
# A configuration may come from someone else: a target that deletes files, say, is refused, as in Hydra 1.3.
STANDARD = sys.stdlib_module_names | {"builtins"}
UNREADABLE = (InstantiationException, ImportError, AttributeError, ValueError, TypeError)


# A configuration is checked many times in one process, for example by sweeps and tests.
signature = lru_cache(maxsize=1024)(uncached_signature)


@dataclass(frozen=True)
class Target:
    """A node that names a class or a function, and options for it."""

    node: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The dotted name."""
        return str(self.node[TARGET])

    @property
    def object(self) -> Any:
        """The class or function itself."""
        return imported(self.name)

    @property
    def options(self) -> dict[str, Any]:
        """The plain values given for its parameters, and the defaults of the others."""
        return options_with_defaults(self.object, self.node)

    def __getattr__(self, name: str) -> Any:
        """An option's value by its name, `config.regime.epochs`."""
        if name.startswith("_") or name not in (options := self.options):
            raise AttributeError(f"{type(self).__name__} has no option {name}")
        return options[name]

    def is_a(self, kind: type) -> bool:
        """Whether it names `kind` or a subclass."""
        return isclass(self.object) and issubclass(self.object, kind)

    def takes(self, option: str) -> bool:
        """Whether the signature has a parameter of this name."""
        return option in signature(self.object).parameters

    def make(self, kind: type | int | None = None, /, **given: Any) -> Any:
        """Instantiate; `given` adds to the options. Raises ConfigError with what the class or function says
        about options of the right types, and if it makes neither an instance of `kind` nor a function of so
        many arguments; errors of this package pass through unchanged.
        """
        node = _without_unset(dict(self.node))
        names = {target.name for _, target in targets_within(node)}
        try:
            if not given:
                built = _plain(instantiate(node, names))
            else:  # Hydra would turn objects among `given` into configuration.
                built = instantiate(node | {PARTIAL: True}, names)(**given)
        except (BapoLightningError, OSError, MemoryError):
            raise
        except Exception as error:
            cause = raised_by(error)
            pass_stops(cause or error)
            if isinstance(cause, BapoLightningError):
                raise cause from None
            reason = in_words(cause or error)
            raise ConfigError([f"{self.name} refuses its options ({reason})"]) from error
        if kind is not None and (problem := _kind_problem(built, kind)):
            raise ConfigError([f"{self.name} {problem}"])
        return built

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accepts a mapping with `_target_`."""
        return core_schema.no_info_plain_validator_function(cls._of)

    @classmethod
    def _of(cls, value: Any) -> Target:
        if not isinstance(value, Mapping) or TARGET not in value:
            remedy = "null to leave it out, or " if value is False else ""
            raise ValueError(f"has no _target_; write {remedy}{{_target_: package.module.name, ...}}")
        return cls(value)


def _kind_problem(built: Any, kind: type | int) -> str | None:
    if isinstance(kind, type):
        wanted = f"{kind.__module__}.{kind.__name__}"
        return None if isinstance(built, kind) else f"makes a {type(built).__name__}, no {wanted}"
    if isclass(built.func if isinstance(built, partial) else built):
        return "is a class that is made again in each call; write a function, or leave out _partial_"
    return _arguments_problem(built, kind)


def _arguments_problem(called: Any, count: int, given: Mapping[str, Any] | None = None) -> str | None:
    remedy = "a function needs _partial_: true" if given is None else "leave out _partial_, or other options"
    try:
        uncached_signature(called).bind(*range(count), **(given or {}))
    except (TypeError, ValueError) as error:
        words = {0: "without arguments", 1: "with one argument"}.get(count, f"with {count} arguments")
        return f"makes something that cannot be called {words} ({error}); {remedy}"
    return None


def _call_problem(target: Target, count: int) -> str | None:
    # A target that is wrong in itself is reported elsewhere.
    if list(target_problems(target.node)):
        return None
    if target.node.get(PARTIAL, False):
        given = {name: value for name, value in target.node.items() if target.takes(name)}
        return _arguments_problem(target.object, count, given)
    try:
        return _arguments_problem(target.make(), count)
    except (BapoLightningError, OSError, MemoryError) as error:
        return f"cannot be made ({error.problems[0] if isinstance(error, ConfigError) else error})"


def _plain(built: Any) -> Any:
    """A partial without Hydra's checks, which take half a millisecond per call."""
    return partial(built.func, *built.args, **built.keywords) if isinstance(built, partial) else built


def target_problems(node: Any, path: str = "") -> Iterator[str]:
    """Yields what is wrong with the `_target_` nodes at and below `node`, whose dotted key is `path`."""
    for key, target in targets_within(node, path):
        yield from _problems_of_one(target.node, key)


def targets_within(node: Any, path: str = "") -> Iterator[tuple[str, Target]]:
    """Yields the `_target_` nodes at and below `node`, whose dotted key is `path`, and their keys."""
    if isinstance(node, Mapping):
        if TARGET in node:
            yield path, Target(node)
        for key, value in node.items():
            yield from targets_within(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from targets_within(value, f"{path}[{index}]")


def option_problems(
    called: Any, name: str, options: Mapping[str, Any], path: str, is_complete: bool = False
) -> Iterator[str]:
    """Yields what is wrong with `options` for the class or function `called`, `name` in the texts.

    Unset (null) options that it does not take are allowed: a base file may leave some unset.
    With `is_complete` no other options will be given, so options without a default must be there.
    """
    parameters, hints = signature(called).parameters, _hints(called)
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    faults = []
    for option, value in options.items():
        if option in HYDRA_KEYS:
            continue
        if option not in parameters and not takes_any:
            if value is not None:
                faults.append(
                    f"{path}.{option} is not an option of {name}; {suggestion(option, list(parameters))}"
                )
        elif (inner := _dataclass_of(hints.get(option))) is not None and isinstance(value, Mapping):
            faults += option_problems(inner, f"{path}.{option}", value, f"{path}.{option}", is_complete=True)
        elif isinstance(value, Mapping) and TARGET not in value and _is_callable_option(hints.get(option)):
            faults.append(f"{path}.{option} has no {TARGET}; write {path}.{option}.{TARGET}=PACKAGE.NAME")
        elif isinstance(value, Mapping) and (count := _num_arguments(hints.get(option))) is not None:
            problem = _call_problem(Target(value), count)
            faults += [f"{path}.{option}={value[TARGET]} {problem}"] if problem else []
        elif not _holds_target(value):
            problem = value_problem(hints.get(option, Any), option, value)
            faults += [f"{path}.{option}={value} {problem}"] if problem else []
    for option, parameter in parameters.items() if is_complete else ():
        if parameter.default is Parameter.empty and option not in options:
            faults.append(f"{path}.{option} is missing; it {accepted(hints.get(option, Any), option)}")
    yield from faults
    if not faults and (rules := _rules_of(called, "problems")) is not None:
        given = options_with_defaults(called, options)
        yield from (_with_path(text, parameters, path) for text in _problems_of_rules(rules, called, given))


def run_problems(target: Target, path: str, run: Any, method: str = "run_problems") -> Iterator[str]:
    """Yields conflicts between a target's options and `run`; nothing if the options are wrong in themselves.
    The results of `machine_problems` also depend on the files of this machine.

    A text begins with the name of an option, or with a space if it continues after `path`. Keys of the run
    are written in full, with a dot.
    """
    if not list(target_problems(target.node, path)) and (rules := _rules_of(target.object, method)):
        options = target.options
        yield from (
            _with_path(text, options, path, "(?!\\.)")
            for text in _problems_of_rules(rules, target.object, options, run)
        )


def _problems_of_rules(rules: Any, called: Any, options: Mapping[str, Any], *run: Any) -> list[str]:
    """The texts of rules, or of an option that they need and that is neither given nor has a default."""
    try:
        return list(rules(options, *run))
    except KeyError as error:
        name = error.args[0]
        if name in options or name not in signature(called).parameters:
            raise
        return [f"{name} is missing; it {accepted(_hints(called).get(name, Any), name)}"]


def options_with_defaults(called: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` for the parameters of `called`, and the defaults of those that are not given."""
    parameters = signature(called).parameters
    defaults = {name: _default(called, item) for name, item in parameters.items()}
    defaults = {name: value for name, value in defaults.items() if value is not Parameter.empty}
    return {**defaults, **{name: value for name, value in options.items() if name not in HYDRA_KEYS}}


def _is_callable_option(annotation: Any) -> bool:
    """Whether an option can only be a callable."""
    members, _ = flattened(annotation)
    members = [member for member in members if member is not type(None)]
    return bool(members) and all(get_origin(member) is Callable for member in members)


def _num_arguments(annotation: Any) -> int | None:
    """Number of arguments of an option that can only be a callable; None if it is not declared."""
    if not _is_callable_option(annotation):
        return None
    counts = {
        len(given) if isinstance(given := get_args(member)[0], list) else None
        for member in flattened(annotation)[0]
        if member is not type(None)
    }
    return counts.pop() if len(counts) == 1 else None


def _default(called: Any, parameter: Parameter) -> Any:
    """The default of a parameter; for a dataclass's field, the result of its factory."""
    field = getattr(called, "__dataclass_fields__", {}).get(parameter.name)
    if field is not None and field.default_factory is not MISSING:
        return field.default_factory()
    return parameter.default


def _problems_of_one(node: Mapping[str, Any], path: str) -> Iterator[str]:
    target, is_partial = node[TARGET], node.get(PARTIAL, False)
    if not isinstance(target, str) or not all(map(str.isidentifier, target.split("."))):
        yield f"{path}.{TARGET}={target} cannot be imported; {NO_DOTTED_NAME}"
        return
    if not isinstance(is_partial, bool):
        yield f"{path}.{PARTIAL}={is_partial} must be true or false"
    try:
        called = imported(target)
    except UNREADABLE as error:
        meant = _meant(target)
        why = " ".join(str(error).splitlines()[:2])  # Hydra names the target first, then the exception
        remedy = f"; did you mean {meant}?" if meant else f"; check its spelling ({why})"
        cause = error.__cause__
        if not isinstance(cause, ImportError | AttributeError | None):  # the module exists, but fails
            remedy = f" ({in_words(cause)})"
        yield f"{path}.{TARGET}={target} cannot be imported{remedy}"
        return
    if not callable(called):
        kind = type(called).__name__
        kind = f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
        yield f"{path}.{TARGET}={target} is {kind}, not a class or function; write the name of one"
        return
    # Also if a module that imports it is named, such as torch.os.system.
    if {target.partition(".")[0], str(getattr(called, "__module__", "")).partition(".")[0]} & STANDARD:
        yield f"{path}.{TARGET}={target} belongs to Python's library; write a function of yours that calls it"
        return
    try:
        signature(called)
    except (TypeError, ValueError):
        yield f"{path}.{TARGET}={target} does not say what it takes (no signature); write one in Python"
        return
    yield from option_problems(called, target, node, path)


def _meant(target: str) -> str | None:
    parent, _, name = target.rpartition(".")
    try:
        near = nearest(name, dir(imported(parent)))
    except UNREADABLE:
        return None
    return f"{parent}.{near[0]}" if near else None


def _rules_of(called: Any, name: str) -> Any:
    """The rules of a class, unless they belong to a base class with another constructor."""
    rules = getattr(called, name, None)
    if rules is None or not isclass(called):
        return rules
    owner: Any = next(base for base in called.__mro__ if name in vars(base))
    return rules if owner.__init__ in (called.__init__, object.__init__) else None


def _with_path(text: str, options: Iterable[str], path: str, end: str = "") -> str:
    """The text with the full key of every option that it names and that the pattern `end` follows."""
    names = [name if "_" in name else rf"{name}(?=[.=:])" for name in options]
    full = re.sub(rf"(?<![\w.])({'|'.join(names)})\b{end}", rf"{path}.\1", text) if names else text
    return full if full.startswith(path) else f"{path}{full}" if full.startswith(" ") else f"{path}.{full}"


def _dataclass_of(annotation: Any) -> Any:
    members, _ = flattened(annotation)
    return next((member for member in members if isclass(member) and is_dataclass(member)), None)


@lru_cache(maxsize=1024)
def _hints(called: Any) -> dict[str, Any]:
    """Annotations by parameter; none if they name things that only a type checker sees."""
    function = called.__init__ if isclass(called) else called
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}


def _holds_target(value: Any) -> bool:
    if isinstance(value, Mapping):
        return TARGET in value or PARTIAL in value or any(map(_holds_target, value.values()))
    return isinstance(value, list) and any(map(_holds_target, value))


def _without_unset(node: Any) -> Any:
    """Without the nulls of a base file (`dual_clip: null`) that the target of a node does not take."""
    if isinstance(node, list):
        return [_without_unset(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    return {
        key: _without_unset(value)
        for key, value in node.items()
        if value is not None or TARGET not in node or key in HYDRA_KEYS or Target(node).takes(key)
    }
