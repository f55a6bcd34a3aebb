"""The recipes of docs/day_two.md run as they stand there, in a small world, and do what they say."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.commands import run_command
from transformers import AutoConfig, AutoModelForSequenceClassification

from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.system.run_folder.record import read_rows

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/day_two.md").read_text()
RECIPES = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
NOT_RUN = "hf "  # a login is needed
MODEL = "package://bapo_lightning/tiny_worlds/locks/model"


def commands(recipe):
    shown = "\n".join(re.findall(r"```sh\n(.*?)```", recipe, re.DOTALL)).splitlines()
    return [line for line in shown if line and not line.startswith(NOT_RUN)]


def started(command):
    """Words of what a target of make starts: module and arguments."""
    target = ["make", "-n", "-C", str(ROOT), *shlex.split(command)[1:]]
    lines = subprocess.run(target, capture_output=True, text=True, check=True).stdout.splitlines()
    (words,) = [shlex.split(line.partition(" -m ")[2]) for line in lines if " -m bapo_lightning" in line]
    return words


def followed(recipe, folder):
    """Writes the files of a recipe, runs its commands, and returns what they print."""
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", recipe, re.DOTALL):
        (folder / name).write_text(text)
    printed = ""
    for command in commands(recipe):
        if not command.startswith("make "):
            subprocess.run(shlex.split(command), cwd=folder, check=True)
            continue
        module, *arguments = started(command)
        small = ["debug=fast"] if module.endswith(".train") else []
        done = run_command(module, *arguments, *small, cwd=folder, timeout=600)
        assert done.returncode == 0, (command, done.stderr[-3000:])
        printed += done.stdout
    return printed


def rows(folder):
    return list(read_rows(runs_of("quickstart", "metrics.jsonl", folder).parent))


def weights(folder):
    return load_file(Path(folder, "model.safetensors"))


def runs_of(experiment, file, folder):
    (found,) = folder.glob(f"outputs/{experiment}/*/{file}")
    return found


def has_moved_all_but_the_frozen(folder, printed):
    run = runs_of("quickstart", "", folder)
    done = run_command("bapo_lightning.tools.commands.export", run, folder / "made", cwd=folder)
    assert done.returncode == 0, done.stderr
    first, last = weights(model_path(MODEL)), weights(folder / "made")
    same = {name for name in first if first[name].equal(last[name])}
    return same and all("embed_tokens" in name for name in same)


def has_fallen(folder, printed):
    rates = [row["train/learning_rate"] for row in rows(folder)]
    return rates == sorted(rates, reverse=True) and rates[-1] < rates[0]


def has_gone_on(folder, printed):
    here, there = (len(list(read_rows(folder / "outputs" / name))) for name in ("here", "there"))
    return there == 2 * here


DONE = {
    "A metric of my own": lambda folder, _: all(row["mine/weight_norm"] > 0 for row in rows(folder)),
    "The loss of each token": lambda folder, _: json.loads(
        runs_of("quickstart", "tokens.jsonl", folder).read_text().splitlines()[0]
    ),
    "Freeze a part of the weights": has_moved_all_but_the_frozen,
    "A schedule of the learning rate": has_fallen,
    "A curriculum": lambda folder, _: list(read_rows(folder / "outputs/hard")),
    "Keep the best checkpoint": lambda folder, _: weights(runs_of("additions", "exports/best", folder)),
    "Validate more often, with more answers": lambda folder, _: any(
        "val/locks/avg@8" in row for row in rows(folder)
    ),
    "Pass@k curves": lambda _, printed: all(f"pass@{k}" in printed for k in (1, 2, 4, 8, 16)),
    "Compare two checkpoints of a run": lambda _, printed: "early" in printed and "late" in printed,
    "Resume on another machine": has_gone_on,
    "Push a model to the Hugging Face hub": lambda folder, _: weights(folder / "models/mine"),
}


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_does_what_it_says(title, tmp_path):
    if title == "A reward model":
        config = AutoConfig.from_pretrained(model_path(MODEL), num_labels=1, pad_token_id=0)
        shutil.copytree(model_path(MODEL), tmp_path / "REWARD_MODEL")
        AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "REWARD_MODEL")
    printed = followed(RECIPES[title], tmp_path)
    assert DONE.get(title, lambda *_: True)(tmp_path, printed)


def test_every_recipe_has_a_command_and_every_check_a_recipe():
    assert set(DONE) <= set(RECIPES)
    assert [title for title, recipe in RECIPES.items() if not commands(recipe)] == []
