"""Every rule between keys, broken on purpose; the shipped configurations break none."""

import pytest
import torch
from tests.commands import run_command
from tests.configuration.compositions import CONF, composed, found, names

from bapo_lightning.configuration.targets import Target
from bapo_lightning.errors import ConfigError


@pytest.mark.parametrize("correction", names("correction"))
def test_every_shipped_correction_passes(correction):
    assert found(f"correction={correction}") == []


@pytest.mark.slow
@pytest.mark.parametrize("experiment", names("experiment"))
def test_every_shipped_experiment_passes(experiment, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "as torchrun starts several nodes")
    sizes = "scale.max_new_tokens=24"
    own = ["model=additions", "data.train.path=mine.jsonl", sizes] if experiment == "own" else []
    # A model that is made by a target of its own need not be there.
    assert [
        complaint
        for complaint in found(f"experiment={experiment}", "plan.ignore=true", *own)
        if "make it: make model-" not in complaint
    ] == []


@pytest.mark.parametrize("rollout", names("rollout"))
def test_every_shipped_rollout_passes(rollout):
    assert found(f"rollout={rollout}") == []


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("rollout.engine.urls=[localhost]", "rollout.engine.urls: localhost is no URL"),
        ("rollout.engine.gpus=['4,5','6,7']", "names the GPUs of 2 servers, rollout.engine.num_servers=1"),
        ("rollout.engine.num_servers=0", "rollout.engine.num_servers=0 must be a whole number of at least 1"),
        (
            "rollout.engine.cpu_threads=two",
            "rollout.engine.cpu_threads=two must be a whole number of at least 1, or null",
        ),
        (
            "rollout.engine.deadline_seconds=0",
            "rollout.engine.deadline_seconds=0 must be a positive number of seconds",
        ),
        ("rollout.engine.options.gpu_memory_utilization=40", "is a share of the GPU's memory"),
        (
            "rollout.engine.options.max_sequences=4",
            "rollout.engine.options.max_sequences is not an option of",
        ),
    ],
)
def test_a_bad_option_of_a_server_is_named(override, complaint):
    plus = "+" if "max_sequences" in override else ""
    assert any(complaint in text for text in found("rollout=vllm_server", plus + override))


@pytest.mark.slow
@pytest.mark.parametrize(
    "override", [f"{group}={name}" for group in ("data", "reward", "scale") for name in names(group)]
)
def test_every_shipped_data_set_reward_and_scale_passes(override):
    needed = {
        "reward=functions": "reward.functions=[tests.rewards.test_functions.right]",
        "data=table": "data.train.path=mine.jsonl",
        "reward=environment": "environment=calculator scale.max_feedback_tokens=8",
    }
    complaints = found(override, *needed.get(override, "").split())
    # The tiny model's positions do not do for larger scales.
    assert [text for text in complaints if "the model has 128 positions" not in text] == []


def test_the_bare_text_can_be_chosen_where_a_data_set_has_a_chat_prompt():
    plain = {"_target_": "bapo_lightning.data.problems.prompts.PlainPrompt"}
    assert composed("data=gsm8k", "data/prompt=plain")["data"]["prompt"] == plain


@pytest.mark.parametrize("name", names("problem_set"))
def test_every_problem_set_can_be_trained_and_validated_on(name):
    overrides = [f"problem_set@data.train={name}", f"+problem_set@data.validation.more={name}"]
    paths = (
        ["data.train.path=own.jsonl", "data.validation.more.path=own.jsonl"]
        if name in ("table", "verl")
        else []
    )
    assert found("data=gsm8k", *overrides, *paths) == []


