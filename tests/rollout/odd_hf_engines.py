"""Engines with a model that do something odd."""

import os
import time

import torch

from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.system.errors import EngineError


class Uneven(HFEngine):
    """Waits before each call, or scales its weights, where its node's environment says so."""

    def generate(self, requests, sampling):
        time.sleep(float(os.environ.get("ODD_DELAY", "0")))
        return super().generate(requests, sampling)

    def load_weights(self, source, version):
        super().load_weights(source, version)
        with torch.no_grad():
            for weight in self._model.parameters():
                weight.mul_(float(os.environ.get("ODD_SCALE", "1")))


class Suicidal(HFEngine):
    """Dies of a request with this seed."""

    def generate(self, requests, sampling):
        if any(request.seed == 13 for request in requests):
            os._exit(3)
        return super().generate(requests, sampling)


class Mortal(HFEngine):
    """Fails for good at the policy version that the environment names."""

    def generate(self, requests, sampling):
        if self.version >= int(os.environ.get("ODD_DEATH", "1000000")):
            raise EngineError("no engine is left")
        return super().generate(requests, sampling)
