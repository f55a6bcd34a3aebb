"""Checks of one small random model, for `families.py`: each gives "yes", or why not."""

from __future__ import annotations

import json
import re
import shutil
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from bapo_lightning.data.batches.model_input import model_input
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import GenerationRequest, RolloutEngine, SamplingParams, Wanted
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.vllm.options import reason_of
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.errors import ConfigError, DataError, EngineError
from bapo_lightning.tools.export.model_folder import write_model_folder
from bapo_lightning.types import FinishReason, Rollout, Segment

VOCAB, TOLERANCE = 64, 1e-3
TOKENIZER = Path(model_path("package://bapo_lightning/tiny_worlds/additions/model"))
# Of each configuration those that it has. Heads of 32 are the smallest that vLLM's kernels for CPUs take.
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128,
    "ffn_dim": 64, "word_embed_proj_dim": 64, "n_inner": 64, "rotary_dim": 32, "ffn_hidden_size": 64,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": 8, "dropout": 0.0,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 64,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "moe_layer_start_index": 1,
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB, "global_head_dim": 32,
    "num_global_key_value_heads": 2, "num_kv_shared_layers": 0, "intermediate_size_mlp": 64,
    "layers_block_type": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1,
}  # fmt: skip
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}  # the only sizes that vLLM has for a CPU
ONE_OF: dict[str, dict[str, Any]] = {
    "dots1": {"n_shared_experts": 1},
    # What vLLM reads in published files, and transformers' configurations do not have or have otherwise.
    "deepseek_v2": {**LATENT},
    "deepseek_v3": {**LATENT, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "lfm2": {"block_dim": 64, "conv_dim": 64, "layer_types": ["conv", "full_attention"]},
    "minimax_m2": {"rotary_dim": 16, "scoring_func": "sigmoid", "use_routing_bias": True},
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
    "gpt_bigcode": {"num_key_value_heads": 1},
    "glm4_moe": {"head_dim": 32},
    "falcon": {"ffn_hidden_size": 256},  # of which vLLM takes no other
    "gemma4_text": {"num_experts": None},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 8},
}


def make(family: str, folder: Path) -> Path:
    """Saves a model whose tokens depend on all before them, with a tokenizer; returns its folder."""
    default = AutoConfig.for_model(family)
    settable = [name for name in SIZES if not is_fixed(default, name) and hasattr(default, name)]
    sizes = {name: SIZES[name] for name in settable}
    if "qk_rope_head_dim" in sizes:  # of which the head's size is made
        sizes.pop("head_dim", None)
    config = AutoConfig.for_model(family, **{**sizes, **ONE_OF.get(family, {})})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "norm" not in name:
                parameter.mul_(4.0)
        for name, buffer in model.named_buffers():  # values that a config alone does not give
            if name in model.state_dict() and buffer.is_floating_point() and "act_fn" not in name:
                buffer.add_(0.1 * torch.randn(buffer.shape))
    model.save_pretrained(folder)
    for file in TOKENIZER.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def is_fixed(config: Any, name: str) -> bool:
    """Whether a value of a configuration follows from others."""
    member = getattr(type(config), name, None)
    return (isinstance(member, property) and member.fset is None) or (
        config.model_type == "gemma4_text" and name == "head_dim"
    )


def rollouts() -> list[Rollout]:
    """Two responses to one prompt."""
    responses = [array("i", range(20, 32)), array("i", [3, 50, 7, 9])]
    segments = [Segment(each, array("f", [-1.0] * len(each)), 0) for each in responses]
    return [Rollout(array("i", [5, 6, 7, 8]), (each,), FinishReason.STOP) for each in segments]


