"""Regimes through a real Lightning trainer and a real small model: the order of sync, generation and update,
and versions, log-probs and ages of what is trained on.
"""

import copy
import json
import re
import time
from collections import Counter

import lightning as L
import pytest
import torch
from tests.builders import VOCAB_SIZE, logprobs, module, random_model, random_policy

from bapo_lightning.configuration.targets import options_with_defaults
from bapo_lightning.data.batches.replay_queue import ReuseBuffer
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.problems.prompts import PlainPrompt
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.observer import SelectionBias
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.schedule import ScheduleRecorder
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.types import Problem, Score, ScoreStatus

NUM_BATCHES = 4


class LettersTokenizer:
    """Token ids as letters."""

    vocab_size = VOCAB_SIZE
    bos_token_id = None

    def encode(self, text, add_special_tokens):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, token_ids, skip_special_tokens):
        return "".join(chr(ord("a") + token) for token in token_ids)


def reward_of_even_length(problems, completions):
    verdicts = [completion.num_tokens % 2 == 0 for completion in completions]
    return [Score(float(right), ScoreStatus.CORRECT if right else ScoreStatus.WRONG) for right in verdicts]


class Witness(L.Callback):
    """Keeps every batch, the policy of every version, and what happened, in order."""

    def __init__(self):
        self.batches, self.policies, self.versions = [], {}, []
        self.events, self.ages = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.policies[trainer.global_step] = copy.deepcopy(pl_module.policy)
        self.batches.append(batch)
        self.versions.append(trainer.global_step)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.events.append(f"update {trainer.global_step}")
        self.ages.append(sorted(set(outputs["tokens"].age.tolist())))

    @property
    def rollouts(self):
        return [rollout for batch in self.batches for rollout in batch.rollouts]


class WitnessedEngine(HFEngine):
    """Records syncs and generations; at each generation it must hold the trainer's weights to the bit."""

    def __init__(self, path, witness, policy):
        super().__init__(path)
        self.witness, self.policy = witness, policy

    def load_weights(self, source, version):
        super().load_weights(source, version)
        self.witness.events.append(f"sync {version}")

    def generate(self, requests, sampling):
        trained = dict(self.policy.named_weights())
        assert all(torch.equal(weight, trained[name]) for name, weight in self._model.named_parameters())
        if sampling.stop_token_ids:  # not the probe of a sync
            self.witness.events.append(f"produce {self.version}")
        return super().generate(requests, sampling)


def trained(tmp_path, regime, folder=None, num_batches=NUM_BATCHES, witnessed=False, callbacks=()):
    random_model().save_pretrained(tmp_path)
    witness, policy = Witness(), random_policy()
    engine = WitnessedEngine(str(tmp_path), witness, policy) if witnessed else HFEngine(str(tmp_path))
    sampler = RolloutSampler(
        engine=RestartingEngine(engine, WeightSync(tolerance=1e-3), VOCAB_SIZE, max_restarts=0),
        tokenizer=LettersTokenizer(), prompt=PlainPrompt(), reward=reward_of_even_length,
        sampling=SamplingParams(1.0, (1, 2, 3)), max_new_tokens=8, seed=0, advantages=group_advantages,
    )  # fmt: skip
    stream = ProblemStream([Problem(letter, letter, "") for letter in "defghijk"], seed=0)
    sizes = {"group_size": 4, "prompts_per_batch": 4, "num_rollout_batches": num_batches}
    data = RolloutDataModule(sampler, stream, regime, **sizes, seed=0, folder=folder)
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"accelerator": "cpu", "max_epochs": 1} | dict.fromkeys(silent, False)
    trainer = L.Trainer(callbacks=[witness, *callbacks], **options)
    trainer.fit(module(policy, FixedBounds(0.8, 1.2), max_age=regime.age_bound), datamodule=data)
    return witness, policy


TWO_UPDATES_PER_BATCH = (
    "sync 0, produce 0, update 1, update 2, sync 2, produce 2, update 3, update 4, sync 4, produce 4, "
    "update 5, update 6"
)
ONE_UPDATE = "sync 0, produce 0, update 1, sync 1, produce 1, update 2, sync 2, produce 2, update 3"


