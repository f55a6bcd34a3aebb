"""Every leaf of three configurations with odd values is refused in words or harmless; none is a traceback."""

import math
from contextlib import contextmanager

import pytest
from tests.configuration import forms
from tests.configuration.changes import VALUES
from tests.configuration.compositions import composed

from bapo_lightning.configuration.targets import targets_within
from bapo_lightning.configuration.validate import validate
from bapo_lightning.system.errors import BapoLightningError, ConfigError

RUNS = {name: (*forms.SMALL, *forms.RUNS[name]) for name in ("dapo", "grpo", "child")}
SAMPLED = 50  # one change in so many is tried where time is short
MORE = 7  # and by `make test-all`; `make fuzz` runs every one


def leaves(node, path=()):
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    else:
        yield path


@contextmanager
def changed(plain, path, value):
    node = plain
    for key in path[:-1]:
        node = node[key]
    before, node[path[-1]] = node[path[-1]], value
    try:
        yield
    finally:
        node[path[-1]] = before


def make_everything(plain):
    """Checks a configuration and makes the parts of it that need neither files nor processes."""
    config = validate(plain)
    algorithm = config.algorithm
    for node in (
        algorithm.objective,
        algorithm.weighting,
        algorithm.advantages,
        algorithm.bounds,
        *algorithm.rules.values(),
        config.regime,
        config.correction.weights,
        config.optimizer.optimizer,
        config.optimizer.scheduler,
        config.rollout.weight_sync,
    ):
        if node is not None:
            node.make()


def raw_errors(plain, changes):
    """The changes that end in another error than one of ours."""
    found = []
    for path, value in changes:
        with changed(plain, path, value):
            try:
                make_everything(plain)
            except (ConfigError, BapoLightningError):
                pass
            except Exception as error:
                found.append(f"{'.'.join(path)}={value!r}: {type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("step", [SAMPLED, pytest.param(MORE, marks=(pytest.mark.slow, pytest.mark.drill))])
def test_no_value_of_any_leaf_ends_in_a_traceback(run, step):
    base = composed(*RUNS[run])
    make_everything(base)
    changes = [(path, value) for path in leaves(base) for value in VALUES]
    assert raw_errors(base, changes[::step]) == []


@pytest.mark.parametrize("run", RUNS)
def test_an_unset_option_that_nothing_takes_is_no_fault(run):
    base = composed(*RUNS[run])
    for _, target in list(targets_within(base)):
        target.node["unknown"] = None
    make_everything(base)


@pytest.mark.parametrize("run", RUNS)
def test_no_number_may_be_nan(run):
    base = composed(*RUNS[run])
    taken = []
    for path in leaves(base):
        with changed(base, path, math.nan):
            try:
                validate(base)
                taken.append(".".join(path))
            except ConfigError:
                continue
    assert taken == []
