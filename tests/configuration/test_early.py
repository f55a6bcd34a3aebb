"""Wrong keys and types are answered before torch is imported, in the words of the whole check."""

import json
import subprocess
import sys
from copy import deepcopy
from functools import reduce
from operator import getitem

import pytest
import yaml
from tests.configuration.compositions import composed, problems_of
from tests.configuration.test_fuzz import MORE, RUNS, SAMPLED, VALUES, changed, leaves

from bapo_lightning.configuration.early import early_problems

# Override | words of its answer.
TYPED = """
seed=1.5 | seed=1.5 must be a whole number from 0 to 4294967295
seed=-1 | seed=-1 must be
name=../../evil | letters, digits and . _ + - only
+trainer.max_steps=9 | is refused: the length of a run is
trainer.devices=two | trainer.devices=two must be a whole number of at least 1
rollout.temperature=-1 | training samples must come from a distribution
rollout.top_p=1.5 | rollout.top_p=1.5 must be
optimizer.optimizer.lr=abc | optimizer.optimizer.lr=abc must be a positive number
+trainer.max_steps=abc | trainer.max_steps=abc is refused: the length of a run is
+trainer.gradient_clip_val=abc | trainer.gradient_clip_val=abc is refused: write optimizer.max_grad_norm
trainer.precision=half | trainer.precision=half is none of its values
optimizer.optimizer.lr=1e400 | must be finite
scale.prompts_per_batch=100000000 | must be a whole number in [1, 1000000]
scale.max_new_tokens=many | scale.max_new_tokens=many must be a whole number
model.dtype=float16 | cannot be trained in
+model.rank=8 | model.rank is not an option of model
plan.gpu=h900 | plan.gpu=h900 is not known
""".strip().splitlines()
# Options of classes, which have to be imported for it.
OPTIONS = """
rollout.engine.max_rows=abc | rollout.engine.max_rows=abc must be
rollout.weight_sync.tolerance=small | rollout.weight_sync.tolerance=small must be a number
+optimizer.optimizer.lrr=1 | lrr is not an option of torch.optim.AdamW; did you mean lr?
optimizer.optimizer.weight_decay=abc | optimizer.optimizer.weight_decay=abc must be a number
+optimizer.optimizer.amsgrad=7 | optimizer.optimizer.amsgrad=7 must be true or false
+trainer.profilr=simple | trainer.profilr is not an option of lightning.Trainer; did you mean profiler?
+trainer.detect_anomaly=7 | trainer.detect_anomaly=7 must be true or false
optimizer.scheduler.warmup_updates=-1 | a whole number of at least 0
regime.epochs=0 | regime.epochs=0 must be a whole number in [1, 1000000]
callbacks.checkpoint.minutes=soon | must be a positive number of minutes
callbacks.console.every=0 | callbacks.console.every=0 must be
callbacks.gradient.cosine=maybe | callbacks.gradient.cosine=maybe must be true or false
callbacks.alarms.entropy.action=shout | is none of its values; write one of warn, stop, off
algorithm.bounds.order=sideways | write one of upper_first, lower_first
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
import json, sys
from importlib import import_module
from bapo_lightning.__main__ import module_of
for name, *arguments in json.load(sys.stdin):
    sys.argv = [name, *arguments]
    try:
        print(name, import_module(module_of(name)).main(), "torch" in sys.modules, flush=True)
    except SystemExit as end:
        print(name, end.code, "torch" in sys.modules, flush=True)
"""


def run(program, given="", folder=None):
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def test_wrong_values_are_answered_without_torch():
    rows = [row.split(" | ") for row in TYPED]
    told, heavy = json.loads(run(PROGRAM, json.dumps([override for override, _ in rows])).stdout)
    assert heavy == []
    assert [(row, text) for row, text in zip(rows, told, strict=True) if row[1] not in text] == []


def test_wrong_options_of_classes_are_answered_by_the_whole_check():
    base = composed("experiment=additions")
    for override, words in (row.split(" | ") for row in OPTIONS):
        path, _, value = override.lstrip("+").partition("=")
        *outer, key = path.split(".")
        changed = deepcopy(base)
        reduce(getitem, outer, changed)[key] = yaml.safe_load(value)
        assert words in " ".join(problems_of(changed)), override


def test_every_command_that_composes_a_run_answers_without_torch():
    commands = [
        *(["train"], ["data"], ["plan"], ["simulate"], ["serve"], ["critic"]),
        *(["sweep", "algorithm=grpo,bapo"], ["eval", "checkpoint=.", "k=none"]),
    ]
    done = run(COMMANDS, json.dumps([[name, "seed=1.5", *more] for name, *more in commands]))
    rows = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, code, loaded in rows if code in "12" and loaded == "False"} == {
        "train", "data", "plan", "simulate", "serve", "critic", "sweep", "eval",
    }, done.stdout + done.stderr  # fmt: skip
    assert done.stderr.count("seed=1.5 must be a whole number") == len(rows)


def test_missing_files_and_runs_are_reported_without_torch():
    missing = "data.train.path=nowhere.jsonl", "model.path=./nowhere", "resume=outputs/nothing"
    commands = [["train", "experiment=own", "data.train.path=.", "model=additions", text] for text in missing]
    done = run(COMMANDS, json.dumps([*commands, ["data", "data=table", missing[0]]]))
    assert done.stdout.splitlines() == ["train 1 False"] * 3 + ["data 1 False"]
    assert all(text in done.stderr for text in missing)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("step", [SAMPLED, pytest.param(MORE, marks=(pytest.mark.slow, pytest.mark.drill))])
def test_what_is_reported_early_is_among_what_the_whole_check_finds(run, step):
    base = composed(*RUNS[run])
    assert early_problems(base) == []
    changes = [(path, value) for path in leaves(base) for value in VALUES]
    for path, value in changes[::step]:
        with changed(base, path, value):
            early = {text.partition("=")[0] for text in early_problems(base)}
            assert not early or early <= {text.partition("=")[0] for text in problems_of(base)}, path
