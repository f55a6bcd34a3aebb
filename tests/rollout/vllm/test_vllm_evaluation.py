"""An evaluation samples with vLLM, wherever it runs, and goes on after it was torn."""

import json
import subprocess
import sys

import pytest

SETTINGS = [
    *("checkpoint=package://bapo_lightning/tiny_worlds/additions/model", "sets=additions"),
    *("problems_per_set=6", "reward=final_value", "data/prompt=plain", "rollout.temperature=1"),
    *("scale.max_new_tokens=32", "k=4", "rollout.weight_sync.tolerance=1e-3"),
]
CACHE, THREADS = "options.kv_cache_bytes=67108864", "rollout.engine.cpu_threads=1"
ENGINES = {
    "vllm": [f"rollout.engine.{CACHE}"],
    "vllm_child": [f"rollout.engine.make_engine.{CACHE}", THREADS],
    "vllm_server": [f"rollout.engine.{CACHE}", THREADS],
}


def evaluate(folder, engine):
    arguments = [*SETTINGS, f"rollout={engine}", *ENGINES[engine], f"run_folder={folder}"]
    command = [sys.executable, "-m", "bapo_lightning.tools.commands.evaluate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "samples.jsonl").read_bytes()


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm") / "evaluation"
    return folder, evaluate(folder, "vllm")


@pytest.mark.drill
@pytest.mark.parametrize("engine", ["vllm_child", "vllm_server"])
def test_another_process_gives_the_same_answers(in_process, tmp_path, engine):
    assert evaluate(tmp_path / "evaluation", engine) == in_process[1]


def test_the_rest_is_sampled_as_it_would_have_been(in_process):
    folder, content = in_process
    rows = [json.loads(line) for line in content.splitlines()]
    assert len(rows) == 24 and {row["status"] for row in rows} <= {"correct", "wrong", "unparsable"}
    (folder / "samples.jsonl").write_bytes(content[: len(content) * 2 // 5])
    assert evaluate(folder, "vllm") == content