@pytest.mark.parametrize(("epochs", "minibatches", "events", "ages"), [
    (1, 1, ONE_UPDATE, [[0]] * 3), (2, 1, TWO_UPDATES_PER_BATCH, [[0], [1]] * 3),
    (1, 2, TWO_UPDATES_PER_BATCH, [[0], [1]] * 3),
])  # fmt: skip
def test_a_batch_is_sampled_by_the_newest_weights(tmp_path, epochs, minibatches, events, ages):
    regime = Regime("test", epochs, minibatches, max_new_tokens=8)
    witness, _ = trained(tmp_path, regime, num_batches=3, witnessed=True)
    assert witness.events == events.split(", ") and witness.ages == ages


def test_async_with_age_zero_is_on_policy_to_the_bit(tmp_path):
    apart, apart_policy = trained(tmp_path, Regime("on_policy", 1, 1, max_new_tokens=8))
    beside, beside_policy = trained(tmp_path, Regime("async", 1, 1, 8, async_generation=True, max_age=0))
    assert apart.rollouts == beside.rollouts
    pairs = zip(apart_policy.parameters(), beside_policy.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("regime", [
    Regime("async_replay", 2, 2, max_new_tokens=8, async_generation=True, max_age=7),
    Regime("partial", 1, 2, max_new_tokens=8, partial_tokens=3),
    Regime("async_partial", 1, 2, max_new_tokens=8, async_generation=True, max_age=5, partial_tokens=2),
    Regime("reuse", 1, 2, 8, max_age=9, partial_tokens=3, reuse_share=0.5, max_reuses=1),
    # Read anew, a running response is one of its newest weights; else a mixture (`StreamContract`).
    Regime("stream", 2, 2, 8, async_generation=True, max_age=7, stream="recompute"),
], ids=lambda regime: regime.name)  # fmt: skip
def test_every_token_keeps_the_version_and_the_log_prob_of_the_policy_that_sampled_it(tmp_path, regime):
    path = tmp_path / "ledger.jsonl"
    witness, _ = trained(tmp_path, regime, tmp_path)
    assert len(witness.batches) == NUM_BATCHES * regime.updates_per_rollout_batch
    for version, batch in zip(witness.versions, witness.batches, strict=True):
        oldest, newest = batch.version_range()
        assert version - newest >= 0 and version - oldest <= regime.age_bound
    for rollout in {id(rollout): rollout for rollout in witness.rollouts}.values():
        versions = [segment.version for segment in rollout.segments]
        assert versions == sorted(set(versions))
        context = list(rollout.prompt_ids)
        for segment in rollout.segments:
            expected = logprobs(witness.policies[segment.version], context, list(segment.token_ids))
            assert list(segment.logprobs) == pytest.approx(list(expected), abs=1e-4, rel=0)
            context += segment.token_ids
    fates = [json.loads(line) for line in path.read_text().splitlines()]
    assert set(Counter((row["epoch"], row["problem"]) for row in fates).values()) == {1}
    # Beside training, passes may all fall between two updates.
    if regime.is_partial and not regime.async_generation:
        assert max(len(rollout.segments) for rollout in witness.rollouts) > 1


class Saver(L.Callback):
    """Takes the state of a checkpoint after every update, slowly, and the files as they are at its end."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.found = folder, []
        slow = lambda taken: lambda *args: (time.sleep(0.05), taken(*args))[1]  # noqa: E731
        for kind in (ReuseBuffer, RolloutScheduler):
            monkeypatch.setattr(kind, "state_dict", slow(kind.state_dict))

    def on_train_batch_end(self, trainer, *args):
        state = trainer.datamodule.resume_state()
        written = {name: (self.folder / name).read_bytes()[:size] for name, size in state["journals"].items()}
        self.found.append((written, state))


@pytest.mark.parametrize("stream", [None, "keep"])
def test_a_checkpoint_is_of_one_moment_though_a_thread_writes_all_the_time(tmp_path, monkeypatch, stream):
    regime = Regime("async", 1, 2, 8, async_generation=True, max_age=7, stream=stream)
    saver = Saver(tmp_path, monkeypatch)
    trained(tmp_path, regime, tmp_path, callbacks=[saver])
    for written, state in saver.found:
        assert sorted(written) == ["ledger.jsonl", "schedule.jsonl"]
        rows = [json.loads(line) for line in written["schedule.jsonl"].splitlines()]
        begun = {name for row in rows if row["do"] == "pass" for name, _ in row["requests"]}
        ended = {name for row in rows if row["do"] == "scored" for name in row["ready"] + row["rejected"]}
        running = {f"{group['epoch']}/{group['problem']}" for group in state["scheduler"]["running"]}
        assert begun - ended == running


def test_metrics_have_what_happened_before_their_row_of_the_schedule(tmp_path, monkeypatch):
    events, last, found = [], [], SelectionBias.metrics
    monkeypatch.setattr(ScheduleRecorder, "on_event", lambda self, event, **content: events.append(event))
    monkeypatch.setattr(ReuseBuffer, "__len__", lambda self: time.sleep(0.05) or 0)
    monkeypatch.setattr(SelectionBias, "metrics", lambda *args: (last.append(events[-1]), found(*args))[1])
    trained(tmp_path, Regime("async", 1, 2, 8, async_generation=True, max_age=7), tmp_path)
    assert last == ["metrics"] * 2 * NUM_BATCHES and "scored" in events


def test_masked_tokens_are_context_and_rollouts_end_at_the_cap_on_segments(tmp_path):
    regime = Regime("partial", 1, 2, 8, False, 2, "mask", partial_tokens=2, max_segments=2)
    witness, _ = trained(tmp_path, regime)
    assert max(len(rollout.segments) for rollout in witness.rollouts) == 2
    assert sum(batch.num_masked_tokens for batch in witness.batches) > 0
    for version, batch in zip(witness.versions, witness.batches, strict=True):
        ages = version - batch.version[batch.response_mask]
        assert ages.min() >= 0 and ages.max() <= 2
        assert batch.num_tokens == int(batch.response_mask.sum())


def test_groups_are_reused_at_most_so_often_with_their_own_log_probs(tmp_path):
    regime = Regime("reuse", 1, 1, max_new_tokens=8, max_age=9, reuse_share=0.5, max_reuses=2)
    witness, _ = trained(tmp_path, regime, num_batches=8)
    groups = [group for batch in witness.batches for group in batch.groups]
    assert set(Counter(id(group.samples[0].rollout.segments[0]) for group in groups).values()) == {1, 2, 3}
    assert all(len(batch.groups) == 4 for batch in witness.batches)
    ready = [[group.ready_version for group in batch.groups] for batch in witness.batches]
    fresh = [versions.count(version) for version, versions in enumerate(ready)]
    assert fresh[0] == 4 and set(fresh[1:]) == {2}


PARTIAL = {"max_new_tokens": 32, "partial_tokens": 8}
REUSE = {"reuse_share": 0.5, "max_reuses": 2, "max_age": 15}


@pytest.mark.parametrize(("options", "problem"), [
    ({"max_age": 2}, "max_age=2: .* write max_age=3 or fewer updates"),
    ({"async_generation": True}, "async_generation=true needs max_age: .* ahead is max_age=7"),
    ({"reuse_share": 0.5, "max_reuses": 2}, "reuse_share=0.5 needs max_age: .* ahead is max_age=7"),
    ({"async_generation": True} | REUSE, "async_generation=true with reuse_share: .* how old"),
    ({"stale_action": "mask"}, "stale_action=mask without partial_tokens: .* write stale_action=evict"),
    ({"max_segments": 2}, "max_segments=2 without partial_tokens has no effect"),
    (REUSE | {"max_reuses": 0}, "max_reuses=0 with reuse_share=0.5 reuses nothing; write max_reuses=1"),
    (REUSE | {"max_age": 6}, "max_age=6 lets no group be reused: .* write max_age=7 at least"),
    ({"stream": "keep"}, "stream=keep without async_generation: .*; write regime=stream"),
    ({"stream": "keep", "async_generation": True, "max_age": 7, **PARTIAL},
     "partial_tokens=8 with stream=keep: in a stream no response is stopped"),
    ({"max_reuses": 1}, "max_reuses=1 without reuse_share has no effect; write regime=reuse"),
    ({}, None),
    ({"async_generation": True, "max_age": 7, **PARTIAL}, None),
    ({"async_generation": True, "max_age": 7, "stream": "keep", "stale_action": "mask"}, None),
    (PARTIAL | {"stale_action": "mask", "max_age": 7, "max_segments": 2}, None),
    (REUSE, None),
])  # fmt: skip
def test_one_mistake_gives_one_problem(options, problem):
    node = {"_target_": f"{Regime.__module__}.Regime", "name": "mine", "epochs": 1, "minibatches": 4}
    found = list(Regime.problems(options_with_defaults(Regime, node | options)))
    assert len(found) == bool(problem) and all(re.match(problem, each) for each in found)
