"""What of a configuration with Ray is refused, and what a plan reckons with."""

import pytest
from tests.configuration.compositions import found, validated

from bapo_lightning.configuration.run_shape import engine_shape


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            "rollout=ray regime=async ranks=ray ranks.placement=together",
            "ranks.placement=together with regime.async_generation=true: trainer and fleet take turns",
        ),
        ("ranks=ray ranks.placement=beside", "ranks.placement=beside"),
        (
            "strategy=ddp trainer.devices=2 rollout=ray rollout.placement=each",
            "RayEngine: each of 2 ranks would have a fleet; write rollout.placement=controller",
        ),
        ("rollout=ray rollout.engine.actors=0", "rollout.engine.actors=0"),
        ("rollout=ray rollout.engine.actors=many", "rollout.engine.actors=many"),
        ("strategy=ddp trainer.num_nodes=2", "or by srun, or write ranks=ray, see docs/scale.md"),
    ],
)
def test_what_cannot_be_is_named_with_its_remedy(overrides, complaint):
    (text,) = found(*overrides.split())
    assert complaint in text


def test_ranks_and_verdicts_are_on_the_cluster_of_the_fleet_where_there_is_one():
    own = ["reward=math_ray", "ranks=ray", "strategy=ddp"]
    alone = validated(*own, "ranks.address=auto")
    assert (alone.ranks.options["address"], alone.reward.options["address"]) == ("auto", "auto")
    beside = validated(*own, "rollout=ray", "rollout.engine.address=node7:6379", "ranks.placement=together")
    assert beside.rollout.engine.options["ranks"] == "together"
    assert {node.options["address"] for node in (beside.ranks, beside.reward)} == {"node7:6379"}
    verdicts = validated("reward=math_ray", "rollout=ray", "rollout.engine.address=auto")
    assert (verdicts.reward.options["address"], verdicts.rollout.engine.options["ranks"]) == ("auto", None)
    assert validated("reward=math_ray").reward.options["address"] is None


@pytest.mark.parametrize(
    ("overrides", "gpus", "copies"),
    [
        (("rollout=ray", "rollout.engine.actors=6"), 6, 6),
        (("rollout=ray",), 4, 4),
        (
            (
                "rollout=ray_vllm",
                "rollout.engine.actors=3",
                "rollout.engine.make_engine.options.tensor_parallel_size=2",
            ),
            6,
            3,
        ),
    ],
)
def test_a_fleet_has_gpus_of_its_own_and_as_many_as_the_trainer_where_the_cluster_decides(
    overrides, gpus, copies
):
    shape = engine_shape(validated(*overrides).rollout.engine, ranks=4, stored_bytes=4)
    assert (shape.placement, shape.num_gpus, shape.num_copies) == ("apart", gpus, copies)
