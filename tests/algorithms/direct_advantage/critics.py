"""Folders of critics of steps."""

import json
from pathlib import Path

import torch
from tests.builders import VOCAB_SIZE, model_config
from transformers import AutoModelForTokenClassification

from bapo_lightning.algorithms.direct_advantage.critic import CRITIC_KEY
from bapo_lightning.modules.policy.folder import model_path

ADDITIONS = "package://bapo_lightning/tiny_worlds/additions/model"


def written_description(folder: Path, split: int | str = 1, model: str = ADDITIONS) -> Path:
    """Writes what is read of a critic before it is loaded; it fits the model."""
    config = json.loads(Path(model_path(model), "config.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    described = {"vocab_size": config["vocab_size"], CRITIC_KEY: {"split": split}}
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def random_critic(folder: Path, split: int | str = 2, vocab_size: int = VOCAB_SIZE) -> Path:
    """Writes a critic of random weights, large enough that its values differ."""
    torch.manual_seed(0)
    config = model_config()
    config.vocab_size = vocab_size
    config.num_labels, config.classifier_dropout = 1, 0.0
    setattr(config, CRITIC_KEY, {"split": split})
    model = AutoModelForTokenClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0)
    model.save_pretrained(folder)
    return folder