def update(policy: Policy) -> Policy:
    """One step of Adam. Raises ValueError unless it is finite and changes weights."""
    trained = policy.trained_parameters()
    before = [each.detach().clone() for each in trained]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for _ in range(2):  # at first the second factor of an adapter alone has a gradient
        optimizer.zero_grad()
        logp = policy(model_input(rollouts(), torch.device("cpu"), policy.layout))[0]
        assert logp is not None
        logp.sum().backward()
        optimizer.step()
    if not all(bool(each.isfinite().all()) for each in trained):
        raise ValueError("weights are not finite after an update")
    if not any(bool((new != old).any()) for new, old in zip(trained, before, strict=True)):
        raise ValueError("an update changed no weight")
    return policy


def synced(policy: Policy, engine: RolloutEngine) -> str:
    """Raises EngineError unless the proof of a sync holds, and ValueError unless longer samples agree too."""
    WeightSync(tolerance=TOLERANCE).push(policy, engine, 1, VOCAB)
    prompts = [array("i", range(5, 5 + length)) for length in (3, 12, 3, 20)]
    requests = [GenerationRequest(prompt, 16, seed) for seed, prompt in enumerate(prompts)]
    answers = engine.generate(requests, SamplingParams(1.0, ()))
    sampled = [Rollout(p, (one.segment,), one.finish) for p, one in zip(prompts, answers, strict=True)]
    scored = policy.response_logprobs(sampled, 1000)
    worst = max(
        abs(a - b)
        for rollout, scores in zip(sampled, scored, strict=True)
        for a, b in zip(rollout.logprobs, scores, strict=True)
    )
    if worst > TOLERANCE:
        raise ValueError(f"engine and trainer differ by {worst:.3g} nats")
    return "yes" if worst < TOLERANCE / 10 else f"yes, but {worst:.1g} nats apart"


def exported(policy: Policy, folder: Path, target: Path) -> Path:
    """Exports, and raises ValueError unless transformers loads an equal model of equal names."""
    weights = policy.named_weights(Wanted(dtype="float32", names="files"))
    write_model_folder(target, str(folder), weights, "card", torch.float32)
    loaded = AutoModelForCausalLM.from_pretrained(target)
    loaded.save_pretrained(target.with_name("again"))
    if names_in(target) != (expected := names_in(target.with_name("again"))):
        raise ValueError(f"names differ from save_pretrained's: {sorted(names_in(target) ^ expected)[:3]}")
    if names_in(target) != names_in(folder):
        raise ValueError(f"names differ from the model's: {sorted(names_in(target) ^ names_in(folder))[:3]}")
    if (worst := float((logits(loaded) - logits(policy.model)).abs().max())) > 1e-4:
        raise ValueError(f"logits of the export differ by {worst:.3g}")
    return target


