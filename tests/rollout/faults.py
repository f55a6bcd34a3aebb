"""Faults of a weight sync that no log-prob of a probe shows, for tests that plant them."""

from contextlib import contextmanager

import torch

from bapo_lightning.rollout.engine import MERGED

LOST = "model.layers.1.self_attn.k_proj.weight"
RATE = 1e-6  # of one step of Adam: what every weight moves


def step(policy, seed=0, rate=RATE):
    """Moves weights as one step of Adam does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trained_parameters():
            parameter.add_(rate * torch.randn(parameter.shape, generator=generator).sign())


def scale(policy, factor):
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(factor)


class OldWeights:
    """Puts old weights in place of those with the `names`, or of all."""

    def __init__(self, policy, names=None, wanted=MERGED):
        weights = policy.named_weights(wanted)
        self.old = {name: weight.clone() for name, weight in weights if names is None or name in names}

    def replace(self, weights):
        for name, weight in weights:
            yield name, self.old[name].to(weight.dtype) if name in self.old else weight


@contextmanager
def planted_on_the_way(monkeypatch, old):
    """Context in which old weights are written into shared memory."""
    from bapo_lightning.rollout import weight_transport

    write = weight_transport.written_part
    with monkeypatch.context() as patch:
        patch.setattr(weight_transport, "written_part", lambda tensors: write(list(old.replace(tensors))))
        yield
