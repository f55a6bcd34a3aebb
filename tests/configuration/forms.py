"""The small runs whose options are changed: each choice of a group that a run on this machine can have."""

import json
import os
import shutil
import sys
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from tests.configuration.attempts import attempt
from tests.configuration.compositions import CONF, composed, names

from bapo_lightning.configuration.targets import TARGET
from bapo_lightning.configuration.validate import validate
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.tools.rehearsal.script import write_small_model

SMALL = (
    "debug=fast", "run_folder=run", "scale.prompts_per_batch=2", "+data.train.limit=8",
    "scale.num_rollout_batches=2", "scale.validation_problems=2", "scale.validation_samples=2",
    "callbacks.validation.every=100", "regime.minibatches=2", "regime.epochs=1",
)  # fmt: skip
# Whole runs of many parts; every option of their configurations is changed.
RUNS = {
    "bapo": ("experiment=additions", "callbacks.validation.every=2"),
    "dapo": ("algorithm=dapo", "regime=async", "regime.max_age=5", "correction=truncated_is",
             "regime.epochs=2"),
    "grpo": ("algorithm=grpo", "regime=reuse", "regime.partial_tokens=8", "regime.max_age=23",
             "correction=masked_is", "model/lora=default", "logger=csv", "reward=math_format",
             "regime.epochs=2"),
    "turns": ("experiment=sums",),
    "child": ("experiment=additions", "rollout=hf_child"),
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
# What some choices ask of the rest, and the packages that they need.
GAME = (
    "data=textarena_mastermind", "data.train.count=8", "~data.train.limit", "environment.max_turns=2",
    "scale.max_feedback_tokens=256",
)  # fmt: skip
WORLD = (
    "data=openenv", "data.train.count=8", "~data.train.limit", "data.validation.openenv.count=2",
    "environment.max_turns=2", "scale.max_feedback_tokens=256",
    "environment.answers.server.command="
    f"[{sys.executable},-m,tests.extras.openenv.guessing,'{{port}}',{os.devnull}]",
    f"environment.answers.server.folder={Path(__file__).parents[2]}",
)  # fmt: skip
SERVED = (
    "data=verifiers", *WORLD[1:6], "environment.answers.server.values.environment=verifiers",
    f"environment.answers.server.values.python={sys.executable}",
    "+environment.answers.server.variables.PYTHONPATH="
    f"{Path(__file__).parents[1] / 'extras/verifiers/library'}",
)  # fmt: skip
TOY = Path(__file__).parents[1] / "extras/agent/toy.py"
AGENT = (
    f"environment.answers.endpoint.command=[{sys.executable},{TOY}]", "environment.max_turns=2",
    "scale.max_feedback_tokens=256",
)  # fmt: skip
NEEDS = {
    "algorithm=aepo": ("scale.prompts_per_batch=4",),
    "reward=environment": ("environment=textarena", *GAME),
    "reward=functions": ("reward.functions=[tests.runs.own_rewards.length]",),
    "reward=reasoning_gym": ("data=reasoning_gym_chain_sum", "data.train.size=200"),
    "reward=countdown": ("data=countdown", "data.train.size=200"),
    "environment=agent": ("reward=environment", *AGENT),
    "environment=openenv": ("reward=environment", *WORLD),
    "environment=textarena": ("reward=environment", *GAME),
    "environment=verifiers": ("reward=environment", *SERVED),
    "data/prompt=base_model": ("scale.max_prompt_tokens=110", "scale.max_new_tokens=16"),
}
PACKAGES = {
    "reward=math_ray": "ray", "reward=reasoning_gym": "reasoning_gym", "reward=countdown": "reasoning_gym",
    "reward=environment": "textarena", "environment=textarena": "textarena",
}  # fmt: skip
# What needs a tokenizer with a chat template.
CHATS = {"ChatPrompt", "MessagesPrompt", "ChatFeedback", "AgentPrompt", "AgentFeedback"}
CRITIC = "algorithm=direct_advantage"
MADE = Path("outputs").resolve()  # models, beside the results


def names_of_forms():
    return [*RUNS, *(f"{group}={name}" for group in GROUPS for name in names(group))]


def lacks(name):
    """What a form needs that is not here."""
    return PACKAGES.get(name, "what no small run has")


def overrides_of(name):
    """The overrides of a form, or None where it cannot run here."""
    if name in RUNS:
        return RUNS[name]
    if name in PACKAGES and find_spec(PACKAGES[name]) is None:
        return None
    needs = critic() if name == CRITIC else NEEDS.get(name, ())
    choices = ((*companions, *needs, name) for companions in COMPANIONS)
    return next((found for choice in choices if (found := _valid(choice)) is not None), None)


def _valid(choice):
    try:
        plain = composed(*SMALL, *choice)
        if _chats(plain):
            choice = (*choice, *chat_model())
            plain = composed(*SMALL, *choice)
        validate(plain)
    except (ConfigError, Exception):
        return None
    return choice


def _chats(plain):
    nodes = [plain["data"]["prompt"], (plain["environment"] or {}).get("feedback")]
    return any(node and node[TARGET].rpartition(".")[2] in CHATS for node in nodes)


@cache
def chat_model():
    """Overrides of a model that can be talked to."""
    config = _shipped() | {"max_position_embeddings": 4096}
    files = [file for group in ("data/prompt", "environment") for file in (CONF / group).rglob("*.yaml")]
    texts = [file.read_text() for file in files]
    folder = _made("fuzz_model", partial(write_small_model, config, texts))
    return (f"model.path={folder}", "scale.max_prompt_tokens=2000")


@cache
def critic():
    """Overrides of a critic of steps."""
    from tests.algorithms.direct_advantage.critics import random_critic  # a rival's, which may be deleted

    make = partial(random_critic, vocab_size=_shipped()["vocab_size"])
    return (f"algorithm.stages.step_advantages.critic={_made('fuzz_critic', make)}",)


def _shipped():
    return json.loads(Path(model_path(composed()["model"]["path"]), "config.json").read_text())


def _made(name, make):
    """A folder of that name; where there is none, `make` fills it in a fork, as it may start threads."""
    folder = MADE / name
    if not folder.exists():
        place = MADE / f"{name}.{os.getpid()}"
        attempt(lambda: make(place / "made") and None, place)
        with suppress(OSError):  # another process was first
            (place / "made").rename(folder)
        shutil.rmtree(place)
    return folder
