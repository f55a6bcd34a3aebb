"""A tiny model that learns from nothing in a world of others, behind environment=openenv or verifiers.

python bench/doors.py openenv --python VENV/bin/python --folder OPENENV/envs
python bench/doors.py verifiers --python VENV/bin/python

OPENENV is a checkout of github.com/meta-pytorch/OpenEnv, and VENV has openenv-core. Its grid world asks for
the way from [0, 0] to [4, 4] of a grid, step by step: 1 for the goal, -0.1 for each step before it. Of
verifiers, VENV has a version before 0.4, and gymnasium: see frozen_lake.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from statistics import fmean

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END = "<pad>", "<end>"
COMMON = (
    *("experiment=additions", "model.path={model}", "data/prompt=plain", "reward=environment"),
    *("algorithm=grpo", "regime=replay", "seed={seed}", "output_root={output}", "cpu_threads=1"),
    *(
        "environment/feedback=plain",
        "environment.feedback.role=null",
        "scale.prompts_per_batch=8",
        "scale.group_size=8",
    ),
    *("scale.num_rollout_batches={batches}", "scale.validation_problems=8", "optimizer.optimizer.lr=1e-3"),
)
WORLDS = {
    "openenv": (
        ("UP", "DOWN", "LEFT", "RIGHT"),
        (
            *("environment=openenv", "data=openenv", "data.train.world=grid", "data.train.count=64"),
            *("data.validation.openenv.count=8", "data.train.prompt='{x},{y}'"),
            "environment.answers.server.command=[{python},-m,uvicorn,grid_world_env.server.app:app,--port,'{port}']",
            *("environment.answers.server.folder={folder}", "environment.answers.action.field=action"),
            *(
                "environment.answers.action.pattern='UP|DOWN|LEFT|RIGHT'",
                "environment.answers.show='{x},{y}'",
            ),
            *("environment.stop=[UP,DOWN,LEFT,RIGHT]", "environment.max_turns=40", "environment.workers=0"),
            *(
                "environment.answers.score=last",
                "scale.max_new_tokens=200",
                "scale.max_feedback_tokens=200",
                "scale.max_prompt_tokens=8",
            ),
        ),
    ),
    "verifiers": (
        ("LEFT", "DOWN", "RIGHT", "UP"),
        (
            *("environment=verifiers", "environment.answers.server.values.environment=frozen_lake"),
            "environment.answers.server.values.python={python}",
            *(
                "data=verifiers",
                "data/prompt=plain",
                "data.train.count=64",
                "data.validation.openenv.count=8",
            ),
            "+environment.answers.server.variables.PYTHONPATH={bench}",
            *("environment.feedback.template=' {feedback}'", "environment.stop=[LEFT,DOWN,RIGHT,UP]"),
            *("environment.max_turns=24", "environment.workers=0"),
            *("scale.max_new_tokens=96", "scale.max_feedback_tokens=200", "scale.max_prompt_tokens=8"),
        ),
    ),
}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    words, overrides = WORLDS[options.world]
    with tempfile.TemporaryDirectory() as place:
        write_model(words, Path(place, "model"))
        for seed in range(options.seeds):
            values = {
                "{model}": f"{place}/model", "{seed}": str(seed), "{output}": f"{place}/{seed}",
                "{batches}": str(options.batches), "{python}": options.python,
                "{folder}": str(options.folder.resolve()), "{bench}": str(Path(__file__).parent),
            }  # fmt: skip
            filled = [filled_in(each, values) for each in (*COMMON, *overrides)]
            subprocess.run([sys.executable, "-m", "bapo_lightning.cli.train", *filled], check=True)
            (folder,) = Path(place, str(seed)).glob("*/*")
            rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            rewards = [row["train/reward"] for row in rows if "train/reward" in row]
            eighth = max(1, len(rewards) // 8)
            first, last = fmean(rewards[:eighth]), fmean(rewards[-eighth:])
            print(json.dumps({"seed": seed, "updates": len(rewards), "first": first, "last": last}))


def filled_in(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def write_model(words: tuple[str, ...], folder: Path) -> None:
    """Writes a model of random weights, of whose tokens each word is one."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=64, special_tokens=[PAD, END], show_progress=False)
    tokenizer.train_from_iterator(["0123456789, "], trainer)
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main()
