"""The order of sync, generation and update, through a real Lightning trainer: nothing may be one version
late.
"""

import lightning as L
import pytest
import torch
from tests.builders import VOCAB_SIZE, module, random_model, random_policy

from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.problems.prompts import PlainPrompt
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.types import Problem, Score, ScoreStatus


class LettersTokenizer:
    """Token ids as letters."""

    vocab_size = VOCAB_SIZE

    def encode(self, text, add_special_tokens):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, token_ids, skip_special_tokens):
        return "".join(chr(ord("a") + token) for token in token_ids)


def reward_of_even_length(problems, completions):
    verdicts = [completion.num_tokens % 2 == 0 for completion in completions]
    return [Score(float(right), ScoreStatus.CORRECT if right else ScoreStatus.WRONG) for right in verdicts]


class Journal(L.Callback):
    """Writes down what happened, in order."""

    def __init__(self):
        self.events = []
        self.ages = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.events.append(f"update {trainer.global_step}")
        self.ages.append(sorted(set(outputs["tokens"].age.tolist())))


class WitnessedEngine(HFEngine):
    """Writes down syncs and generations, and checks at each generation that it holds the trainer's weights to
    the bit.
    """

    def __init__(self, path, journal, policy):
        super().__init__(str(path))
        self.journal, self.policy = journal, policy

    def load_weights(self, source, version):
        super().load_weights(source, version)
        self.journal.events.append(f"sync {version}")

    def generate(self, requests, sampling):
        trained = dict(self.policy.named_weights())
        assert all(torch.equal(weight, trained[name]) for name, weight in self._model.named_parameters())
        if sampling.stop_token_ids:  # not the probe of a sync
            self.journal.events.append(f"produce {self.version}")
        return super().generate(requests, sampling)


def data_module(engine, regime, num_rollout_batches=3, folder=None):
    return RolloutDataModule(
        sampler=RolloutSampler(
            engine=RestartingEngine(engine, WeightSync(tolerance=1e-3), VOCAB_SIZE, max_restarts=0),
            tokenizer=LettersTokenizer(),
            prompt=PlainPrompt(),
            reward=reward_of_even_length,
            sampling=SamplingParams(1.0, (1, 2, 3)),
            max_new_tokens=8,
            seed=0,
            advantages=lambda rewards: group_advantages(rewards, scale="std"),
        ),
        stream=ProblemStream([Problem(letter, letter, "") for letter in "defghijk"], seed=0),
        regime=regime,
        group_size=4,
        prompts_per_batch=4,
        num_rollout_batches=num_rollout_batches,
        seed=0,
        folder=folder,
    )


TWO_UPDATES_PER_BATCH = (
    "sync 0, produce 0, update 1, update 2, sync 2, produce 2, update 3, update 4, sync 4, produce 4, "
    "update 5, update 6"
)


@pytest.mark.parametrize(
    ("epochs", "minibatches", "events", "ages"),
    [
        (
            1,
            1,
            "sync 0, produce 0, update 1, sync 1, produce 1, update 2, sync 2, produce 2, update 3",
            [[0]] * 3,
        ),
        (2, 1, TWO_UPDATES_PER_BATCH, [[0], [1]] * 3),
        (1, 2, TWO_UPDATES_PER_BATCH, [[0], [1]] * 3),
    ],
)
def test_each_batch_is_sampled_by_the_weights_the_trainer_had_when_it_was_asked_for(
    tmp_path, epochs, minibatches, events, ages
):
    random_model().save_pretrained(tmp_path)
    journal, policy, regime = (
        Journal(),
        random_policy(),
        Regime("test", epochs, minibatches, max_new_tokens=8),
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[journal],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    updater = module(policy, FixedBounds(0.8, 1.2), max_age=regime.age_bound)
    trainer.fit(updater, datamodule=data_module(WitnessedEngine(tmp_path, journal, policy), regime))
    assert journal.events == events.split(", ")
    assert journal.ages == ages
    assert trainer.global_step == 3 * epochs * minibatches
