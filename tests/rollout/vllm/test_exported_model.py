"""vLLM loads an exported run by itself, and answers as the trainer's policy does."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.system.run_folder.checkpoint import list_checkpoints
from bapo_lightning.tools.commands.export import main
from bapo_lightning.tools.export.checkpoint_weights import load_checkpoint_weights

TINY = model_path("package://bapo_lightning/tiny_worlds/additions/model")
# A process of its own: vLLM's own loader is what is meant, without anything that this package changes in
# vLLM.
GENERATE = """
import json, sys
from vllm import LLM, SamplingParams
folder, prompts = sys.argv[1], json.loads(sys.argv[2])
llm = LLM(
    folder, dtype="float32", max_model_len=64, max_num_seqs=16, enforce_eager=True,
    kv_cache_memory_bytes=1 << 26,
)
sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling)
print("TOKENS", json.dumps([list(output.outputs[0].token_ids) for output in outputs]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    overrides = [
        *("debug=fast", "experiment=additions", "optimizer.optimizer.lr=3e-3", "regime.minibatches=2"),
        *("optimizer.scheduler.warmup_updates=1", "regime.epochs=1", f"run_folder={folder}"),
        *("callbacks.validation.every=0", "callbacks.entropy_rule.every=0"),
    ]
    command = [sys.executable, "-m", "bapo_lightning.cli.train", *overrides]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@torch.no_grad()
def greedy(model, prompt, count=24):
    ids = torch.tensor([prompt])
    for _ in range(count):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.drill
def test_vllm_s_own_loader_gives_the_trainer_s_greedy_tokens(run, tmp_path):
    folder = tmp_path / "out"
    assert main([str(run), str(folder), "--shard-gigabytes", "0.0001"]) == 0
    assert len(list(folder.glob("*.safetensors"))) > 1
    policy = build_policy(ModelOptions(TINY), 1.0)
    load_checkpoint_weights(policy, list_checkpoints(run / "checkpoints")[0])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [f"{first}+{second}=" for first in (12, 37, 58, 91) for second in (5, 46, 77)]
    prompts = [tokenizer(text).input_ids for text in texts]
    command = [sys.executable, "-c", GENERATE, str(folder), json.dumps(prompts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
    assert json.loads(line.removeprefix("TOKENS ")) == [greedy(policy.model, prompt) for prompt in prompts]
