"""Every number of every configuration at its extremes: refused in a sentence, or harmless for a reason."""

import math
from functools import lru_cache

import pytest
from tests.configuration.compositions import composed, found, names, problems_of
from tests.configuration.test_fuzz import changed, leaves
from tests.rivals import declared

from bapo_lightning.configuration.targets import TARGET, target_problems

LOWER, HUGE, ODD = (0, -1), (1e30, 10**9, 2**53 + 1), (math.nan, math.inf)
EXTREMES = (*LOWER, *HUGE, *ODD)
# Reason -> values, and the options by their last two names: of a class or function, or of a section. Tests of
# rivals have more.
HARMLESS = {
    "a limit that is never reached, and nothing is made of its size": (HUGE, """
        ACPO.base ACPO.dual_clip ACPO.most drpo.width ipo.cap ipo.limit ripo.high ripo.low
        score_centering.head score_centering.high clip.dual_clip rollout.top_k aepo.dual_clip
        ce_gppo.dual_clip dcpo_clip.dual_clip EntropyBonus.dual_clip erc.dual_clip fipo.dual_clip
        SPEAR.dual_clip STEER.dual_clip TopEntropy.dual_clip SecondSampling.high SecondSampling.most
        SecondSampling.target_entropy aspo.cap dcpo_clip.most dppo.cap dppo.high dppo.low EntropyBonus.most
        EntropyBonus.target fipo.most fipo.safe_ratio maspo.most M2PO.budget prime_rl_dppo.high
        prime_rl_dppo.low STEER.most tis.cap rest.high FixedBounds.high outlier_mask.high sequence_masked.high
        masked_is.high truncated_is.cap sequence_truncated_is.cap kpop.threshold carm.high opsm.threshold
        ToolCallReward.most Scripts.max_foreign ProgressReplay.window SelfImitation.capacity
        SelfImitation.window SelfImitation.ramp ToolCallReward.decay_updates HfExport.keep RunCheckpoint.keep
        RolloutWriter.num_groups Length.max_answer_chars Length.max_chars Length.min_chars
        LeakageFilter.common problem_table.limit DynamicSampling.max_rounds Regime.max_age Regime.max_segments
        Regime.partial_tokens Regime.window OverlongPenalty.buffer OverlongPenalty.limit SampleFilter.ngram
        SampleFilter.repeats ToolUse.max_calls RayEngine.requests_per_call VerdictsOnNodes.answers_per_call
        HFEngine.max_rows HFEngine.context_length addition_problems.limit lock_problems.limit
        sum_problems.limit Validation.show optimizer.max_grad_norm optimizer.max_nonfinite_in_a_row
        rollout.max_restarts environment.max_turns environment.max_reply_tokens validation_samples.*
        Regime.batches_in_flight
    """),
    "updates that never come": (HUGE, """
        RunCheckpoint.every ConsoleLogger.every RolloutWriter.every HfExport.every Validation.every
        EntropyRuleMonitor.every TokenWriter.every
    """),
    "off, none, or no bound": ((0,), """
        HFEngine.context_length ACPO.spread score_centering.head score_centering.low aspo.low_entropy_share
        EntropyBonus.least EntropyBonus.start SingleStream.keep Watchdog.minutes Regime.max_reuses
        Regime.reuse_share rest.low FixedBounds.low outlier_mask.low sequence_masked.low masked_is.low
        RayEngine.gpus VerdictsOnNodes.cpus HfExport.every EntropyRuleMonitor.every Validation.every
        Validation.show TokenWriter.every Length.min_chars SampleFilter.repeats linear_warmup.warmup_updates
        VLLMOptions.max_feedback_tokens VLLMOptions.max_new_tokens VLLMOptions.max_prompt_tokens
        ce_gppo.high_share ce_gppo.low_share fipo.least KLCov.coefficient maspo.exponent maspo.slant
        ProgressReplay.damping prime_rl_dppo.pull rover.beta vespo.power_negative vespo.power_positive
        psr_nsr.right psr_nsr.wrong Scripts.max_foreign opsm.threshold scale.max_feedback_tokens rollout.top_k
        rollout.max_restarts environment.workers plan.overhead_gigabytes plan.engine_gigabytes
        plan.asleep_gigabytes AdamW.weight_decay
    """),
    "a factor of the loss or of rewards: an update that is not finite is skipped, several end the run": (
        HUGE, """
        aspo.widening EntropyBonus.step fipo.half_life luffy.gamma maspo.width REAL.temperature sapo.negative
        sapo.positive ce_gppo.high_share ce_gppo.low_share fipo.least maspo.exponent maspo.slant
        ProgressReplay.damping fixed_length.length mixture.weights weights.*
    """),
    "an addend of either sign": (LOWER, "shifted_mean.shift FormatReward.bonus"),
    "a step or memory of the bound search: the grid has its ends alone": (
        HUGE, "low.step high.step AdaptiveBounds.memory"
    ),
    "a lower end that no ratio is below": (LOWER, "low.start"),
    "compared with, and nothing else": (
        (*LOWER, *HUGE), """
        ClipCov.high ClipCov.low Difficulty.high Difficulty.low environment_score.correct_from
        FunctionRewards.correct_from alarms.*
    """),
    "a seed": ((*LOWER, *HUGE), "RunWandbLogger.seed reasoning_gym_problems.seed config.seed"),
    "the number of rows that a table must have": (HUGE, "problem_table.size"),
    "options of another library, which is asked while problems are read": (
        EXTREMES, "parameters.* options.code_length options.num_numbers options.max_turns"
    ),
    "vLLM refuses what the model or its device does not have": (
        HUGE, """
        VLLMOptions.max_model_len VLLMOptions.max_num_seqs VLLMOptions.kv_cache_bytes
        VLLMOptions.tensor_parallel_size VLLMOptions.max_feedback_tokens VLLMOptions.max_new_tokens
        VLLMOptions.max_prompt_tokens
    """),
    "an assumption of `make plan`, which says what follows": (
        HUGE, "plan.gpus plan.overhead_gigabytes plan.engine_gigabytes plan.asleep_gigabytes"
    ),
}  # fmt: skip
TAKEN = {}
for _reason, (_values, _names) in {**HARMLESS, **declared("HARMLESS")}.items():
    for _name in _names.split():
        TAKEN.setdefault(_name, set()).update(map(repr, _values))
