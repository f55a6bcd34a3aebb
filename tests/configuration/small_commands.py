"""The other commands than training, in small: how each is run, and which keys are its own."""

import inspect
import os
import sys
from collections.abc import Mapping
from concurrent.futures.thread import _threads_queues
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context

import tests.commands
from hydra.core.global_hydra import GlobalHydra
from tests.children import forked_children
from tests.configuration.compositions import composed_or_refused

from bapo_lightning.__main__ import COMMANDS as SHIPPED
from bapo_lightning.__main__ import module_of
from bapo_lightning.configuration.compose import node_at, resolve
from bapo_lightning.rollout.vllm.server_process import ServerProcess

STUDIES = ("map", "figures")  # which have commands of their own
MODEL = "package://bapo_lightning/tiny_worlds/additions/model"
WORLD = ("debug=fast", "experiment=additions")
FEW = (
    "+data.train.limit=8", "scale.prompts_per_batch=4", "scale.num_rollout_batches=2",
    "scale.validation_problems=2",
)  # fmt: skip


@dataclass(frozen=True)
class SmallCommand:
    """A command with the arguments of its smallest run."""

    name: str
    arguments: tuple[str, ...]
    keys: tuple[str, ...] = ()  # its own of those that are composed, and some that it shares; (): all
    values: Mapping = field(default_factory=dict)  # keys that are not composed, nested, with values
    file: str | None = "train"  # that Hydra composes; None: the command reads its arguments itself
    rewrite: str = ""  # name of the function of the module that makes Hydra's overrides of the arguments
    answers: int = 0  # a further exit code that is none of a failure

    @property
    def module(self):
        return f"studies.{self.name}.__main__" if self.name in STUDIES else module_of(self.name)

    def known(self):
        """What there is to change, as a nested mapping."""
        if self.file is None:
            return self.values
        plain, picked = resolve(self._composed(self.arguments)), {}
        for key in self.keys:
            *above, last = key.split(".")
            place = picked
            for name in above:
                place = place.setdefault(name, {})
            place[last] = node_at(plain, key.split("."))
        return {**(picked if self.keys else plain), **self.values}

    def given(self, change):
        """The arguments with a change, which takes the place of one of the same key."""
        key = _key(change)
        before = [text for text in self.arguments if _key(text) == key]
        if self.file is None:
            change = change.lstrip("+")
        elif change[:1] not in ("+", "~") and any(text.startswith("+") for text in before):
            change = f"+{change}"
        return [*(text for text in self.arguments if text not in before), *[change] * bool(change)]

    def run(self, given):
        """Returns the exit code. What Hydra composes is composed faster here, as for training."""
        main = import_module(self.module).main
        ServerProcess.start = _interrupted
        if self.file is not None:
            code = inspect.unwrap(main)(self._composed(given))
        else:
            sys.argv[1:] = given
            tests.commands.SERVER = get_context("fork")  # this process is warm itself
            os.register_at_fork(after_in_child=_forget)
            with forked_children():
                code = main()
        return 0 if code == self.answers else code

    def _composed(self, given):
        if self.rewrite:
            given = getattr(import_module(self.module), self.rewrite)(given)
        return composed_or_refused(*given, file=self.file)


def _interrupted(server, deadline_seconds):
    """In the place of the start of a vLLM server: `serve` takes it for Ctrl-C."""
    raise KeyboardInterrupt


def _forget():
    """Leaves to the command that forked this process what Hydra composed and what its threads wait for."""
    GlobalHydra.instance().clear()
    _threads_queues.clear()


def _key(text):
    return text.lstrip("+~").partition("=")[0]


