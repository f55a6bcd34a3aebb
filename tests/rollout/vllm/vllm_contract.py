from array import array

import pytest
from tests.rollout.contract import SAMPLING, EngineContract, requests

from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams
from bapo_lightning.system.errors import EngineError


class VLLMContract(EngineContract):
    """Further promise of an engine of vLLM with `max_model_len` 64."""

    def test_a_response_that_vllm_would_cut_short_is_an_error_before_anything_is_sampled(self, engine):
        message = "request 3 has 60 prompt tokens and asks for 5 more; vLLM was started for 64 in all"
        with pytest.raises(EngineError, match=message):
            engine.generate([*requests(3), GenerationRequest(array("i", [1] * 60), 5, 0)], SAMPLING)
        (longest,) = engine.generate([GenerationRequest(array("i", [1] * 60), 4, 0)], SamplingParams(1.0, ()))
        assert len(longest.segment.token_ids) == 4