SERVED = "environment.answers.server.values.environment=served"
COMMAND = "environment.answers.endpoint.command=[sh]"
NEEDED = {
    "data=agent": ["environment=agent", COMMAND],
    "environment=agent": [COMMAND],
    "reward=functions": ["reward.functions=[tests.runs.own_rewards.length]"],
    "data=table": ["data.train.path=a.jsonl"],
    "data=verl": ["data.train.path=a.parquet", "data.validation.test.path=b.parquet"],
    "data=openenv": ["environment=openenv"],
    "data=verifiers": ["environment=verifiers", SERVED],
    "environment=verifiers": [SERVED],
}
QUICK = [f"{group}={name}" for group in ("reward", "rollout", "environment") for name in names(group)]
SLOW = [
    f"{group}={name}"
    for group in ("algorithm", "correction", "regime", "data", "model/lora", "strategy", "logger", "ranks")
    for name in names(group)
]


@lru_cache(maxsize=1)
def keys_of_the_rest():
    """Owners and names of options that the experiment itself has."""
    return {key for key, *_ in numbers(composed("experiment=additions"))}


def numbers(base):
    """Yields each number: owner and name, path, and the node of its class or function, if it has one."""
    for path in leaves(base):
        node, owner = base, None
        for depth, key in enumerate(path):
            if isinstance(node, dict) and TARGET in node:
                owner = node, (node[TARGET], *path[depth:])
            node = node[key]
        if isinstance(node, bool | str | list | dict):
            continue
        parts = owner[1] if owner else ("config", *path)
        yield ".".join(str(part).rpartition(".")[2] for part in parts[-2:]), path, owner and owner[0]


def accepted(base, key, path, owner, said):
    """The extremes that nobody complains of and that the table does not name."""
    harmless = TAKEN.get(key, set()) | TAKEN.get(f"{key.partition('.')[0]}.*", set())
    if "alarms" in path:
        harmless = harmless | TAKEN["alarms.*"]
    for value in EXTREMES:
        if repr(value) in harmless:
            continue
        with changed(base, path, value):
            if owner is not None and list(target_problems(owner, "node")):
                continue
            if not set(problems_of(base)) - said:
                yield f"{key}={value!r}"


def let_pass(choices, known=frozenset()):
    seen, passed = set(known), []
    for choice in choices:
        base = composed(choice, *NEEDED.get(choice, []))
        said = set(problems_of(base))
        for key, path, owner in numbers(base):
            if key not in seen:
                seen.add(key)
                passed += accepted(base, key, path, owner, said)
    return passed


def test_every_number_of_a_run_is_refused_at_its_extremes_or_harmless():
    assert let_pass(["experiment=additions"]) == []


@pytest.mark.parametrize("choices", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["quick", "all"])
def test_so_is_every_number_of_every_choice(choices):
    assert let_pass(choices, keys_of_the_rest()) == []


@pytest.mark.parametrize(("override", "words"), [
    ("rollout.temperature=1e30", "makes sampling uniform"),
    ("rollout.weight_sync.tolerance=1e30", "proves nothing"),
    ("rollout.weight_sync.tolerance=1", "proves nothing"),
    ("rollout.weight_sync.temperature=2", "is a copy of rollout.temperature=1.0"),
    ("optimizer.optimizer.lr=1e-320", "below the smallest number of full precision"),
    ("optimizer.optimizer.lr=1e30", "is not a usable learning rate; write at most 100"),
    ("optimizer.optimizer.weight_decay=1e30", "erases the weights"),
    ("optimizer.scheduler.warmup_updates=1000000", "the rate never reaches a hundredth"),
    ("cpu_threads=1000000", "must be a whole number from 1 to"),
    ("cpu_threads=9007199254740993", "must be a whole number from 1 to"),
    ("callbacks.checkpoint.folder=no", "is not the run folder, where resume and the pages look"),
    ("callbacks.watchdog.minutes=1e30", "must be a number of minutes in [0, 2000000]"),
])  # fmt: skip
def test_an_extreme_is_refused_once_and_by_its_key(override, words):
    (text,) = found(override)
    assert text.startswith(override.partition("=")[0]) and words in text


@pytest.mark.parametrize("overrides", [
    ("reward=math", "reward.num_workers=1000000000"),
    ("rollout=hf_child", "rollout.engine.cpu_threads=1000000000"),
    ("rollout=vllm_server", "rollout.engine.num_servers=1000000000"),
    ("environment=sums", "scale.max_feedback_tokens=10", "environment.workers=1000000000"),
    ("reward=math_ray", "reward.workers=1000000000"),
])  # fmt: skip
def test_no_machine_starts_so_many_workers(overrides):
    key = overrides[-1].partition("=")[0]
    assert any(text.startswith(key) and "must be a whole number" in text for text in found(*overrides))
