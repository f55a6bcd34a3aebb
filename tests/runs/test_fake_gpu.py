"""Whole runs, and an update of every algorithm, keep to a fake GPU; the host waits twice an update."""

import json
from pathlib import Path

import pytest
from tests.commands import run_command
from tests.configuration.compositions import ships

ROOT = Path(__file__).resolve().parents[2]
# Those that `experiment=additions` cannot train with: they need a critic, replayed groups or an environment.
NEED_MORE = {"base", "direct_advantage", "pipo", "simpletir", "spear", "spear_turns"}
ALGORITHMS = sorted({path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml")} - NEED_MORE)
ONCE_AN_UPDATE = ("modules/fsdp.py:clip_gradients", "callbacks/monitors/monitor.py:in_numbers")
# Functions that wait now and then: for a rollout batch, a checkpoint, or rows for somebody to read.
NOW_AND_THEN = {
    "runs/train.py:fit",  # Lightning, when it saves and when it ends
    "modules/bapo_module.py:on_save_checkpoint",
    "modules/policy/policy.py:_apply",
    "rollout/hf/decoder.py:_add",
    "rollout/hf/reader.py:next_logits",  # transformers, where prompts are padded
    "rollout/hf/reader.py:opened",
    "modules/policy/policy.py:<genexpr>",  # scores of whole batches
    "modules/policy/policy.py:forward",  # transformers, where rows are padded
    "data/data_module.py:_rollout_batch",  # an entropy that a stage samples by
    "callbacks/monitors/entropy.py:_when_fresh",
    "callbacks/monitors/training.py:state_dict",
    "callbacks/monitors/bounds.py:forecast",
    "modules/bound_rules.py:<genexpr>",
    "callbacks/writers.py:<genexpr>",
    "rollout/weight_transport.py:in_parts",
    "rollout/weight_digests.py:summed",  # once a sync
    "modules/policy/lora.py:<genexpr>",  # likewise
}
RUNS = [
    "run regime=partial algorithm=flowrl",
    "run regime=reuse algorithm=spear",
    "run regime=partial algorithm=tis correction=masked_is",
    "run algorithm=aepo model.packing=none",
    "run model.lora={rank:2,alpha:4,target_modules:all-linear} model.activation_checkpointing=true",
    "run trainer.precision=bf16-mixed rollout.engine.dtype=bf16-mixed",
    "run experiment=sums algorithm=simpletir",
    "run algorithm=erc scale.micro_batch_tokens=256",
    "resumed algorithm=erc scale.micro_batch_tokens=256",
    "run regime=async rollout=hf_child",
]

# Those that need neither CUDA's own numbers nor another package.
CHECKS = [
    *(f"kernels {name}" for name in ("scores_accuracy", "packing", "checkpointing", "search",
                                     "deterministic")),
    *("train real_shapes", "train engine_mismatch", "speed updates", "speed generation"),
]  # fmt: skip


def done(folder, cases, script="tests.runs.on_fake_gpu"):
    made = run_command(script, str(folder), *cases, cwd=ROOT, timeout=900)
    assert made.returncode == 0, made.stderr[-4000:]
    return [json.loads(line) for line in made.stdout.splitlines() if line.startswith("{")]


def keeps_to_its_device(run, also=frozenset()):
    assert run["code"] == 0
    assert [run["waits"].pop(name) for name in ONCE_AN_UPDATE] == [run["updates"]] * 2
    assert set(run["waits"]) <= NOW_AND_THEN | also


def test_a_run_keeps_to_its_device_and_waits_for_it_twice_an_update(tmp_path):
    run, mixed = done(tmp_path, ["run regime=replay", "refused"])
    keeps_to_its_device(run)
    assert mixed["refused"] == mixed["tried"]


@pytest.mark.slow
@pytest.mark.drill
def test_runs_of_every_kind_keep_to_their_device(tmp_path):
    for run in done(tmp_path, [*filter(ships, RUNS)]):
        keeps_to_its_device(run)


@pytest.mark.slow
def test_checks_of_gpu_check_keep_to_their_device(tmp_path):
    for name, check in zip(CHECKS, done(tmp_path, [f"check {name}" for name in CHECKS]), strict=True):
        assert check["found"] and not check["bad"], name


@pytest.mark.slow
@pytest.mark.drill
def test_an_update_of_every_algorithm_has_the_loss_of_the_cpu(tmp_path):
    found = done(tmp_path, [f"update {algorithm}" for algorithm in ALGORITHMS])
    for algorithm, update in zip(ALGORITHMS, found, strict=True):
        here, there = update["losses"]
        assert there == pytest.approx(here, rel=1e-4, abs=1e-6, nan_ok=True), algorithm
        assert update["waits"] == {ONCE_AN_UPDATE[0]: 1}, algorithm