@pytest.mark.parametrize("name", names("data/prompt"))
def test_every_prompt_passes(name):
    assert found("data=gsm8k", f"data/prompt={name}") == []


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("algorithm=grpo algorithm.bounds.low=1.0", "algorithm.bounds.low=1.0 is no lower bound"),
        ("algorithm=grpo algorithm.bounds.high=0.2", "algorithm.bounds.high=0.2 is no upper bound"),
        ("algorithm.bounds.low.end=1.1", "algorithm.bounds.low.end=1.1 is no lower bound"),
        ("algorithm.bounds.high.start=1.0", "algorithm.bounds.high.start=1.0 is no upper bound"),
        (
            "algorithm.bounds.high.start=4",
            "algorithm.bounds.high.start=4 is beyond algorithm.bounds.high.end=3.0",
        ),
        ("algorithm.bounds.low.step=0", "algorithm.bounds.low.step=0 never reaches the end"),
        ("algorithm.bounds.target=1.0", "algorithm.bounds.target=1.0 is no share of a whole"),
        (
            "algorithm.bounds.measure=ratio algorithm.bounds.target=0",
            "algorithm.bounds.target=0 is always met",
        ),
        ("algorithm.bounds.order=sideways", "write one of upper_first, lower_first"),
        ("algorithm.objective.dual_clip=0.5", "dual_clip=0.5 must be above 1 (3.0 is usual)"),
        ("algorithm.advantages.scale=var", "write one of std, none"),
        ("scale.group_size=1", "a group of 1 has neither spread nor others"),
        ("scale.group_size=1 algorithm.advantages.scale=none", "one sample is always average"),
        ("regime.minibatches=5", "regime.minibatches=5 does not divide scale.prompts_per_batch=64"),
        ("regime.epochs=0", "regime.epochs=0 must be a whole number in [1, 1000000]"),
        ("scale.max_new_tokens=many", "scale.max_new_tokens=many must be a whole number"),
        ("scale.max_prompt_tokens=0", "scale.max_prompt_tokens=0 must be a whole number in [1, 1000000]"),
        ("scale.overlong_buffer=100", "scale.overlong_buffer=100 must be in 1..scale.max_new_tokens"),
        ("rollout.temperature=0", "rollout.temperature=0: training samples must come from a distribution"),
        (
            "correction=truncated_is correction.weights.cap=0",
            "correction.weights.cap=0 must be positive (2.0 is usual)",
        ),
        ("correction=truncated_is correction.weights.cap=null", "correction.weights.cap=None"),
        ("correction=masked_is correction.weights.low=1", "correction.weights.low=1 must be in [0, 1)"),
        ("correction=masked_is correction.weights.high=0.9", "correction.weights.high=0.9 must be above 1"),
        ("correction=masked_is +correction.weights.cap=2.0", "correction.weights.cap is not an option of"),
        (
            "callbacks.checkpoint.minutes=0",
            "callbacks.checkpoint.minutes=0 must be a positive number of minutes, or null",
        ),
        (
            "callbacks.checkpoint.minutes=soon",
            "callbacks.checkpoint.minutes=soon must be a positive number of minutes, or null",
        ),
        ("optimizer.optimizer.lr=0", "optimizer.optimizer.lr=0 would change nothing"),
        (
            "scale.max_new_tokens=200",
            "make 208 tokens, the model has 128 positions; write scale.max_new_tokens=120",
        ),
        ("rollout.top_p=0.9", "rollout.top_p=0.9 is refused for training"),
        ("rollout.top_k=20", "rollout.top_k=20 is refused for training"),
        (
            "rollout.engine.dtype=int8",
            "rollout.engine.dtype=int8 is none of its values; write one of float32, bfloat16, float16",
        ),
        ("rollout=hf_child rollout.engine.cpu_affinity=[0,99999]", "this machine has no core 99999"),
        ("rollout=hf_child rollout.engine.cpu_affinity=all", "cpu_affinity=all must be a list"),
        (
            "rollout=hf_child rollout.engine.cpu_threads=0",
            "rollout.engine.cpu_threads=0 must be a whole number of at least 1, or null",
        ),
        (
            "rollout=hf_child rollout.engine.make_engine.max_rows=0",
            "rollout.engine.make_engine.max_rows=0 must be a whole number",
        ),
        (
            "rollout=vllm_child +rollout.engine.make_engine.rows=1",
            "rollout.engine.make_engine.rows is not an option of",
        ),
        ("rollout.max_restarts=-1", "rollout.max_restarts=-1 must be a whole number of at least 0"),
        (
            "trainer.devices=4",
            "strategy=single with trainer.devices=4 and trainer.num_nodes=1: one process has one device",
        ),
        (
            "trainer.num_nodes=2 strategy=ddp",
            "trainer.num_nodes=2: a run starts ranks on its own machine only; start it on every node by "
            "torchrun",
        ),
        (
            "strategy=fsdp rollout.weight_sync.tolerance=1e-3",
            "trainer.precision=bf16-mixed with rollout.weight_sync.tolerance=0.001: the trainer's "
            "rounding alone",
        ),
        (
            "trainer.precision=16-mixed",
            "trainer.precision=16-mixed is none of its values: gradients underflow in float16",
        ),
        (
            "model.dtype=bfloat16 rollout.weight_sync.tolerance=1e-3",
            "write rollout.weight_sync.tolerance=null, which follows the precision, or model.dtype=float32",
        ),
        ("+strategy.zero=1", "strategies.single_device; it takes none"),
        (
            "rollout.placement=all",
            "rollout.placement=all is none of its values; write one of each, controller",
        ),
        (
            "strategy=ddp trainer.devices=2 rollout=vllm_server rollout.placement=each",
            "each of 2 ranks would have servers; write rollout.placement=controller",
        ),
        ("rank_timeout_minutes=0", "rank_timeout_minutes=0 must be a positive number of minutes"),
        ("model.path=/nowhere/at/all", "model.path=/nowhere/at/all does not exist"),
        ("run_folder=/dev/null/x", "/dev/null is a file"),
        ("+algorithm.objective.typo=1", "algorithm.objective.typo is not an option of"),
        ("reward._target_=bapo_lightning.rewards.nothing", "cannot be imported"),
    ],
)
def test_one_mistake_gives_one_complaint_that_names_it(override, complaint):
    messages = found(*override.split())
    assert len(messages) == 1, messages
    assert complaint in messages[0]


