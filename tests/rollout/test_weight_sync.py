import pytest
import torch
from tests.builders import VOCAB_SIZE, random_model, random_policy

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
