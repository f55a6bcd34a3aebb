"""Packed sequences are scored as if each stood alone, on every family of models."""

import inspect
import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.attention.varlen
from tests.builders import group, rollout
from tests.modules.policy.families import FAMILIES, family_folder
from transformers import AutoConfig, modeling_flash_attention_utils
from transformers.integrations import hub_kernels

from bapo_lightning.data.batches.batch import collate
from bapo_lightning.data.batches.model_input import Layout, model_input
from bapo_lightning.modules.policy import factory
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import FLASH, FLASH_HUB, VARLEN, ModelOptions
from bapo_lightning.modules.policy.packing import has_varlen, row_arguments
from bapo_lightning.system import precision
from bapo_lightning.system.errors import ConfigError

CPU = torch.device("cpu")
LENGTHS = [(3, 9), (1, 1), (4, 14), (2, 5), (6, 11)]  # prompt and response


def rollouts(seed=0):
    generator = random.Random(seed)
    draw = lambda length: [generator.randrange(24) for _ in range(length)]  # noqa: E731
    return [rollout(draw(prompt), draw(response), [-1.0] * response) for prompt, response in LENGTHS]


def policies(family, folder, **options):
    path, kinds = family_folder(family, folder), ("none", "padding_free")
    return [build_policy(ModelOptions(path, packing=kind, **options), 0.8) for kind in kinds]


def batch_of(samples, oldest=None):
    advantages = [1.0, -2.0, 0.5, 3.0, -1.0, 2.0][: len(samples)]
    return collate([group("p", samples, [1.0] * len(samples), advantages)], {}, oldest)


def loss_and_gradients(policy, batch, budget):
    """Loss, and gradient of every weight, over the micro-batches of a token budget."""
    policy.zero_grad()
    total = 0.0
    for micro_batch in batch.split(budget, batch.response_mask / batch.num_tokens, policy.layout):
        logp, _ = policy(micro_batch)
        loss = -(micro_batch.weight * micro_batch.advantage * (logp - micro_batch.behaviour_logp).exp()).sum()
        loss.backward()
        total += loss.item()
    return total, {name: parameter.grad.clone() for name, parameter in policy.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_changing_one_packed_sequence_changes_no_score_of_another(family, tmp_path):
    _, packed = policies(family, tmp_path)
    samples, others = rollouts(), rollouts(seed=1)
    with torch.no_grad():
        before = packed(model_input(samples, CPU, packed.layout))
        after = packed(model_input([*samples[:2], others[2], *samples[3:]], CPU, packed.layout))
    responses = [response for _, response in LENGTHS]
    for old, new in zip(before, after, strict=True):
        for index, (left, right) in enumerate(zip(old.split(responses), new.split(responses), strict=True)):
            assert torch.equal(left, right) == (index != 2), index


def test_a_packed_micro_batch_is_one_row_without_padding():
    batch = batch_of(rollouts())
    (micro_batch,) = batch.split(1000, batch.response_mask.float(), Layout.PACKED)
    assert micro_batch.packed_lengths == (12, 2, 18, 7, 17)
    assert micro_batch.input_ids.shape == (1, 56)
    assert micro_batch.input_ids[0, 14:32].tolist() == batch.input_ids[2, :18].tolist()
    assert micro_batch.index[:10].tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 10, 12]
    assert micro_batch.targets[9].item() == micro_batch.input_ids[0, 13].item()