def names_in(folder: Path) -> set[str]:
    """Names and shapes of the weights of a model folder."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {f"{name} {file.get_slice(name).get_shape()}" for name in file.keys()}  # noqa: SIM118


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    """Logits of a fixed row."""
    return model(torch.arange(3, 23)[None], use_cache=False).logits


def policy_of(folder: Path, **options: Any) -> Policy:
    """The policy after an update."""
    return update(build_policy(ModelOptions(str(folder), **options), 1.0))


def with_adapters(folder: Path) -> None:
    """LoRA: trains, is merged into an engine and into an export, with the targets that a refusal names."""
    try:
        policy = policy_of(folder, lora=LoraOptions(4, 8))
    except ConfigError as error:
        if named := SUGGESTED.search(str(error)):
            policy_of(folder, lora=LoraOptions(4, 8, tuple(named[1].split(","))))
        raise
    exported(policy, folder, folder.with_name("adapted"))
    try:
        engine = HFEngine(str(folder), device="cpu")
    except ConfigError:  # shown in its own column
        return
    synced(policy, engine)


def in_vllm(folder: Path) -> str:
    """The sync of `rollout=vllm`."""
    from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
    from bapo_lightning.rollout.vllm.options import VLLMOptions

    options = VLLMOptions(max_prompt_tokens=20, max_new_tokens=16, kv_cache_bytes=1 << 26, max_num_seqs=8)
    engine = VLLMLocalEngine(str(folder), options)
    try:
        return synced(policy_of(folder), engine)
    except EngineError as error:
        if "vLLM could not be started" in str(error):
            raise vllm_lacks(reason_of(error.__cause__)) from None
        raise
    finally:
        engine.close()


def vllm_lacks(reason: str) -> ConfigError:
    """What vLLM itself does not have, here or anywhere."""
    # Kernels; and a package that does not go with torch for CPUs, so that `make setup-vllm` leaves it out.
    is_of_cpus = any(mark in reason.lower() for mark in ("cpu", "'_c'", "torchvision"))
    return ConfigError([f"not {'on a CPU' if is_of_cpus else 'in vLLM'}: {reason}"])


def reloaded_in_vllm(folder: Path) -> None:
    """Log-probs of the export by vLLM's own loader, before anything of `rollout.vllm` changes vLLM."""
    from vllm import LLM
    from vllm import SamplingParams as Sampling

    from bapo_lightning.rollout.vllm.containment import transformers_classes_kept

    policy = policy_of(folder)
    target = exported(policy, folder, folder.with_name("out"))
    sizes = {"max_model_len": 64, "max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 26}
    sampling = Sampling(seed=0, max_tokens=16, ignore_eos=True, detokenize=False, logprobs=0)
    prompt = list(range(5, 17))
    try:
        with transformers_classes_kept(eager=True):
            llm = LLM(str(target), dtype="float32", enforce_eager=True, **sizes)
        (answer,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    except Exception as error:  # noqa: BLE001: whatever vLLM raises without us
        raise vllm_lacks(reason_of(error)) from None
    output = answer.outputs[0]
    tokens = torch.tensor([[*prompt, *output.token_ids]])
    with torch.no_grad():
        logprobs = policy.model(tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    pairs = zip(output.token_ids, output.logprobs, logprobs, strict=True)
    worst = max(abs(held[token].logprob - float(row[token])) for token, held, row in pairs)
    if worst > 2 * TOLERANCE:
        raise ConfigError([f"not on a CPU: log-probs of vLLM itself are wrong by {worst:.1g} nats"])


SUGGESTED = re.compile(r"write model\.lora\.target_modules=\[(.*?)\]")
CHECKS: dict[str, Callable[[Path], Any]] = {
    "trains": policy_of,
    "samples (hf)": lambda folder: synced(policy_of(folder), HFEngine(str(folder), device="cpu")),
    "LoRA": with_adapters,
    "exports": lambda folder: exported(policy_of(folder), folder, folder.with_name("out")),
    "samples (vLLM)": in_vllm,
    "export in vLLM": reloaded_in_vllm,
}


def load_vllm() -> None:
    """Imports vLLM and its worker, which rows then share."""
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm import LLM  # noqa: F401
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()  # which would import all of it again


VLLM_COLUMNS = ("export in vLLM", "samples (vLLM)")
COLUMNS = tuple(name for name in CHECKS if name not in VLLM_COLUMNS)


def checked(family: str, columns: Sequence[str], folder: Path) -> dict[str, str]:
    """Cells of a family."""
    cells = {}
    try:
        make(family, folder / "made")
    except Exception as error:  # noqa: BLE001: the result is what is asked for
        return dict.fromkeys(columns, f"fault: cannot be made ({one_line(error)})")
    for name in columns:
        place = folder / name.replace(" ", "_")
        shutil.copytree(folder / "made", place / "made")
        try:
            said = CHECKS[name](place / "made")
            cells[name] = said if isinstance(said, str) else "yes"
        except (ConfigError, DataError) as error:
            problems = getattr(error, "problems", None) or [str(error)]
            cells[name] = " ".join(problems).replace(str(place / "made"), "FOLDER")
        except Exception as error:
            cells[name] = f"fault: {type(error).__name__}: {one_line(error)}".replace(str(place), "")
    return json.loads(json.dumps(cells))


def one_line(error: Exception) -> str:
    """The first 200 characters of an error, in one line."""
    return " ".join(str(error).split())[:200]
