from types import SimpleNamespace

import pytest
import torch
from tests.builders import VOCAB_SIZE, random_model, random_policy
from tests.rollout.faults import LOST, OldWeights, step

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.weight_sync import WeightSync


@pytest.fixture
def engine(tmp_path):
    random_model().save_pretrained(tmp_path)
    return HFEngine(str(tmp_path))


def test_after_each_of_five_pushes_of_changed_weights_both_sides_agree(engine):
    policy = random_policy()
    sync = WeightSync(tolerance=1e-4)
    for version in range(5):
        report = sync.push(policy, engine, version, VOCAB_SIZE)
        assert engine.version == version and report.max_logprob_difference <= 1e-4
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(1.05)


class ForgetfulEngine(HFEngine):
    """Takes every weight but the first, and claims to have them all."""

    def load_weights(self, source, version):
        held = dict(self._model.named_parameters())
        name, _ = next(iter(held.items()))
        kept = held[name].clone()
        super().load_weights(source, version)
        held[name].copy_(kept)


def test_a_sabotaged_push_is_found_out(tmp_path):
    random_model().save_pretrained(tmp_path)
    engine = ForgetfulEngine(str(tmp_path))
    with pytest.raises(EngineError, match="does not hold the trainer's weights"):
        WeightSync(tolerance=1e-3).push(random_policy(), engine, 1, VOCAB_SIZE)


def test_non_finite_weights_do_not_pass_the_probe(engine):
    policy = random_policy()
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    with pytest.raises(EngineError, match="disagree by nan"):
        WeightSync(tolerance=1e-3).push(policy, engine, 1, VOCAB_SIZE)


class DeafEngine(HFEngine):
    """Takes the first weights and claims to have all later ones; it cannot tell what it holds."""

    has_weights = False
    weight_digests = None

    def load_weights(self, source, version):
        if not self.has_weights:
            super().load_weights(source, version)
        self.has_weights, self.version = True, version


@pytest.mark.parametrize("tolerance", [1e-3, 0.2, 5.0])
def test_an_engine_that_ignores_every_push_after_the_first_is_found_at_the_second(tmp_path, tolerance):
    random_model().save_pretrained(tmp_path)
    policy, sync, engine = random_policy(), WeightSync(tolerance), DeafEngine(str(tmp_path))
    sync.push(policy, engine, 0, VOCAB_SIZE)
    sync.push(policy, engine, 1, VOCAB_SIZE)  # the same weights: nothing to notice
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.0005)
    with pytest.raises(EngineError, match=r"disagree by|did not take the new weights"):
        sync.push(policy, engine, 2, VOCAB_SIZE)


def test_changes_too_small_to_see_add_up_until_they_are_seen(tmp_path):
    random_model().save_pretrained(tmp_path)
    policy, sync, engine = random_policy(), WeightSync(0.2), DeafEngine(str(tmp_path))
    with pytest.raises(EngineError, match="did not take the new weights"):
        for version in range(50):
            sync.push(policy, engine, version, VOCAB_SIZE)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.mul_(1 + 2e-6)
    assert version > 1


def test_an_engine_in_bfloat16_that_takes_slow_weights_passes(tmp_path):
    random_model().save_pretrained(tmp_path)
    policy, sync, engine = random_policy(), WeightSync(0.2), HFEngine(str(tmp_path), dtype="bfloat16")
    for version in range(20):
        sync.push(policy, engine, version, VOCAB_SIZE)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(1e-5 * torch.randn_like(parameter))


class Several:
    """Two engines as one, the second of which keeps its first weights."""

    def __init__(self, folder):
        self.engines = [HFEngine(folder), HFEngine(folder)]
        self.engines[1].load_weights(random_policy(seed=1), 0)

    def load_weights(self, source, version):
        self.engines[0].load_weights(source, version)
        self.version = version

    def generate_on_each(self, requests, sampling):
        return {7 + number: engine.generate(requests, sampling) for number, engine in enumerate(self.engines)}

    def take_counts(self):
        return {}


def test_a_wrong_engine_among_several_is_found(tmp_path):
    random_model().save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="engine and trainer disagree"):
        WeightSync(tolerance=1e-3).push(random_policy(), Several(str(tmp_path)), 1, VOCAB_SIZE)


class Faulty(HFEngine):
    """Takes old weights in place of some, and claims to have the new ones."""

    old = None

    def load_weights(self, source, version):
        weights = source.named_weights(self.wanted)
        kept = SimpleNamespace(
            named_weights=lambda wanted: self.old.replace(weights) if self.old else weights
        )
        super().load_weights(kept, version)


@pytest.mark.parametrize("names", [None, [LOST]], ids=["all weights of a step before", "a lost layer"])
@pytest.mark.parametrize("dtype", ["float32", "bf16-mixed"])
def test_weights_of_one_small_step_before_are_found(tmp_path, names, dtype):
    random_model().save_pretrained(tmp_path)
    policy, sync, engine = random_policy(), WeightSync(0.2), Faulty(str(tmp_path), dtype=dtype)
    assert sync.push(policy, engine, 0, VOCAB_SIZE).compared_share == 1
    engine.old = OldWeights(policy, names)
    step(policy, rate=1e-6 if names is None else 1e-5)
    with pytest.raises(EngineError, match=r"does not hold the trainer's weights in . of 7 modules"):
        sync.push(policy, engine, 1, VOCAB_SIZE)
    engine.old = None
    sync.push(policy, engine, 2, VOCAB_SIZE)


def test_an_engine_that_cannot_tell_what_it_holds_is_proven_by_the_probe_alone(tmp_path):
    class Silent(HFEngine):
        weight_digests = None

    random_model().save_pretrained(tmp_path)
    engine = Silent(str(tmp_path))
    assert WeightSync(1e-3).push(random_policy(), engine, 0, VOCAB_SIZE).compared_share == 0
