"""Several runs are told what stops any of them, once."""

import pickle

import pytest
from tests.configuration.compositions import composed

from bapo_lightning.configuration import machine
from bapo_lightning.errors import ConfigError, MachineError
from bapo_lightning.runs.sweeps.check import check_runs, together


def refusing(config):
    raise MachineError(
        config.name, [f"GPUs: {config.seed + 1} needed", "memory: 7 GB", "model: gone"], ["wait"]
    )


def test_what_a_machine_lacks_for_several_runs_is_told_once_and_in_order(monkeypatch):
    monkeypatch.setattr(machine, "check_machine", refusing)
    with pytest.raises(MachineError) as error:
        check_runs([composed("seed=0"), composed("seed=1"), composed("seed=0")])
    assert str(error.value) == (
        "additions cannot run on this machine:\n"
        "  1. GPUs: 1 needed\n  2. GPUs: 2 needed\n  3. memory: 7 GB\n  4. model: gone\n  wait"
    )


def test_what_is_wrong_on_any_machine_comes_first(monkeypatch):
    monkeypatch.setattr(machine, "check_machine", refusing)
    with pytest.raises(ConfigError) as error:
        check_runs([composed(), *[composed("scale.group_size=0")] * 2])
    (problem,) = error.value.problems
    assert problem.startswith("scale.group_size=0 ") and not isinstance(error.value, MachineError)


def test_runs_of_several_experiments_are_named():
    errors = [MachineError(name, ["model: gone"], []) for name in ("a", "b", "a")]
    assert str(together(errors)) == "a, b cannot run on this machine:\n  1. model: gone"


def test_the_error_can_be_sent_to_another_process():
    error = MachineError("a", ["GPUs: 8 needed"], ["wait"])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.problems, copy.advice) == (str(error), error.problems, error.advice)
