"""What of a configuration with Ray is refused before any engine starts, and what a plan reckons with."""

import sys

import pytest
from tests.commands import run_command
from tests.configuration.compositions import found, validated

from bapo_lightning.configuration.plan import engine_shape
from bapo_lightning.extras.ray.engine import RayEngine
from bapo_lightning.extras.ray.joining import join
from bapo_lightning.extras.ray.versions import code_digest, differences, versions
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.system.errors import ConfigError, EngineError


@pytest.mark.parametrize(("overrides", "complaint"), [
    ("rollout=ray regime=async ranks=ray ranks.placement=together",
     "ranks.placement=together with regime.async_generation=true: trainer and fleet take turns"),
    ("ranks=ray ranks.placement=beside", "ranks.placement=beside"),
    ("strategy=ddp trainer.devices=2 rollout=ray rollout.placement=each",
     "rollout=ray: each of 2 ranks would have a fleet; write rollout.placement=controller"),
    ("rollout=ray rollout.engine.actors=0", "rollout.engine.actors=0"),
    ("rollout=ray rollout.engine.actors=many", "rollout.engine.actors=many"),
    ("strategy=ddp trainer.num_nodes=2", "or by srun, or write ranks=ray, see docs/scale.md"),
])  # fmt: skip
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


@pytest.mark.parametrize(("overrides", "gpus", "copies"), [
    (("rollout=ray", "rollout.engine.actors=6"), 6, 6), (("rollout=ray",), 4, 4),
    (("rollout=ray_vllm", "rollout.engine.actors=3",
     "rollout.engine.make_engine.options.tensor_parallel_size=2"), 6, 3),
])  # fmt: skip
def test_a_fleet_has_gpus_of_its_own_as_many_as_the_trainer_by_default(overrides, gpus, copies):
    shape = engine_shape(validated(*overrides).rollout, ranks=4)
    assert (shape.placement, shape.num_gpus, shape.num_copies) == ("apart", gpus, copies)


@pytest.mark.parametrize(("address", "reason"), [
    ("127.0.0.1:1", "Connection refused"), ("node7", "not HOST:PORT"), ("ray://node7", "not HOST:PORT"),
])  # fmt: skip
def test_a_cluster_that_is_not_there_is_named(address, reason):
    with pytest.raises(EngineError, match=reason) as error:
        join(address, 0, "ranks.address")
    assert f"no Ray cluster could be joined at ranks.address={address}: " in str(error.value)


def test_without_ray_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install -e \"\.\[ray\]\"` installs it"):
        RayEngine("model", HFEngine)


def test_other_versions_are_named_and_builds_do_not_matter():
    here = versions()
    assert here["bapo-lightning"].endswith(f"(code {code_digest()})") and "+" not in here["torch"]
    assert differences(here, dict(here)) == ""
    assert differences({"torch": "2.13.0", "vllm": "1"}, {"torch": "2.12.0"}) == (
        "torch 2.12.0 instead of 2.13.0, vllm not installed instead of 1"
    )


@pytest.mark.slow
def test_a_cluster_that_is_not_there_ends_the_command_with_one_line(tmp_path):
    wrong = ("rollout=ray", "rollout.engine.address=127.0.0.1:1")
    done = run_command("bapo_lightning.cli.train", *wrong, f"run_folder={tmp_path / 'run'}")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: no Ray cluster could be joined at rollout.engine.address=127.0.0.1:1: " in done.stderr
    assert not (tmp_path / "run").exists()
