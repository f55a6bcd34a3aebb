"""Engines that a process can make without a model, and that tell, or do, something odd."""

import os
import time

import torch

from bapo_lightning.rollout.engine import UNSYNCED_VERSION, RolloutEngine
from bapo_lightning.system.errors import ConfigError, EngineError
from bapo_lightning.system.phases import advance


class OddEngine(RolloutEngine):
    """Holds no weights; what it does instead of sampling is its own."""

    def __init__(self, model_path):
        self.model_path = model_path
        self.version = UNSYNCED_VERSION

    def load_weights(self, source, version):
        self.version = version
        for _ in source.named_weights():
            pass

    def generate(self, requests, sampling):
        raise KeyError("what an engine of ours would not raise")

    def sleep(self):
        self.version = UNSYNCED_VERSION


class Talkative(OddEngine):
    """Its constructor tells how its process was set up."""

    def __init__(self, model_path):
        raise EngineError(
            f"{torch.get_num_threads()} threads on {sorted(os.sched_getaffinity(0))}, "
            f"RANK={os.environ.get('RANK')}"
        )


class Complaining(OddEngine):
    def __init__(self, model_path):
        raise ConfigError(["first", "second"])


class Slow(OddEngine):
    """Samples for ever, in native code as it were."""

    def generate(self, requests, sampling):
        time.sleep(1000)


class Counting(OddEngine):
    """Counts samples while it is at work."""

    def generate(self, requests, sampling):
        for _ in requests:
            advance()
            time.sleep(0.4)
        return []


class Exiting(OddEngine):
    def __init__(self, model_path):
        os._exit(3)


class Rereading(OddEngine):
    """Reads the weights again from the start in the middle, as every source promises."""

    def load_weights(self, source, version):
        next(source.named_weights())
        first = [name for name, _ in source.named_weights()]
        if first != [name for name, _ in source.named_weights()] or len(set(first)) != len(first):
            raise EngineError(f"another order: {first}")
        self.version = version