def test_a_target_need_not_have_the_options_that_a_base_file_leaves_unset():
    target = "+algorithm.objective={_target_: bapo_lightning.objectives.divergence.k3}"
    assert found(target) == []
    assert (
        "algorithm.objective.dual_clip is not an option of"
        in found(target, "algorithm.objective.dual_clip=3.0")[0]
    )
    node = {**composed(target)["algorithm"]["objective"], "_partial_": False}
    assert torch.equal(Target(node).make(log_ratio=torch.zeros(2)), torch.zeros(2))


def test_all_complaints_come_together():
    messages = found(
        "regime.minibatches=5", "scale.group_size=1", "algorithm.bounds.target=2", "model.path=/nowhere"
    )
    assert len(messages) == 4
    text = str(ConfigError(messages))
    assert text.startswith("the configuration has 4 problems:\n  1. ") and all(
        message in text for message in messages
    )


def test_a_corrupt_model_folder_is_found_before_it_is_loaded(tmp_path):
    source = CONF.parent / "src/bapo_lightning/tiny_worlds/additions/model"
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert found(f"model.path={tmp_path}") == []
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "is corrupt: model.safetensors" in found(f"model.path={tmp_path}")[0]
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not JSON" in found(f"model.path={tmp_path}")[0]
    (tmp_path / "config.json").unlink()
    assert "config.json is missing" in found(f"model.path={tmp_path}")[0]


def test_a_missing_value_is_named():
    with pytest.raises(ConfigError, match=r"name cannot be resolved .*; write name=VALUE"):
        composed("name=???")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("experiment=nope", ["experiment=nope is no choice; it takes additions, ", "quickstart"]),
        ("algorithm.bounds.lo=3", ["algorithm.bounds.lo is not an option; did you mean"]),
        ("scale.group_size=1", ["error: the configuration has 1 problem", "scale.group_size=1"]),
        (
            "model.path=nobody/nothing",
            ["error: quickstart cannot run on this machine:", "1. model: model.path=nobody/nothing is"],
        ),
    ],
)
def test_the_command_ends_with_one_clear_error_and_no_traceback(tmp_path, override, words):
    result = run_command("bapo_lightning.cli.train", override, f"output_root={tmp_path}", cwd=tmp_path)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words)
    assert list(tmp_path.iterdir()) == []