ALL = (
    SmallCommand(
        "plan",
        WORLD,
        ("plan", "trainer.devices", "trainer.num_nodes", "scale.max_new_tokens", "model.path"),
        answers=3,  # it does not fit
    ),
    SmallCommand("data", (*WORLD, "+show=2"),
                 ("show", "scale.max_prompt_tokens", "scale.validation_problems", "model.path",
                  "data.validation")),
    SmallCommand("serve", (*WORLD, "rollout=vllm_server"),
                 ("output_root", "rollout.serve_port", "rollout.max_restarts", "rollout.engine.num_servers",
                  "rollout.engine.cpu_threads", "rollout.engine.gpus", "rollout.engine.start_seconds",
                  "rollout.engine.urls", "rollout.engine.options.tensor_parallel_size")),
    SmallCommand("simulate",
                 (*WORLD, "simulate.gpus=2", "simulate.num_batches=4", "simulate.skipped_batches=1",
                  "simulate.trainer_shares=[0.5]", "simulate.max_ages=[7]", "simulate.what_if=false"),
                 ("simulate", "plan.mean_response_share", "scale.max_new_tokens", "seed"),
                 rewrite="with_simulate"),
    SmallCommand("critic",
                 (*WORLD, *FEW, "critic.to=critic", "critic.num_problems=4", "critic.samples=4",
                  "critic.split=8"), ("cpu_threads", "seed"),
                 {"critic": {"to": "critic", "overwrite": False, "split": 8, "num_problems": 4, "samples": 4,
                             "completions": 0, "held_out": 0.1, "epochs": 1, "batch_size": 64,
                             "learning_rate": None}}, rewrite="with_critic"),
    SmallCommand("eval",
                 (f"checkpoint={MODEL}", "sets=additions", "problems_per_set=2", "k=2",
                  "scale.max_new_tokens=4", "data/prompt=plain", "reward=last_number"),
                 values={"sets": "additions"}, file="eval", rewrite="hydra_overrides"),
    SmallCommand("rehearse", ("experiment=additions",),
                 values={"experiment": "additions", "rehearsal": {"folder": "rehearsal", "share": "1/3"}},
                 file=None),
    SmallCommand("sweep", (*WORLD, *FEW, "sweep=smoke", "algorithm=grpo", "launcher.parallel_runs=1"),
                 values={"sweep": "smoke", "folder": None, "output_root": "outputs",
                         "launcher": {"parallel_runs": 1, "gpus_per_run": 0},
                         "hydra": {"sweeper": {"parameters": {"seed": [0]}, "cases": [], "reference": None}}},
                 file=None),
    SmallCommand(
        "map",
        (
            "output=map", "seeds=2", "gate_seeds=2", "num_updates=4", "measure_every=2", "processes=1",
            "problems_per_update=4", "drawn=[wide_high]", "only=[grpo,wide_high]", "gate=[wide_high]",
            "controls=[]", "worlds.table.world.num_contexts=8", "worlds.factored=null",
            "worlds.table.axes={learning_rate: [0.1], staleness: [2], wrong_tokens: [3], key_prior: [0.1]}",
        ),
        values={
            "map": "exact", "output": "map", "processes": 1, "gate_seeds": 2, "seeds": 2, "num_updates": 4,
            "problems_per_update": 4, "group_size": 8, "micro_batches": 4, "measure_every": 2,
            "kept": None, "extends": None, "common": {"seed": 0}, "gate": ["wide_high"], "controls": [],
            "drawn": ["wide_high"], "duels": [], "verdict": None, "only": ["grpo", "wide_high"],
            "methods": {"grpo": {"label": "GRPO", "set": {"algorithm": "grpo"}}},
            "worlds": {
                "table": {
                    "world": {"_target_": "studies.exact.world.contextual_table", "num_contexts": 8},
                    "experiment": None,
                    "axes": {
                        "learning_rate": [0.1], "staleness": [2], "wrong_tokens": [3], "key_prior": [0.1],
                    },
                },
            },
        },
        file=None,
    ),
    SmallCommand("figures", (*FEW, "figure=4", "seed=1", "launcher.parallel_runs=1"),
                 values={"figure": "4", "seed": 1, "output_root": "outputs", "scale": {"group_size": 8},
                         "launcher": {"parallel_runs": 1, "gpus_per_run": 0}}, file=None),
)  # fmt: skip
# A leaf or a rival may be deleted with its command.
COMMANDS = {each.name: each for each in ALL if each.name in (*SHIPPED, *STUDIES)}
