"""What a configuration shows to be wrong by itself is told before torch is imported, in the same words."""

import json
import subprocess
import sys
from importlib import import_module
from inspect import signature
from typing import Any

import pytest
from hydra.utils import get_object
from tests.configuration.compositions import composed, problems_of
from tests.configuration.test_fuzz import MORE, RUNS, SAMPLED, VALUES, changed, leaves

from bapo_lightning.configuration.early import early_problems
from bapo_lightning.configuration.targets import _hints, targets_within
from bapo_lightning.configuration.written import misspelt, written

# Override | words of its answer.
TYPED = """
seed=1.5 | seed=1.5 must be a whole number from 0 to 4294967295
seed=-1 | seed=-1 must be
name=../../evil | letters, digits and . _ + - only
+trainer.max_steps=9 | is refused: the length of a run is
trainer.devices=two | trainer.devices=two must be a whole number of at least 1
rollout.temperature=-1 | training samples must come from a distribution
rollout.top_p=1.5 | rollout.top_p=1.5 must be
rollout.engine.max_rows=abc | rollout.engine.max_rows=abc must be
rollout.weight_sync.tolerance=small | rollout.weight_sync.tolerance=small must be a number
optimizer.optimizer.lr=abc | optimizer.optimizer.lr=abc must be a positive number
+optimizer.optimizer.lrr=1 | lrr is not an option of torch.optim.AdamW; did you mean lr?
optimizer.optimizer.weight_decay=abc | optimizer.optimizer.weight_decay=abc must be a number
+optimizer.optimizer.amsgrad=7 | optimizer.optimizer.amsgrad=7 must be true or false
+trainer.max_steps=abc | trainer.max_steps=abc is refused: the length of a run is
+trainer.gradient_clip_val=abc | trainer.gradient_clip_val=abc is refused: write optimizer.max_grad_norm
+trainer.profilr=simple | trainer.profilr is not an option of lightning.Trainer; did you mean profiler?
+trainer.detect_anomaly=7 | trainer.detect_anomaly=7 must be true or false
trainer.precision=half | trainer.precision=half is none of its values
optimizer.optimizer.lr=1e400 | must be finite
optimizer.scheduler.warmup_updates=-1 | a whole number of at least 0
scale.prompts_per_batch=100000000 | must be a whole number in [1, 1000000]
scale.max_new_tokens=many | scale.max_new_tokens=many must be a whole number
regime.epochs=0 | regime.epochs=0 must be a whole number in [1, 1000000]
model.dtype=float16 | cannot be trained in
+model.rank=8 | model.rank is not an option of model
callbacks.checkpoint.minutes=soon | must be a positive number of minutes
callbacks.console.every=0 | callbacks.console.every=0 must be
callbacks.gradient.cosine=maybe | callbacks.gradient.cosine=maybe must be true or false
callbacks.alarms.entropy.action=shout | is none of its values; write one of warn, stop, off
algorithm.bounds.order=sideways | write one of upper_first, lower_first
plan.gpu=h900 | plan.gpu=h900 is not known
""".strip().splitlines()
PROGRAM = """
import json, sys
from copy import deepcopy
from omegaconf import OmegaConf
from bapo_lightning.configuration.compose import composed_run, resolve
from bapo_lightning.configuration.early import early_problems
base, told = composed_run(["experiment=additions"]), []
OmegaConf.set_struct(base, False)
for override in json.load(sys.stdin):
    config = deepcopy(base)
    with_value = OmegaConf.from_dotlist([override.lstrip("+")])
    told.append(" ".join(early_problems(resolve(OmegaConf.unsafe_merge(config, with_value)))))
heavy = {"torch", "lightning", "transformers", "datasets", "vllm", "numpy"} & set(sys.modules)
print(json.dumps([told, sorted(heavy)]))
"""
COMMANDS = """
import sys
from importlib import import_module
from bapo_lightning.__main__ import module_of
for name, *arguments in [
    ("train",), ("data",), ("plan",), ("simulate",), ("serve",), ("critic",),
    ("sweep", "algorithm=grpo,bapo"), ("eval", "checkpoint=.", "k=none"),
]:
    sys.argv = [name, "seed=1.5", *arguments]
    try:
        print(name, import_module(module_of(name)).main(), "torch" in sys.modules, flush=True)
    except SystemExit as end:
        print(name, end.code, "torch" in sys.modules, flush=True)
"""


