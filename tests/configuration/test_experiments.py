"""The paper's experiments: each composes, passes the rules, fits the GPUs it is for, and builds its model."""

import json

import pytest
from tests.configuration.compositions import composed, found, problems_of, validated

from bapo_lightning.configuration.machine import check_machine
from bapo_lightning.configuration.plan import check_architecture, plan_of
from bapo_lightning.configuration.sections import Model
from bapo_lightning.configuration.validate import validate
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.plan.gpus import GPUS
from bapo_lightning.plan.model_shape import model_shape
from bapo_lightning.system.errors import ConfigError, MachineError

# name: algorithm, staleness, longest response, GPUs, weights of the model
EXPERIMENTS = {
    "bapo_7b": ("bapo", 4, 8192, 8, 7_615_616_512),
    "bapo_7b_long": ("bapo", 4, 65536, 8, 7_615_616_512),
    "bapo_7b_partial": ("bapo", 4, 8192, 8, 7_615_616_512),
    "bapo_32b": ("bapo", 4, 32768, 32, 32_763_876_352),
    "octothinker_3b": ("bapo_octothinker", 4, 8192, 8, 3_212_749_824),
    "authors_example": ("bapo_authors_example", 8, 8192, 8, 7_615_616_512),
}

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name != "bapo_7b")) for name in EXPERIMENTS]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_run_that_it_is_called(name):
    algorithm, staleness, response, gpus, _ = EXPERIMENTS[name]
    config = composed(f"experiment={name}")
    regime, trainer = config["regime"], config["trainer"]
    assert (config["name"], config["algorithm"]["name"]) == (name, algorithm)
    assert regime["epochs"] * regime["minibatches"] == staleness
    assert config["scale"]["max_new_tokens"] == response
    assert trainer["devices"] * trainer["num_nodes"] == gpus
    assert config["strategy"]["_target_"].endswith(".ShardedStrategy")
    assert config["data"]["validation_samples"] == {"aime24": 16, "aime25": 16}


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_without_gpus_and_memory_is_refused_with_what_it_needs_and_can_do(name, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")  # several nodes are started by torchrun
    monkeypatch.setenv("WORLD_SIZE", "32")
    monkeypatch.setattr("bapo_lightning.configuration.machine.uses_cuda", lambda accelerator: False)
    monkeypatch.setattr("bapo_lightning.configuration.machine.hub_problem", lambda path: None)
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**22}[name])
    with pytest.raises(MachineError) as refusal:
        check_machine(validated(f"experiment={name}"))
    gpus, memory = refusal.value.problems
    assert gpus == f"GPUs: {EXPERIMENTS[name][3]} needed, none found"
    assert memory.startswith("memory: ") and memory.endswith(" GB, and this machine has 17 GB")
    assert str(refusal.value).endswith(f"make rehearse EXP={name}")


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_gpus_of_80_gb(name):
    plan = plan_of(validate(composed(f"experiment={name}"), "run"))
    assert plan.problems == []
    assert min(plan.limits().values()) >= plan.run.longest


@pytest.mark.parametrize("name", NAMES)
def test_its_model_is_built_as_its_configuration_says(name, tmp_path):
    model = composed(f"experiment={name}")["model"]
    (tmp_path / "config.json").write_text(json.dumps(model["architecture"]))
    policy = build_policy(ModelOptions.of(Model(**model), str(tmp_path)), 0.6, on_meta=True)
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == EXPERIMENTS[name][-1]
    assert {parameter.device.type for parameter in policy.parameters()} == {"meta"}
    assert model_shape(policy.model.config.to_dict()) == model_shape(model["architecture"])


@pytest.mark.parametrize("name", NAMES)
def test_another_algorithm_under_it_changes_nothing_but_the_algorithm(name):
    own, other = composed(f"experiment={name}"), composed(f"experiment={name}", "algorithm=grpo")
    plain = composed("algorithm=grpo")["algorithm"]
    assert {**other["algorithm"], "positive_share_target": None} == {**plain, "positive_share_target": None}
    changed = {key for key in own if own[key] != other[key]}
    assert changed <= {"algorithm", "job_type", "run_name", "callbacks"}
    weighted = dict.fromkeys(("contribution", "turns"))  # as the algorithm weighs contributions
    assert {**own["callbacks"], **weighted} == {**other["callbacks"], **weighted}


def test_one_gpu_of_80_gb_holds_7b_with_lora():
    plan = plan_of(validate(composed("experiment=bapo_7b_lora"), "run"))
    assert plan.run.num_gpus == 1 and plan.problems == []
    assert min(plan.limits().values()) >= plan.run.longest
    assert found("experiment=bapo_7b_lora", "plan.ignore=true") == []


@pytest.mark.parametrize("name", ["qwen2.5_0.5b_gsm8k", "cs336_small"])
def test_one_gpu_of_24_gb_holds_half_a_billion_weights(name):
    plan = plan_of(validate(composed(f"experiment={name}"), "run"), GPUS["l4"])
    assert (plan.run.num_gpus, plan.run.model.num_parameters, plan.problems) == (1, 494_032_768, [])


def bounds(name):
    node = composed(f"experiment={name}")["algorithm"]["bounds"]
    return node["low"], node["high"], node["target"], node["kind"], node["order"], node["measure"]


def test_the_bounds_are_the_paper_s_and_the_authors():
    low, high = {"start": 0.6, "end": 0.9, "step": 0.02}, {"start": 1.2, "end": 3.0, "step": 0.05}
    assert bounds("bapo_7b") == (low, high, 0.4, "gradient", "upper_first", "share")
    narrower = low | {"start": 0.8}, high | {"end": 2.0}
    assert bounds("octothinker_3b") == (*narrower, 0.45, "gradient", "upper_first", "share")
    script = {"start": 0.8, "end": 0.95, "step": 0.05}, {"start": 1.2, "end": 2.0, "step": 0.1}
    assert bounds("authors_example") == (*script, 0.5, "surrogate", "lower_first", "ratio")


def test_the_optimizer_is_the_paper_s_and_the_authors():
    paper, script = (composed(f"experiment={name}") for name in ("bapo_7b", "authors_example"))
    assert (paper["optimizer"]["optimizer"]["lr"], paper["rollout"]["temperature"]) == (2e-6, 0.6)
    assert (script["optimizer"]["optimizer"]["lr"], script["rollout"]["temperature"]) == (1e-6, 1.0)
    scale, regime = script["scale"], script["regime"]
    prompts = scale["prompts_per_batch"]
    assert (prompts, scale["group_size"], prompts // regime["minibatches"]) == (256, 16, 64)
    updates = scale["num_rollout_batches"] * regime["epochs"] * regime["minibatches"]
    assert script["optimizer"]["scheduler"]["warmup_updates"] == updates / 10


@pytest.mark.parametrize("budget", [4096, 2048])
def test_both_budgets_of_partial_rollouts_pass(budget):
    overrides = f"scale.partial_tokens={budget}", "plan.ignore=true"
    config = composed("experiment=bapo_7b_partial", *overrides)
    assert config["regime"]["partial_tokens"] == budget
    assert problems_of(config) == []


def test_a_model_of_other_sizes_than_the_configuration_says_is_refused():
    model = composed()["model"]
    sizes = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"
    tiny = {"model_type": "llama", **dict(zip(sizes, (64, 1, 2, 2, 18), strict=True))}
    check_architecture(Model(**model))
    with pytest.raises(ConfigError, match=r"differs from package://.*: ffn_size 1 instead of \d+"):
        check_architecture(Model(**model | {"architecture": tiny}))
