"""vLLM in Ray actors."""

from contextlib import closing
from functools import partial

import pytest
from tests.builders import VOCAB_SIZE, random_policy
from tests.rollout.contract import SAMPLING, requests, tokens

from bapo_lightning.extras.ray.engine import RayEngine
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.weight_sync import WeightSync


@pytest.mark.drill
def test_two_actors_are_proven_and_sample_what_vllm_samples_in_this_process(folder, options):
    kind = partial(VLLMLocalEngine, options=options)
    with closing(RayEngine(folder, kind, actors=2, cpus=0.5, cpu_threads=1, requests_per_call=10)) as made:
        sync = WeightSync(tolerance=1e-3, probe_tokens=40)
        sync.push(random_policy(seed=1), made, 2, VOCAB_SIZE)
        sync.push(random_policy(), made, 3, VOCAB_SIZE)
        assert made.take_counts()["fleet/engines"] == 2
        sampled = tokens(made.generate(requests(20), SAMPLING))
    with closing(VLLMLocalEngine(folder, options)) as here:
        here.load_weights(random_policy(), version=3)
        assert tokens(here.generate(requests(20), SAMPLING)) == sampled