@pytest.mark.parametrize("flash", FLASH)
def test_positions_restart_with_every_sequence_and_the_kernel_gets_their_boundaries(flash):
    samples = [rollout([1, 2], [3], [-1.0]), rollout([4], [5, 6, 7], [-1.0] * 3)]
    inputs = model_input(samples, CPU, Layout.PACKED)
    arguments = row_arguments(inputs, flash)
    assert arguments["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert arguments["cu_seq_lens_q"].tolist() == arguments["cu_seq_lens_k"].tolist() == [0, 3, 7]
    assert arguments["cu_seq_lens_q"].dtype == torch.int32
    assert (arguments["max_length_q"], arguments["max_length_k"]) == (4, 4)
    assert list(row_arguments(inputs, "flex_attention")) == ["position_ids"]
    assert row_arguments(model_input(samples, CPU), "sdpa") == {}


def siblings():
    """Three groups: of three responses, of one, and of two whose prompt begins like the first one's.
    Some responses have one token.
    """
    prompts = [[5, 6, 7], [5, 6, 7], [9], [5, 6, 7], [5, 6], [5, 6]]
    answers = [[1, 2, 3, 4], [8], [3, 3], [1, 2, 9], [7, 1, 2], list(range(20))]
    pairs = zip(prompts, answers, strict=True)
    return [rollout(prompt, answer, [-1.0] * len(answer)) for prompt, answer in pairs]


def test_a_shared_prompt_stands_once_and_last_tokens_not_at_all():
    inputs = model_input(siblings(), CPU, Layout.SHARED)
    first = [5, 6, 7, 1, 2, 3, 9, 3, 1, 2]
    assert inputs.input_ids.tolist() == [[*first, 5, 6, 7, 1, *range(19)]]
    assert inputs.index[:10].tolist() == [2, 3, 4, 5, 2, 6, 7, 2, 8, 9]
    assert inputs.targets[:10].tolist() == [1, 2, 3, 4, 8, 3, 3, 1, 2, 9]
    positions = row_arguments(inputs, "packed_sdpa")["position_ids"]
    assert positions[0, :14].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 3, 4, 0, 1, 2, 3]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("budget", "oldest"), [(25, None), (1000, None), (1000, 1)])
def test_responses_to_a_shared_prompt_have_the_gradients_of_lone_ones(family, budget, oldest, tmp_path):
    padded, packed = policies(family, tmp_path)
    samples, (first, rest) = siblings(), (rollout([], ids, [-1.0] * len(ids)) for ids in ([1], [2, 9]))
    resumed = (*first.segments, replace(rest.segments[0], version=1))
    samples[3] = replace(samples[3], segments=resumed)
    batch = batch_of(samples if oldest is None else samples[3:4], oldest)
    loss, expected = loss_and_gradients(padded, batch, budget)
    shared_loss, found = loss_and_gradients(packed, batch, budget)
    assert shared_loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-7, name


@pytest.mark.parametrize("number", [0, 1])  # padded, packed
def test_kernels_that_need_whole_heads_get_them_and_give_the_same_gradients(number, tmp_path, monkeypatch):
    policy, batch = policies("qwen2", tmp_path)[number], batch_of(rollouts())
    loss, expected = loss_and_gradients(policy, batch, 1000)
    asked, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def note(query, key, value, **options):
        asked.append((query.shape[1], key.shape[1], value.shape[1], options.get("enable_gqa", False)))
        return kernel(query, key, value, **options)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", note)
    monkeypatch.setattr(precision, "needs_whole_heads", lambda states: states.dtype is torch.float32)
    whole_loss, found = loss_and_gradients(policy, batch, 1000)
    assert set(asked) == {(4, 4, 4, False)}
    assert whole_loss == pytest.approx(loss, rel=1e-6)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-6 * gradient.norm() + 1e-8, name


def varlen_attention(calls):
    """What flash-attn's kernel for sequences of varying length computes, in plain torch."""

    def attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        softmax_scale=None, causal=False, window_size=(-1, -1),
    ):  # fmt: skip
        calls.append((cu_seqlens_q.tolist(), max_seqlen_q, window_size))
        assert causal and torch.equal(cu_seqlens_q, cu_seqlens_k) and max_seqlen_q == max_seqlen_k
        parts = []
        for start, end in itertools.pairwise(cu_seqlens_q.tolist()):
            mask = torch.ones(end - start, end - start, dtype=torch.bool).tril()
            if window_size[0] >= 0:
                mask = mask.triu(-window_size[0])
            one = [tensor[None, start:end].transpose(1, 2) for tensor in (q, k, v)]
            options = {"attn_mask": mask, "scale": softmax_scale, "enable_gqa": True}
            out = torch.nn.functional.scaled_dot_product_attention(*one, **options)
            parts.append(out[0].transpose(0, 1))
        return torch.cat(parts)

    return attend


