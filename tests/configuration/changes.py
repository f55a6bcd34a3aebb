"""Every option of the configurations of small runs, each once, with values that nobody should write."""

from inspect import Parameter, signature
from random import Random

from hydra.utils import get_object
from tests.configuration.compositions import composed
from tests.configuration.forms import SMALL, overrides_of
from tests.configuration.small_commands import COMMANDS

from bapo_lightning.configuration.compose import hydra_value
from bapo_lightning.configuration.targets import HYDRA_KEYS, TARGET, UNREADABLE

VALUES = [
    "abc", -1, 0, 1, 1.5, -0.5, 10**9, 2**53 + 1, 1e30, float("nan"), float("inf"), True, False, None, [1, 2],
    {"a": 1}, "", "n" * 300, "/dev/null", "\udcff\x1b[2J",
]  # fmt: skip
TARGETS = [
    "abc", "nope.x", "os.getcwd", "collections.OrderedDict", "torch.nn.Linear", "builtins.int", None, 7,
    "bapo_lightning.system.errors", "bapo_lightning.objectives.bounds.Bounds",
    "bapo_lightning.system.errors.ConfigError", "", [1], {"a": 1},
]  # fmt: skip
# Changes that are drawn together: a form of a run takes as long to compose as some of them to try.
OF_A_FORM, OF_A_COMMAND = 12, 2
NODES = [None, "abc", 7, [1], {}]  # in the place of a mapping


def changes(name, run):
    """Yields (place, override) for every option of a form: `place` is equal where two forms have the same."""
    is_command = name in COMMANDS
    plain = COMMANDS[name].known() if is_command else composed(*SMALL, *run)
    for path, value in _nodes(plain):
        key, (target, option) = ".".join(path), _place(plain, path)
        place = target or (name if is_command else ""), option
        if isinstance(value, dict) and value:
            yield from ((place, f"{key}={hydra_value(new)}") for new in NODES)
            yield from ((place, f"+{key}.{name}") for name in _unset(value))
        else:
            values = TARGETS if path[-1] == TARGET else VALUES
            yield from ((place, f"{key}={hydra_value(new)}") for new in values)
            yield place, f"~{key}"


def _nodes(node, path=()):
    if path:
        yield path, node
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _nodes(value, (*path, key))


def _place(plain, path):
    """The key, or the innermost target that has it as an option."""
    node, found = plain, ("", path)
    for depth, key in enumerate(path):
        is_target = isinstance(node, dict) and isinstance(node.get(TARGET), str)
        if is_target and depth and path[depth:] != (TARGET,):
            found = node[TARGET], path[depth:]
        node = node[key]
    return found


def _unset(node):
    """`name=value` of the options that a target takes and a node leaves to their defaults."""
    try:
        parameters = signature(get_object(node[TARGET])).parameters
    except (KeyError, *UNREADABLE):
        return
    kinds = Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL
    for name, parameter in parameters.items():
        has_default = parameter.kind not in kinds and parameter.default is not Parameter.empty
        if has_default and name not in {*node, *HYDRA_KEYS}:
            yield from (f"{name}={hydra_value(value)}" for value in VALUES)


def _run(name):
    return () if name in COMMANDS else overrides_of(name)


def all_changes(names):
    """Yields (form, overrides, override) for these forms and commands: every change of every option, each
    option of a target once; the first of a form is "", no change. The overrides of a form that cannot run
    here are None.
    """
    told = set()
    for name in names:
        run = _run(name)
        yield name, run, ""
        if run is not None:
            found = list(changes(name, run))
            yield from ((name, run, text) for place, text in found if place not in told)
            told |= {place for place, _ in found}


def some_changes(names, count, seed):
    """Yields so many of them as they are drawn, of a few forms, without a look at the others."""
    random = Random(seed)
    while count > 0:
        name = random.choice(names)
        if (run := _run(name)) is not None:
            most = OF_A_COMMAND if name in COMMANDS else OF_A_FORM
            drawn = random.sample([text for _, text in changes(name, run)], min(count, most))
            yield from ((name, run, text) for text in drawn)
            count -= len(drawn)
