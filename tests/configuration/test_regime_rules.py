"""What a regime needs, and which do not go together: each refusal names the key, the reason and what to
write.
"""

import pytest
from tests.configuration.compositions import found


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["regime=async", "regime.max_age=2"], "write regime.max_age=3 or fewer updates"),
        (["regime=async", "regime.max_age=null"], "one rollout batch ahead is regime.max_age=7"),
        (
            ["regime=async", "regime.max_age=-1"],
            "regime.max_age=-1 must be a whole number of at least 0, or null",
        ),
        (
            ["regime=async", "regime.reuse_share=0.5", "regime.max_reuses=1"],
            "admission cannot know how old a group will get",
        ),
        (["regime=async", "rollout=vllm"], "write rollout=vllm_child or rollout=vllm_server"),
        (["regime=async", "regime.stale_action=mask"], "masking them is evicting it"),
        (["regime=async", "regime.wait_warning_seconds=0"], "must be a positive number of seconds"),
        (
            ["regime=async", "regime.async_generation=maybe"],
            "regime.async_generation=maybe must be true or false",
        ),
        (
            ["regime=windowed_fifo", "regime.window=200"],
            "write regime.window=129, or regime.max_age=19 or more",
        ),
        (["regime=replay", "regime.window=4"], "without regime.async_generation"),
        (["regime=replay", "regime.max_segments=2"], "without regime.partial_tokens has no effect"),
        (
            ["regime=partial", "regime.partial_tokens=0"],
            "regime.partial_tokens=0 must be a whole number of at least 1, or null",
        ),
        (["regime=partial", "regime.stale_action=forget"], "write one of evict, mask"),
        (["regime=reuse", "regime.reuse_share=1.0"], "must be a number in [0, 1)"),
        (["regime=reuse", "regime.reuse_share=0.001"], "of scale.prompts_per_batch=64 groups is none"),
        (["regime=reuse", "regime.max_reuses=0"], "reuses nothing; write regime.max_reuses=1"),
        (["regime=reuse", "regime.max_age=6"], "write regime.max_age=7 at least"),
        (["regime=reuse", "regime.reuse_priority=best"], "write one of newest, oldest, reward_spread"),
        (
            ["regime=replay", "regime.max_reuses=1"],
            "regime.max_reuses=1 without regime.reuse_share has no effect",
        ),
    ],
)
def test_one_mistake_gives_one_complaint_that_names_it(overrides, complaint):
    (text,) = found(*overrides)
    assert complaint in text


@pytest.mark.parametrize(
    "overrides",
    [
        ["regime=async", "regime.partial_tokens=8"],
        ["regime=windowed_fifo", "regime.partial_tokens=8"],
        ["regime=async", "regime.epochs=2", "regime.max_age=15"],
        ["regime=async", "regime.minibatches=1", "regime.max_age=0"],
        ["regime=partial", "regime.reuse_share=0.5", "regime.max_reuses=1", "regime.max_age=30"],
        ["regime=partial", "regime.stale_action=mask", "regime.max_age=7"],
    ],
)
def test_what_goes_together_is_accepted(overrides):
    assert found(*overrides) == []
