import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from tests.builders import VOCAB_SIZE, random_policy
from tests.rollout.faults import LOST, OldWeights, scale, step

from bapo_lightning.rollout import weight_transport
from bapo_lightning.rollout.engine import RolloutEngine
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.rollout.weight_transport import PREFIX, remove_abandoned, weight_parts
from bapo_lightning.system.errors import EngineError


class ForgetfulEngine(HFEngine):
    """Takes every weight but the first, and claims to have them all."""

    def load_weights(self, source, version):
        first = next(self._model.parameters())
        kept = first.clone()
        super().load_weights(source, version)
        first.copy_(kept)


def test_a_sabotaged_push_is_found_out(folder):
    with pytest.raises(EngineError, match="does not hold the trainer's weights"):
        WeightSync(tolerance=1e-3).push(random_policy(), ForgetfulEngine(folder), 1, VOCAB_SIZE)


def test_non_finite_weights_do_not_pass_the_probe(folder):
    policy = random_policy()
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    with pytest.raises(EngineError, match="trainer's own log-probs of the probe are not finite"):
        WeightSync(tolerance=1e-3).push(policy, HFEngine(folder), 1, VOCAB_SIZE)


class DeafEngine(HFEngine):
    """Takes the first weights and claims to have all later ones; it cannot tell what it holds."""

    has_weights = False

    def weight_digests(self, seed):
        return {}

    def load_weights(self, source, version):
        if not self.has_weights:
            super().load_weights(source, version)
        self.has_weights, self.version = True, version


@pytest.mark.parametrize("tolerance", [1e-3, 0.2, 5.0])
def test_an_engine_that_ignores_every_push_after_the_first_is_found_at_the_second(folder, tolerance):
    policy, sync, engine = random_policy(), WeightSync(tolerance), DeafEngine(folder)
    sync.push(policy, engine, 0, VOCAB_SIZE)
    sync.push(policy, engine, 1, VOCAB_SIZE)  # the same weights: nothing to notice
    scale(policy, 1.0005)
    with pytest.raises(EngineError, match=r"disagree by|did not take the new weights"):
        sync.push(policy, engine, 2, VOCAB_SIZE)


def test_changes_too_small_to_see_add_up_until_they_are_seen(folder):
    policy, sync, engine = random_policy(), WeightSync(0.2), DeafEngine(folder)
    with pytest.raises(EngineError, match="did not take the new weights"):
        for version in range(50):
            sync.push(policy, engine, version, VOCAB_SIZE)
            scale(policy, 1 + 2e-6)
    assert version > 1


def test_an_engine_in_bfloat16_that_takes_slow_weights_passes(folder):
    policy, sync, engine = random_policy(), WeightSync(0.2), HFEngine(folder, dtype="bfloat16")
    for version in range(20):
        sync.push(policy, engine, version, VOCAB_SIZE)
        step(policy, version, rate=1e-5)


class Several(RolloutEngine):
    """Two engines as one, the second of which keeps its first weights."""

    def __init__(self, folder):
        self.engines = [HFEngine(folder), HFEngine(folder)]
        self.engines[1].load_weights(random_policy(seed=1), 0)

    def load_weights(self, source, version):
        self.engines[0].load_weights(source, version)
        self.version = version

    def generate_on_each(self, requests, sampling):
        return {7 + number: engine.generate(requests, sampling) for number, engine in enumerate(self.engines)}

    def generate(self, requests, sampling):
        return self.engines[0].generate(requests, sampling)


def test_a_wrong_engine_among_several_is_found(folder):
    with pytest.raises(EngineError, match="engine and trainer disagree"):
        WeightSync(tolerance=1e-3).push(random_policy(), Several(folder), 1, VOCAB_SIZE)


class Faulty(HFEngine):
    """Takes old weights in place of some, and claims to have the new ones."""

    old = None

    def load_weights(self, source, version):
        weights = source.named_weights(self.wanted)
        given = self.old.replace(weights) if self.old else weights
        super().load_weights(SimpleNamespace(named_weights=lambda wanted: given), version)


@pytest.mark.parametrize("names", [None, [LOST]], ids=["all weights of a step before", "a lost layer"])
@pytest.mark.parametrize("dtype", ["float32", "bf16-mixed"])
def test_weights_of_one_small_step_before_are_found(folder, names, dtype):
    policy, sync, engine = random_policy(), WeightSync(0.2), Faulty(folder, dtype=dtype)
    assert sync.push(policy, engine, 0, VOCAB_SIZE).compared_share == 1
    engine.old = OldWeights(policy, names)
    step(policy, rate=1e-6 if names is None else 1e-5)
    with pytest.raises(EngineError, match=r"does not hold the trainer's weights in . of 7 modules"):
        sync.push(policy, engine, 1, VOCAB_SIZE)
    engine.old = None
    sync.push(policy, engine, 2, VOCAB_SIZE)


def test_an_engine_that_cannot_tell_what_it_holds_is_proven_by_the_probe_alone(folder):
    assert WeightSync(1e-3).push(random_policy(), DeafEngine(folder), 0, VOCAB_SIZE).compared_share == 0


HANDS_OVER = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
import torch
from bapo_lightning.rollout import weight_transport

weight_transport.SHARED_MEMORY_FOLDER = Path(sys.argv[1])
source = SimpleNamespace(named_weights=lambda wanted: [("weight", torch.ones(1000))])
for part in weight_transport.weight_parts(source, part_megabytes=1):
    print("handing over", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_trainer_left_is_removed_by_the_next_hand_over(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_transport, "SHARED_MEMORY_FOLDER", tmp_path)
    command = [sys.executable, "-c", HANDS_OVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "handing over\n"
        (left,) = tmp_path.glob(f"{PREFIX}{trainer.pid}-*")
        remove_abandoned()
        assert left.exists()  # its trainer lives
        trainer.send_signal(signal.SIGKILL)
    assert left.exists()
    source = SimpleNamespace(named_weights=lambda wanted: [("weight", torch.ones(3))])
    for part in weight_parts(source, part_megabytes=1):
        assert not left.exists() and part["names"] == ["weight"]
    assert list(tmp_path.iterdir()) == []
