"""An evaluation of a run folder that somebody else made runs none of the code that its config.yaml names."""

import pytest
from omegaconf import OmegaConf

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.tools.evaluation.subject import INHERITED, Subject, inherit

RUN = compose_run(["experiment=additions"])
SERVER = {"_target_": "bapo_lightning.extras.openenv.server.WorldServer", "command": ["sh"]}
FOREIGN = [
    ("reward", {"_target_": "sympy.sympify", "a": "1"}, "sympy"),
    ("reward", {"_target_": "torch.load", "f": "x", "weights_only": False}, "torch"),
    ("reward", {"_target_": "mine.Reward"}, "mine"),
    ("reward", {"_target_": "bapo_lightning.rewards.functions.FunctionRewards", "functions": ["m.r"]}, "m"),
    ("reward", {"_target_": "bapo_lightning.system.host.subprocess.getoutput", "cmd": "true"},
     "bapo_lightning"),
    ("reward", {"_target_": "bapo_lightning.data.problems.table.os.system"}, "bapo_lightning"),
    ("reward", {"_target_": "bapo_lightning.data.nothing"}, "bapo_lightning"),
    ("data.prompt", {"_target_": "builtins.eval", "_args_": ["1"]}, "builtins"),
    ("data.validation", {"set": {"_target_": "numpy.load", "file": "x", "allow_pickle": True}}, "numpy"),
    ("environment", {"answers": {"_target_": "os.system", "command": "true"}}, "os"),
    ("environment", {"answers": {"server": SERVER}}, "command"),
]  # fmt: skip


def composed(trusted=()):
    config = OmegaConf.create({"k": 1, "name": None, "model": {"dtype": None}, "trusted": list(trusted)})
    for key in INHERITED:
        OmegaConf.update(config, key, None, force_add=True)
    return config


def subject(key, node):
    run = OmegaConf.create(RUN)
    OmegaConf.update(run, key, node, merge=False)
    return Subject("run", {"path": "model"}, OmegaConf.to_container(run))


@pytest.mark.parametrize(("key", "node", "module"), FOREIGN)
def test_code_that_a_run_names_is_refused_unless_the_command_line_trusts_its_module(key, node, module):
    with pytest.raises(ConfigError, match=rf"would run code; if you trust it, write trusted=\[{module}\]"):
        inherit(composed(), subject(key, node))
    config = composed([module, "command"])
    inherit(config, subject(key, node))
    assert OmegaConf.select(config, key) is not None


def test_what_the_package_ships_needs_no_trust():
    config = composed()
    inherit(config, subject("seed", 0))
    assert config.reward._target_.startswith("bapo_lightning.")
