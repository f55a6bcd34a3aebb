"""Training runs that sample with vLLM: in process, and with a server that is killed while it samples."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import psutil
import pytest
from tests.commands import command_line
from tests.rollout.vllm.conftest import vital_processes

SERVER = [
    *("experiment=additions", "debug=fast", "rollout=vllm_server", "rollout.engine.options.dtype=float32"),
    *("rollout.engine.options.kv_cache_bytes=67108864", "rollout.weight_sync.tolerance=1e-3"),
    *("rollout.engine.cpu_threads=1", "rollout.engine.deadline_seconds=60", "scale.num_rollout_batches=5"),
    *("scale.prompts_per_batch=64", "callbacks.validation.every=0", "callbacks.rollout_writer.num_groups=64"),
]


def start(folder, *overrides):
    command = [sys.executable, "-m", "bapo_lightning.cli.train", f"run_folder={folder}", *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def rows(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def trained_problems(folder):
    """Which problems each update was trained on, how often."""
    trained = rows(folder, "rollouts.jsonl")
    return Counter((row["step"], row["problem"], tuple(row["versions"])) for row in trained)


def servers_of(process):
    """The processes of the servers that a run has started."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "bapo_lightning.rollout.vllm.server_main" in command_line(child)]


def kill_while_it_samples(process, folder, moments):
    """Kills a random process of the server up to two seconds after each of the moments, in updates done, once
    the run has noticed the death before: of two kills of one server the second is none.
    """
    generator = random.Random(0)
    for num_noticed, moment in enumerate(moments):
        while process.poll() is None and not has_reached(folder, moment, num_noticed):
            time.sleep(0.02)
        time.sleep(generator.uniform(0, 2))
        if process.poll() is None and servers_of(process):
            victim = generator.choice(vital_processes(servers_of(process)[0]))
            os.kill(victim.pid, signal.SIGKILL)


def has_reached(folder, num_updates, num_restarts):
    done = rows(folder) if (folder / "metrics.jsonl").exists() else []
    return len(done) >= num_updates and sum(row["rollout/engine_restarts"] for row in done) >= num_restarts


def test_a_run_samples_in_process_and_its_log_probs_are_the_trainers(tmp_path):
    own = [option for option in SERVER if "cpu_threads" not in option and "deadline" not in option]
    options = [option.replace("vllm_server", "vllm") for option in own]
    finish(start(tmp_path / "run", *options, "scale.num_rollout_batches=2"))
    metrics = rows(tmp_path / "run")
    fresh = [row for row in metrics if row["staleness/age_max"] == 0]
    assert len(metrics) == 16 and len(fresh) == 2
    for row in fresh:
        assert row["mismatch/abs_logp_diff_mean"] < 1e-5
        assert row["sync/logp_diff_max"] < 1e-4
        assert row["sync/transfer_seconds"] > 0


@pytest.mark.drill
def test_turns_of_a_conversation_go_on_in_its_engine_and_their_log_probs_are_the_trainers(tmp_path):
    sizes = ["scale.num_rollout_batches=2", "scale.prompts_per_batch=16", "correction=recomputed"]
    vllm = [*SERVER[5:6], "rollout=vllm", "rollout.engine.options.dtype=float32"]
    finish(start(tmp_path / "run", "experiment=sums", "debug=fast", *vllm, *sizes))
    metrics = rows(tmp_path / "run")
    assert max(row["turns/max"] for row in metrics) == 2
    for row in metrics:
        if row["staleness/age_max"] == 0:
            assert row["mismatch/abs_logp_diff_mean"] < 1e-5
    talks = [row for row in rows(tmp_path / "run", "rollouts.jsonl") if len(row["turns"]) > 1]
    assert talks and all(turn["by"] == "environment" for row in talks for turn in row["turns"][1::2])


@pytest.mark.drill
def test_a_server_killed_at_random_times_loses_and_doubles_nothing(tmp_path):
    # Every group of every update is written down. Regime: two passes, so each problem is trained twice.
    # Long enough that after each death something is left to sample.
    options = [*SERVER, "callbacks.rollout_writer.every=1"]
    calm = start(tmp_path / "calm", *options)
    finish(calm)
    process = start(tmp_path / "killed", *options)
    killer = threading.Thread(target=kill_while_it_samples, args=(process, tmp_path / "killed", (1, 9)))
    killer.start()
    output = finish(process)
    killer.join()
    killed, undisturbed = rows(tmp_path / "killed"), rows(tmp_path / "calm")
    assert len(killed) == len(undisturbed) == 40
    assert sum(row["rollout/engine_restarts"] for row in killed) == 2, output
    assert trained_problems(tmp_path / "killed") == trained_problems(tmp_path / "calm")
    left = [" ".join(child.info["cmdline"] or []) for child in psutil.process_iter(["cmdline"])]
    assert not [line for line in left if str(tmp_path) in line]


@pytest.mark.drill
def test_an_asynchronous_partial_run_survives_the_death_of_its_server_within_its_age_bound(tmp_path):
    # What the dead server had not finished goes on under newer weights: the ones it had are gone.
    regime = ["regime=async", "regime.partial_tokens=8", "regime.max_age=7"]
    sizes = ["scale.prompts_per_batch=16", "scale.num_rollout_batches=8"]
    process = start(tmp_path / "run", *SERVER, *regime, *sizes)
    killer = threading.Thread(target=kill_while_it_samples, args=(process, tmp_path / "run", (6,)))
    killer.start()
    output = finish(process)
    killer.join()
    metrics = rows(tmp_path / "run")
    assert [row["step"] for row in metrics] == list(range(32))
    assert sum(row["rollout/engine_restarts"] for row in metrics) == 1, output
    assert max(row["staleness/age_max"] for row in metrics) <= 7
    assert max(row["staleness/segments_mean"] for row in metrics) > 1
    fates = Counter((row["epoch"], row["problem"]) for row in rows(tmp_path / "run", "ledger.jsonl"))
    assert set(fates.values()) == {1} and len(fates) >= 8 * 16
