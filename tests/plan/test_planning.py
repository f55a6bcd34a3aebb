"""Memory, work and time by hand for sizes small enough to count."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bapo_lightning.modules import token_scores
from bapo_lightning.plan import memory
from bapo_lightning.plan.gpus import GPUS, Gpu
from bapo_lightning.plan.memory import block_bytes, gathered, gradients, moments, state, summed
from bapo_lightning.plan.model_shape import ModelShape
from bapo_lightning.plan.planning import Assumptions, make_plan
from bapo_lightning.plan.run_shape import EngineShape, LoraShape, RunShape
from bapo_lightning.plan.work import (
    blocks_flops,
    cache_tokens,
    engine_memory,
    forward_flops,
    generation,
    work_of_update,
)

MODEL = ModelShape(
    "llama", num_layers=2, hidden_size=8, ffn_size=16, num_heads=2, num_kv_heads=1, head_size=4,
    vocab_size=10, max_positions=100, tied=True,
)  # fmt: skip
ENGINE = EngineShape(
    "asleep", tensor_parallel=1, num_gpus=1, element_bytes=2, memory_share=0.5, max_sequences=8
)
RUN = RunShape(
    MODEL, "single", num_gpus=1, stored_bytes=4, compute_bytes=4, micro_batch_tokens=40, prompt_tokens=4,
    response_tokens=16, prompts_per_batch=4, group_size=4, epochs=2, minibatches=2, engine=ENGINE,
)  # fmt: skip
SHARDED = replace(RUN, strategy="fsdp", num_gpus=4)
APART = replace(RUN, engine=replace(ENGINE, placement="apart", memory_share=None))
GPU = Gpu("toy", 1e6, 1e9, 1e12)
ASSUMED = Assumptions(
    usable_share=1.0, overhead_gigabytes=0.0, engine_gigabytes=0.0001, asleep_gigabytes=0.00002,
    mean_response_share=0.5, update_share=0.5, scoring_share=0.5, bandwidth_share=0.5,
)  # fmt: skip
PARAMETERS = 2 * (8 * 8 + 8 * 4 * 2 + 8 * 8 + 3 * 8 * 16 + 2 * 8) + 80 + 8


def total(amounts):
    return sum(amount.bytes for amount in amounts)


def test_the_state_of_adamw_in_float32_takes_16_bytes_a_weight():
    assert MODEL.num_parameters == PARAMETERS == 1272
    assert total(state(RUN)) + total(gradients(RUN)) == 16 * PARAMETERS


def test_fsdp_shares_the_state_among_ranks_and_ddp_does_not():
    assert total(state(SHARDED)) == 3 * PARAMETERS
    assert total(state(replace(RUN, strategy="ddp", num_gpus=4))) == 12 * PARAMETERS


def test_fsdp_gathers_what_is_outside_the_blocks_and_two_blocks():
    whole = gathered(replace(RUN, strategy="fsdp", compute_bytes=2))
    assert total(whole) == 2 * 88 + 2 * 2 * MODEL.layer_parameters


def test_the_first_block_needs_no_head_unless_the_embedding_shares_its_weight():
    own = replace(SHARDED, model=replace(MODEL, tied=False))
    shared, separate = (total(gathered(run)) - total(gathered(run, has_head=False)) for run in (SHARDED, own))
    assert (shared, separate) == (0, 4 * MODEL.head_parameters)


def test_gradients_that_are_reduced_once_an_update_are_whole_on_every_rank():
    once = replace(SHARDED, whole_gradients=True)
    assert (total(summed(once, 3)), total(summed(once, 1))) == (4 * PARAMETERS, 0)
    assert total(summed(replace(once, whole_gradients=False), 3)) == PARAMETERS


def test_a_block_keeps_what_its_modules_save():
    norms, attention, mlp, log_sum_exp = 2 * 3 * 8, 2 * 8 + 2 * 4, 4 * 16, 2
    assert block_bytes(RUN) == 4 * (norms + 4 * 8 + mlp + log_sum_exp)  # CUDA's float32 shares no heads
    assert block_bytes(replace(RUN, on_gpu=False)) == 4 * (norms + attention + mlp + log_sum_exp)
    assert block_bytes(replace(RUN, compute_bytes=2)) == 2 * 8 * 8 + 2 * (attention + mlp) + 4 * log_sum_exp


def test_adapters_have_gradients_and_moments_and_the_frozen_weights_none():
    run = replace(RUN, lora=LoraShape(2, ("q_proj", "down_proj")))
    adapters = 2 * (2 * (8 + 8) + 2 * (16 + 8))
    assert run.trainable_parameters == adapters
    assert total(state(run)) + total(gradients(run)) == 4 * PARAMETERS + 16 * adapters


def test_the_cosine_of_gradients_keeps_one_more_gradient_of_what_is_trained_and_sharded_as_it_is():
    lora = LoraShape(2, ("q_proj", "down_proj"))
    for run in (RUN, SHARDED, replace(RUN, lora=lora), replace(SHARDED, offload=True)):
        kept = total(state(replace(run, keeps_gradient=True))) - total(state(run))
        assert kept == total(gradients(run))


def test_a_longer_micro_batch_raises_the_peak_and_checkpointing_lowers_it():
    def peak(run):
        return max(moment.bytes for moment in moments(run, 2))

    assert peak(RUN) < peak(replace(RUN, micro_batch_tokens=80))
    selective, whole = (peak(replace(RUN, checkpointing=kept)) for kept in ("selective", True))
    assert whole < selective < peak(RUN)


def test_a_small_minibatch_fills_no_micro_batch_and_a_long_sample_stands_alone():
    assert replace(RUN, micro_batch_tokens=1000).tokens_at_once == 8 * 20
    assert replace(RUN, micro_batch_tokens=5).tokens_at_once == 20


def test_work_is_two_operations_a_weight_forward_and_four_backward():
    weights, attention = 2 * 2 * (8 * 8 + 8 * 4 * 2 + 8 * 8 + 3 * 8 * 16) * 12, 2 * 2 * 8 * 12**2
    assert forward_flops(RUN, 8) == weights + attention + 2 * 80 * 8
    work = work_of_update(RUN, 8)
    assert (work.tokens, work.update, work.search) == (8 * 12, 3 * 8 * forward_flops(RUN, 8), 0)


def test_whole_blocks_are_computed_again_and_selective_checkpointing_repeats_no_product():
    whole, selective = (work_of_update(replace(RUN, checkpointing=kept), 8) for kept in (True, "selective"))
    assert whole.update - selective.update == 8 * blocks_flops(RUN, 12)
    assert selective == work_of_update(RUN, 8)


def test_selective_checkpointing_keeps_both_products_of_each_adapter():
    lora = LoraShape(2, ("q_proj", "down_proj"))
    both = [memory.kept_bytes(replace(RUN, lora=adapters)) for adapters in (None, lora)]
    outputs = [RUN.model.linear_shapes[name][1] for name in lora.targets]
    assert both[1] - both[0] == RUN.compute_bytes * (2 * 2 + sum(outputs))


def test_a_search_over_several_micro_batches_costs_a_forward_pass():
    assert work_of_update(replace(RUN, searches=True), 8).search == 8 * forward_flops(RUN, 8)
    assert work_of_update(replace(RUN, searches=True, micro_batch_tokens=1000), 8).search == 0


def test_the_cache_is_what_the_engine_s_share_leaves():
    weights, cache, working = (amount.bytes for amount in engine_memory(RUN, GPU, 1e5))
    assert (weights, cache, working) == (2 * PARAMETERS, 5e5 - 2 * PARAMETERS - 1e5, 1e5)
    assert cache_tokens(RUN, GPU, 1e5) == (400_000 - 2 * PARAMETERS) // (2 * 2 * 4 * 2)


def test_a_step_of_decoding_reads_the_weights_and_the_cache_of_all_sequences():
    made = generation(RUN, GPU, 1e5, mean_response=8, bandwidth_share=0.5)
    assert (made.num_samples, made.concurrent, made.steps) == (16, 8, 16)
    assert made.step_seconds == (2 * PARAMETERS + 8 * 8 * 32) / 0.5e9


def test_a_sample_that_the_cache_cannot_hold_is_a_problem():
    (problem,) = make_plan(replace(RUN, engine=replace(ENGINE, memory_share=0.1028)), GPU, ASSUMED).problems
    assert problem.startswith("the engine's cache holds 8 tokens, a sample has up to 20;")


def test_an_update_that_does_not_fit_gets_a_remedy():
    problems = make_plan(APART, replace(GPU, memory_bytes=60_000.0), ASSUMED).problems
    assert [problem for problem in problems if problem.endswith("write model.activation_checkpointing=true")]


def test_only_what_can_be_enough_is_advised():
    (problem,) = make_plan(APART, replace(GPU, memory_bytes=20_000.0), ASSUMED).problems
    assert problem.startswith("weights, gradients and the optimizer's state take 0.0 GB")
    ways = "strategy=fsdp and more trainer.devices or trainer.num_nodes, or strategy.cpu_offload=true"
    assert problem.endswith(f"write {ways}")
    (problem,) = make_plan(APART, replace(GPU, memory_bytes=25_000.0), ASSUMED).problems
    assert problem.endswith("write strategy=fsdp and more trainer.devices")


def test_an_engine_whose_weights_fill_its_share_has_no_cache():
    plan = make_plan(replace(RUN, engine=replace(ENGINE, memory_share=0.001)), GPU, ASSUMED)
    assert (plan.cache_tokens, plan.engine[1].bytes) == (0, 0)
    assert any(problem.startswith("the engine's cache holds 0 tokens") for problem in plan.problems)


def test_the_longest_sample_is_the_last_one_that_fits():
    plan = make_plan(RUN, GPU, ASSUMED)
    longest = plan.limits()["update"]

    def fits(response):
        alone = replace(RUN, micro_batch_tokens=1, response_tokens=response - 4)
        return make_plan(alone, GPU, ASSUMED).fullest.bytes <= 1e6

    assert fits(longest) and not fits(longest + 1)
    assert plan.limits()["model's positions"] == 100


def test_the_time_of_an_update_follows_from_its_work():
    plan = make_plan(RUN, GPU, ASSUMED)
    assert plan.seconds["updates"] == pytest.approx(4 * plan.work.update / 0.5e12)


def test_the_logits_of_a_chunk_are_those_of_token_scores(monkeypatch):
    card = SimpleNamespace(total_memory=85_029_158_912)  # of an H100 of 80 GB
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    words, run = 152_000, replace(RUN, response_tokens=10**5, model=replace(MODEL, vocab_size=152_000))
    planned = make_plan(run, GPUS["h100_80gb"], ASSUMED).run
    rows = token_scores.longest_chunk(torch.device("cuda"), words)
    assert memory.logits(planned, is_forward=False)[0].bytes == 4 * rows * words == 4 * 3532 * 152_000
    assert token_scores.longest_chunk(torch.device("cpu"), words) == 883


def test_ligers_head_holds_the_gradient_of_1024_tokens_logits_and_no_logits():
    large = replace(RUN, compute_bytes=2, autocast=True, response_tokens=10**4, liger_head=True)
    (rounded,) = memory.logits(large, is_forward=True)
    assert memory.logits(large, is_forward=False)[1].bytes == 2 * 1024 * 10 and rounded.bytes == 2 * 80
    for kept, gradients_of_head in ((large, 2 + 4), (replace(large, stored_bytes=2, autocast=False), 2)):
        scores = moments(kept, 1)[1]
        whole = [each.bytes for each in scores.amounts if each.label.endswith("gradient of the head")]
        assert sum(whole) == gradients_of_head * 80


def test_a_reference_policy_is_a_second_copy_of_the_weights_and_one_more_scoring():
    with_it = replace(RUN, reference=True)
    assert total(state(with_it)) - total(state(RUN)) == 4 * PARAMETERS
    assert gradients(with_it) == gradients(RUN)
    assert total(state(replace(SHARDED, reference=True))) - total(state(SHARDED)) == PARAMETERS
    adapted = replace(RUN, lora=LoraShape(2, ("q_proj",)))
    assert state(replace(adapted, reference=True)) == state(adapted), "adapters are left out"
    work = work_of_update(with_it, 8)
    assert work.reference == 8 * forward_flops(RUN, 8) / 2 and work_of_update(RUN, 8).reference == 0


def test_a_head_for_log_z_is_trained_with_the_policy():
    head = 2 * (8 * 8 + 8 + 16) + 8 + 1  # linear layers with bias, norms with bias
    with_it = replace(RUN, log_z=True)
    assert total(state(with_it)) - total(state(RUN)) == (4 + 8) * head
    assert total(gradients(with_it)) - total(gradients(RUN)) == 4 * head
    adapted = replace(RUN, lora=LoraShape(2, ("q_proj",)))
    assert total(state(replace(adapted, log_z=True))) - total(state(adapted)) == (4 + 8) * head