def torch_varlen(calls):
    """The same with the arguments of torch's function, whose signature checks them where torch has it."""
    attend, own = varlen_attention(calls), has_varlen()
    signature = inspect.signature(torch.nn.attention.varlen.varlen_attn)

    def attend_as_torch(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa):
        rest = {"scale": scale, "window_size": window_size, "enable_gqa": enable_gqa}
        assert not own or signature.bind(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, **rest)
        assert enable_gqa == (q.shape[1] != k.shape[1]) and q.dtype == k.dtype
        lengths = cu_seq_q, cu_seq_k, max_q, max_k
        return attend(q, k, v, *lengths, scale, causal=True, window_size=window_size)

    return attend_as_torch


@pytest.fixture
def kernels_hub(monkeypatch):
    """Function that lets the kernels hub answer as it is told, a module or an error."""
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    asked = []
    monkeypatch.setattr(factory, "stay_offline_without_hub", lambda: asked.append(True))

    def answer(found):
        def get_kernel(repo_id, **_):
            assert repo_id == FLASH_HUB and asked  # a hub that does not answer is not waited for
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(hub_kernels, "get_kernel", get_kernel)

    return answer


@pytest.mark.parametrize("family", ["qwen2_windowed", "qwen3"])
@pytest.mark.parametrize("flash", FLASH)
def test_flash_attention_gets_the_boundaries_of_sequences_in_every_layer(
    flash, family, tmp_path, monkeypatch, kernels_hub
):
    calls = []
    if flash == FLASH_HUB:
        kernels_hub(SimpleNamespace(flash_attn_varlen_func=varlen_attention(calls)))
        padded, _ = policies(family, tmp_path)
        packed = build_policy(ModelOptions(str(tmp_path), packing="padding_free", attention=flash), 0.8)
    elif flash == VARLEN:
        monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", torch_varlen(calls))
        padded, _ = policies(family, tmp_path)
        packed = build_policy(ModelOptions(str(tmp_path), packing="padding_free", attention=flash), 0.8)
    else:
        found = (None, varlen_attention(calls), None, None, None)
        monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", lambda *_, **__: found)
        padded, packed = policies(family, tmp_path)
        packed.model.config._attn_implementation = flash  # from_pretrained asks for the package
        packed.layout = Layout.PACKED
    assert (packed.model.config._attn_implementation, packed.layout) == (flash, Layout.PACKED)
    with torch.no_grad():
        expected = padded(model_input(rollouts(), CPU))
        found = packed(model_input(rollouts(), CPU, packed.layout))
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-6)
    assert [call[:2] for call in calls] == [([0, 12, 14, 32, 39, 56], 18)] * 2
    ahead = 0 if flash == VARLEN else -1  # torch asks for a causal mask by the window alone
    window = (4, 0 if flash == VARLEN else 4) if family == "qwen2_windowed" else (-1, ahead)
    assert [call[2] for call in calls] == [(-1, ahead), window]


@pytest.mark.parametrize(("error", "on_meta"), [
    (FileNotFoundError("Cannot find a build variant for this system:\n\ntorch29"), False),
    (ValueError("Version 3 of it is not available in the local cache"), False),
    (ImportError("no such library"), True),
], ids=["no build", "offline", "not loaded"])  # fmt: skip
def test_a_kernel_that_the_hub_does_not_give_is_no_fault_of_the_model(error, on_meta, kernels_hub, tmp_path):
    kernels_hub(error)
    options = ModelOptions(family_folder("llama", tmp_path), attention=FLASH_HUB)
    with pytest.raises(ConfigError) as refused:
        build_policy(options, 1.0, on_meta=on_meta)
    (problem,) = refused.value.problems
    assert problem.startswith(f"model.attention={FLASH_HUB} could not be loaded (")
    assert str(error).partition(":")[0] in problem and problem.endswith("); write model.attention=sdpa")


@pytest.mark.parametrize(("change", "message"), [
    ({"layer_types": ["linear_attention", "full_attention"]}, "layers of type linear_attention"),
    ({"attn_temperature_tuning": True}, "scales attention by the place in the row"),
])  # fmt: skip
def test_models_in_which_sequences_would_mix_are_refused(change, message, tmp_path):
    path = family_folder("qwen2", tmp_path)
    config = AutoConfig.from_pretrained(path)
    for name, value in change.items():
        setattr(config, name, value)
    config.save_pretrained(path)
    with pytest.raises(ConfigError, match=message):
        build_policy(ModelOptions(path, packing="padding_free"), 1.0, on_meta=True)
