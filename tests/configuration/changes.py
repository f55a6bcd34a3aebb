"""Every option of the configurations of small runs, each once, with values that nobody should write."""

from inspect import Parameter, signature

from hydra.utils import get_object
from tests.configuration.compositions import composed, names

from bapo_lightning.configuration.compose import hydra_value
from bapo_lightning.configuration.targets import HYDRA_KEYS, TARGET, UNREADABLE
from bapo_lightning.configuration.validate import validate
from bapo_lightning.errors import ConfigError

SMALL = (
    "debug=fast", "run_folder=run", "scale.prompts_per_batch=2", "scale.num_rollout_batches=2",
    "callbacks.validation.every=2", "regime.minibatches=2",
)  # fmt: skip
# Whole runs of many parts; every option of their configurations is changed.
RUNS = {
    "bapo": ("experiment=additions", "regime.epochs=1"),
    "dapo": ("algorithm=dapo", "regime=async", "regime.max_age=5", "correction=truncated_is"),
    "grpo": (
        "algorithm=grpo", "regime=reuse", "regime.partial_tokens=8", "regime.max_age=23",
        "correction=masked_is", "model/lora=default", "logger=csv", "reward=math_format",
    ),
    "turns": ("experiment=sums", "regime.epochs=1"),
    "child": ("experiment=additions", "rollout=hf_child", "regime.epochs=1"),
}  # fmt: skip
# A choice of a group adds what the runs above do not have; the second of these is for algorithms that ask it.
COMPANIONS = (
    (),
    ("regime=spear",),
    ("regime=pipo",),
    ("experiment=sums",),
    ("experiment=sums", "regime=spear"),
)
GROUPS = ("algorithm", "regime", "correction", "reward", "environment", "data/prompt", "data/filters")
VALUES = [
    "abc", -1, 0, 1, 1.5, -0.5, 10**9, 2**53 + 1, 1e30, float("nan"), float("inf"), True, False, None, [1, 2],
    {"a": 1}, "", "n" * 300, "/dev/null", "\udcff\x1b[2J",
]  # fmt: skip
TARGETS = [
    "abc", "nope.x", "os.getcwd", "collections.OrderedDict", "torch.nn.Linear", "bapo_lightning.errors",
    "bapo_lightning.objectives.bounds.Bounds", "bapo_lightning.errors.ConfigError", "builtins.int", None, 7,
    "", [1], {"a": 1},
]  # fmt: skip
NODES = [None, "abc", 7, [1], {}]  # in the place of a mapping


def changes(run):
    """Yields (place, override) for every option of a run: `place` is equal where two runs have the same."""
    plain = composed(*SMALL, *run)
    for path, value in _nodes(plain):
        key, place = ".".join(path), _place(plain, path)
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
        if (
            isinstance(node, dict)
            and isinstance(node.get(TARGET), str)
            and depth
            and path[depth:] != (TARGET,)
        ):
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
        if (
            name not in {*node, *HYDRA_KEYS}
            and parameter.kind not in kinds
            and parameter.default is not Parameter.empty
        ):
            yield from (f"{name}={hydra_value(value)}" for value in VALUES)


def runs():
    """Name and overrides of every run: those above, and each choice of a group that a small run can have."""
    yield from RUNS.items()
    for group in GROUPS:
        for name in names(group):
            for companions in COMPANIONS:
                choice = (*companions, f"{group}={name}")
                if _is_valid(choice):
                    yield f"{group}={name}", choice
                    break


def _is_valid(choice):
    try:
        validate(composed(*SMALL, *choice))
    except (ConfigError, Exception):
        return False
    return True


def all_changes():
    """Yields (run, overrides, override): every change of every option, each option of a target once."""
    told = set()
    for name, run in runs():
        found = list(changes(run))
        yield name, run, ""
        yield from ((name, run, text) for place, text in found if place not in told)
        told |= {place for place, _ in found}