HELD_TO = ("bapo_lightning", "torch.optim", "torch.nn", "lightning", "pydantic", "hydra", "numpy")
OWN = """
import torch
from collections import OrderedDict
from typing import Literal

class Reward:
    def __init__(self, low: float, how: Literal["a", "b"] = "a"): ...

def exact(problems, completions): ...
if torch.cuda.is_available():
    def fast(problems, completions): ...
"""
# Modules whose names cannot be told from their files.
UNSAID = {
    "stars": "from own.rewards import *",
    "asked": "import torch\ndef __getattr__(name): return torch",
    "made": "globals()['exakt'] = print",
    "broken": "def exakt(:",
    "beyond": "from ....far import near",
}
# Target and options of an own module | words of the answer; none where the import must tell.
OWN_ROWS = """
own.rewards.exakt | reward._target_=own.rewards.exakt cannot be imported; did you mean own.rewards.exact?
own.rewards.Rewrad | cannot be imported; did you mean own.rewards.Reward?
own.rewrads.exact | cannot be imported; did you mean own.rewards.exact?
jsno.dump | cannot be imported; did you mean json.dump?
own.qqqqqqqq.exact | cannot be imported; check its spelling: there is no own.qqqqqqqq
own.rewards.Reward lwo=1 | reward.lwo is not an option of own.rewards.Reward; did you mean low?
own.rewards.Reward low=abc | reward.low=abc must be a number
own.rewards.Reward how=c | reward.how=c is none of its values; write one of a, b
own.rewards.exact |
own.rewards.Reward low=1 how=b |
own.rewards.fast |
own.rewards.torch.anything |
own.stars.exakt |
own.asked.exakt |
own.made.exakt |
own.broken.exakt |
own.beyond.exakt |
os.getcwd |
""".strip().splitlines()
OWN_PROGRAM = """
import json, sys
from omegaconf import OmegaConf
from bapo_lightning.configuration.early import early_problems
told = []
for row in json.load(sys.stdin):
    name, *options = row.split()
    node = OmegaConf.to_container(OmegaConf.from_dotlist(options))
    found = early_problems({"reward": {"_target_": name, **node}})
    told.append([text for text in found if text.startswith("reward.")])
print(json.dumps([told, sorted({"torch", "own"} & set(sys.modules))]))
"""


def run(program, given="", folder=None):
    done = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done


def test_wrong_values_are_answered_without_torch():
    rows = [row.split(" | ") for row in TYPED]
    told, heavy = json.loads(run(PROGRAM, json.dumps([override for override, _ in rows])).stdout)
    assert heavy == []
    assert [(row, text) for row, text in zip(rows, told, strict=True) if row[1] not in text] == []


@pytest.mark.parametrize("made", [{}, {"__init__": ""}])
def test_names_and_options_of_own_modules_are_judged_by_their_files(made, tmp_path):
    (tmp_path / "own").mkdir()
    for name, text in {"rewards": OWN, **UNSAID, **made}.items():
        (tmp_path / f"own/{name}.py").write_text(text)
    rows = [row.partition("|")[::2] for row in OWN_ROWS]
    told, heavy = json.loads(run(OWN_PROGRAM, json.dumps([row for row, _ in rows]), tmp_path).stdout)
    assert heavy == []
    for (row, words), texts in zip(rows, told, strict=True):
        assert len(texts) == bool(words) and all(words.strip() in text for text in texts), row


def test_no_name_that_python_has_is_called_misspelt():
    modules = {name: module for name, module in sys.modules.items() if name.startswith(HELD_TO)}
    names = [
        f"{module}.{name}"
        for module, held in modules.items()
        for name, value in vars(held).items()
        if callable(value) and not name.startswith("__")
    ]
    assert len(names) > 10_000
    assert [name for name in names if misspelt(name) is not None] == []


def test_every_command_that_composes_a_run_answers_without_torch():
    done = run(COMMANDS)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, code, loaded in rows if code in "12" and loaded == "False"} == {
        "train", "data", "plan", "simulate", "serve", "critic", "sweep", "eval",
    }, done.stdout + done.stderr  # fmt: skip
    assert done.stderr.count("seed=1.5 must be a whole number") == len(rows)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("step", [SAMPLED, pytest.param(MORE, marks=(pytest.mark.slow, pytest.mark.drill))])
def test_what_is_told_early_is_among_what_the_whole_check_finds(run, step):
    base = composed(*RUNS[run])
    assert early_problems(base) == []
    changes = [(path, value) for path in leaves(base) for value in VALUES]
    for path, value in changes[::step]:
        with changed(base, path, value):
            early = {text.partition("=")[0] for text in early_problems(base)}
            assert not early or early <= {text.partition("=")[0] for text in problems_of(base)}, path


def agrees(name):
    """Whether a file says what a name takes; that it is what Python has is checked."""
    made, stand_in = get_object(name), written(name)
    if stand_in is None or not callable(made):
        return False
    found, hints = signature(stand_in).parameters, _hints(made)
    assert {*signature(made).parameters} <= {*found} or "others" in found, name
    told = {key: one.annotation for key, one in found.items() if one.annotation is not Any}
    assert told == {key: hints.get(key, told[key]) for key in told}, name
    return True


@pytest.mark.parametrize("run", RUNS)
def test_a_signature_as_written_is_the_one_that_python_has(run):
    assert sum(agrees(target.name) for _, target in targets_within(composed(*RUNS[run]))) > 15


@pytest.mark.parametrize(
    ("package", "least"),
    [
        *[("torch.optim", 15), ("torch.optim.lr_scheduler", 15), ("lightning", 2)],
        *[(f"lightning.pytorch.{part}", 5) for part in ("callbacks", "loggers", "strategies")],
    ],
)
def test_signatures_of_torch_and_lightning_as_written_are_those_that_python_has(package, least):
    names = [name for name in dir(import_module(package)) if not name.startswith("_")]
    assert sum(agrees(f"{package}.{name}") for name in names) >= least
