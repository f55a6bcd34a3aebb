"""Evaluations of the tiny world in this process, for the tests of several files."""

import json

from hydra import compose, initialize_config_dir

from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.hydra_versions import BASE
from bapo_lightning.tools.commands.evaluate import hydra_overrides
from bapo_lightning.tools.evaluation.run import evaluate

MODEL = "package://bapo_lightning/tiny_worlds/additions/model"
TINY = [
    "sets=additions", "reward=final_value", "data/prompt=plain", "rollout.temperature=1",
    "scale.max_new_tokens=32",
]  # fmt: skip
SMALL = [*TINY, "problems_per_set=12", "k=4", "cpu_threads=1"]


def run(*arguments):
    """The command, in this process."""
    with initialize_config_dir(conf_dir(), **BASE):
        evaluate(compose("eval", overrides=hydra_overrides(arguments)))


def samples(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def results(folder):
    return json.loads((folder / "results.json").read_text())


def results_of(folder, metric):
    return results(folder)["sets"]["additions"]["metrics"][metric]["value"]
