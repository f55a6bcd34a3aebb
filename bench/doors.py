"""A tiny model that learns from nothing in a world of others, behind environment=openenv or verifiers.

python bench/doors.py openenv --python VENV/bin/python --folder OPENENV/envs
python bench/doors.py verifiers --python VENV/bin/python

OPENENV is a checkout of github.com/meta-pytorch/OpenEnv, and VENV has openenv-core. Its grid world asks for
the way from [0, 0] to [4, 4] of a grid, step by step; the last step is worth 1 at the goal and -0.1
elsewhere. Of verifiers, VENV has a version before 0.4, and gymnasium: see frozen_lake.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import torch
from measuring import bench_parser
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bapo_lightning.runs.command import number_type
from bapo_lightning.system.values import Count, CountOrZero

PAD, END = "<pad>", "<end>"
TIMES = ("second", "per_s")  # in the names of metrics that no two runs share
COMMON = (
    *("experiment=additions", "model.path={model}", "data/prompt=plain", "reward=environment"),
    *("algorithm=grpo", "regime=replay", "cpu_threads=1", "callbacks.checkpoint.every=4"),
    *("environment/feedback=plain", "environment.feedback.role=null", "scale.group_size=8"),
    "scale.prompts_per_batch={prompts}",
    *("scale.num_rollout_batches={batches}", "scale.validation_problems=8", "optimizer.optimizer.lr=1e-3"),
)
WORLDS = {
    "openenv": (
        ("UP", "DOWN", "LEFT", "RIGHT"),
        (
            *("environment=openenv", "data=openenv", "data.train.world=grid", "data.train.count=64"),
            *("data.validation.openenv.count=8", "data.train.prompt='{x},{y}'"),
            "environment.answers.server.command=[{python},-m,uvicorn,--factory,grid_world:app,--port,'{port}']",
            "+environment.answers.server.variables.PYTHONPATH='{bench}:{folder}'",
            "environment.answers.action.field=action",
            "environment.answers.action.pattern='UP|DOWN|LEFT|RIGHT'",
            *("environment.answers.show=' {x},{y}'", "environment.answers.score=last"),
            *("environment.stop=[UP,DOWN,LEFT,RIGHT]", "environment.max_turns=30", "environment.workers=0"),
            *("scale.max_new_tokens=120", "scale.max_feedback_tokens=200", "scale.max_prompt_tokens=8"),
        ),
    ),
    "verifiers": (
        ("LEFT", "DOWN", "RIGHT", "UP"),
        (
            *("environment=verifiers", "environment.answers.server.values.environment=frozen_lake"),
            "environment.answers.server.values.python={python}",
            *("data=verifiers", "data.train.count=64", "data.validation.openenv.count=8"),
            "+environment.answers.server.variables.PYTHONPATH={bench}",
            *("environment.feedback.template=' {feedback}'", "environment.stop=[LEFT,DOWN,RIGHT,UP]"),
            *("environment.max_turns=24", "environment.workers=0"),
            *("scale.max_new_tokens=96", "scale.max_feedback_tokens=200", "scale.max_prompt_tokens=8"),
        ),
    ),
}


def main() -> None:
    parser = bench_parser(__doc__, has_json=False, batches=40)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument(
        "--prompts", type=number_type(Count), default=8, help="of a minibatch, of 8 samples each"
    )
    parser.add_argument(
        "--kills",
        type=number_type(CountOrZero),
        default=0,
        help="of a second run, which must end as the first",
    )
    options = parser.parse_args()
    words, overrides = WORLDS[options.world]
    with tempfile.TemporaryDirectory() as place:
        write_model(words, Path(place, "model"))
        values = {
            "{model}": f"{place}/model", "{batches}": str(options.batches), "{prompts}": str(options.prompts),
            "{python}": options.python, "{folder}": str(options.folder.resolve()),
            "{bench}": str(Path(__file__).parent),
        }  # fmt: skip
        filled = [filled_in(each, values) for each in (*COMMON, *overrides)]
        rows = trained(filled, Path(place, "whole"), 0, 0)
        rewards = [row["train/reward"] for row in rows]
        eighth = max(1, len(rewards) // 8)
        first, last = fmean(rewards[:eighth]), fmean(rewards[-eighth:])
        print(json.dumps({"updates": len(rewards), "first": first, "last": last}))
        if options.kills:
            killed = trained(filled, Path(place, "killed"), options.kills, len(rows))
            print(f"{options.kills} kills: the metrics are {'the same' if killed == rows else 'DIFFERENT'}")


def trained(overrides: list[str], place: Path, kills: int, updates: int) -> list[dict[str, float]]:
    """Trains, with so many kills on the way. Returns the metrics of all updates, without times."""
    command = [sys.executable, "-m", "bapo_lightning.cli.train", *overrides, f"output_root={place}"]
    for number in range(kills):
        process = subprocess.Popen([*command, *["resume=auto"] * bool(number)])
        until = updates * (number + 1) // (kills + 1)
        while process.poll() is None and len(written(place)) < until:
            time.sleep(0.05)
        process.kill()
        print(f"killed after {len(written(place))} updates (exit code {process.wait()})")
    subprocess.run([*command, *["resume=auto"] * bool(kills)], check=True)
    return [
        {name: value for name, value in row.items() if not any(part in name for part in TIMES)}
        for row in map(json.loads, written(place))
    ]


def written(place: Path) -> list[str]:
    return [line for file in place.glob("*/*/metrics.jsonl") for line in file.read_text().splitlines()]


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
