"""Which methods the exact worlds take."""

import pytest

from bapo_lightning.errors import ConfigError
from bapo_lightning.library import configure
from studies.map.exact import Entry
from studies.map.jobs import composed
from studies.map.plan import read_map


def test_a_method_that_needs_a_reference_policy_is_refused_in_one_sentence():
    assert Entry.of(configure(algorithm="grpo")).max_grad_norm > 0
    with pytest.raises(ConfigError, match="flowrl needs a reference policy or an") as caught:
        composed(read_map(["methods.grpo.set.algorithm=flowrl"]), "grpo")
    assert len(caught.value.problems) == 1
