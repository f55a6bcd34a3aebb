"""Rules about ranks and the rollout engine: what they share, and what the model can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import Lengths, RolloutSection
from bapo_lightning.configuration.targets import UNREADABLE
from bapo_lightning.modules.policy.folder import model_config
from bapo_lightning.modules.policy.options import FLASH, VARLEN
from bapo_lightning.rollout.engine import engine_class
from bapo_lightning.rollout.vllm.options import LENGTHS, VLLMOptions
from bapo_lightning.system.errors import DataError

ROUNDING = 0.01  # nats by which a pass in 16 bits differs from one in 32; more for larger models

# Engines of which one rank has several already: how they are chosen, and what every rank would have.
SEVERAL = {"server": ("rollout=vllm_server", "servers"), "fleet": ("rollout=ray", "a fleet")}


@runtime_checkable
class RankLauncher(Protocol):
    """Starts the ranks of a run somewhere other than on this machine."""

    def run_problems(self, config: RunConfig) -> Iterator[str]:
        """Yields what in the run is impossible with these ranks."""
        ...

    def launch(self, config: RunConfig, arguments: Sequence[str]) -> int:
        """Trains in ranks with these arguments of the command; returns the exit code of the run."""
        ...


def rank_launcher(config: RunConfig) -> RankLauncher | None:
    """The object that starts the ranks; None: the run itself does, or whatever started this process."""
    launcher: RankLauncher | None = config.ranks.make(RankLauncher) if config.ranks is not None else None
    return launcher


def rank_problems(config: RunConfig) -> Iterator[str]:
    """Yields what is wrong with `strategy`, the number of ranks, and the engines that they share."""
    if not config.is_distributed and config.num_ranks > 1:
        yield (
            f"strategy=single with trainer.devices={config.devices} and trainer.num_nodes="
            f"{config.num_nodes}: one process has one device; write strategy=ddp, or strategy=fsdp where "
            "the policy and its optimizer do not fit on one device"
        )
    if config.is_sharded and config.model.lora and not config.strategy.options["sharded_checkpoints"]:
        yield (
            "strategy.sharded_checkpoints=false with model.lora: such a file cannot be read back; write "
            "strategy.sharded_checkpoints=true"
        )
    yield from _precision_problems(config)
    yield from _parallel_problems(config)
    if config.num_ranks > 1:
        yield from _placement_problems(config)
    if (launcher := rank_launcher(config)) is not None:
        yield from launcher.run_problems(config)


def _precision_problems(config: RunConfig) -> Iterator[str]:
    """A sync proof whose tolerance is below the trainer's own rounding would fail at the first sync."""
    tolerance = config.rollout.weight_sync.options.get("tolerance")
    dtype, chosen = config.compute_dtype, f"model.dtype={config.model.dtype}"
    if dtype != config.model.dtype:
        chosen = "trainer.precision=bf16-mixed"
    full = "trainer.precision=32-true" if dtype != config.model.dtype else "model.dtype=float32"
    if dtype != "float32" and isinstance(tolerance, float | int) and tolerance <= ROUNDING:
        yield (
            f"{chosen} with rollout.weight_sync.tolerance={tolerance}: the trainer's rounding alone "
            f"puts engine and trainer about {ROUNDING} nats apart; write "
            f"rollout.weight_sync.tolerance=null, which follows the precision, or {full}"
        )
    if config.model.compile and config.model.attention == "flex_attention":
        yield (
            "model.compile=true with model.attention=flex_attention: torch cannot compile layers around flex "
            "attention (pytorch issue 167116); write model.compile=false, or model.attention=sdpa"
        )
    if config.model.liger is True and config.model.activation_checkpointing == "selective":
        yield (
            "model.liger=true writes into results of products, which "
            "model.activation_checkpointing=selective keeps; write model.liger=auto, or "
            "model.activation_checkpointing=true"
        )
    if config.model.attention == VARLEN and config.model.packing != "padding_free":
        yield (
            "model.attention=varlen takes rows without padding; write model.packing=padding_free, or "
            "model.attention=sdpa"
        )
    if config.model.head == "liger" and dtype == "float32":
        yield (
            "model.head=liger multiplies bfloat16 factors, the update computes in float32; write "
            "trainer.precision=bf16-mixed, which keeps float32 weights, or model.head=own"
        )
    if config.model.head == "liger" and config.num_candidates:
        yield (
            "model.head=liger scores sampled tokens alone, and rollout.top_p, rollout.top_k or the algorithm "
            "of this run needs log-probs of other tokens as well; write model.head=own"
        )
    if config.model.attention in FLASH and dtype == "float32":
        yield (
            f"model.attention={config.model.attention} computes in 16 bits, the update in float32; write "
            "trainer.precision=bf16-mixed, which keeps float32 weights"
        )


def _parallel_problems(config: RunConfig) -> Iterator[str]:
    ranks, size = config.num_ranks, config.rollout.tensor_parallel_size
    if engine_class(config.rollout.engine.object).shares_gpu and ranks % size:
        yield (
            f"rollout.engine.options.tensor_parallel_size={size} does not divide {ranks} "
            f"rank{'s' * (ranks > 1)}, whose GPUs vLLM shares; write a number that does, strategy=fsdp with "
            f"trainer.devices={size}, or rollout=vllm_child with separate GPUs in "
            "rollout.engine.visible_gpus"
        )


def _placement_problems(config: RunConfig) -> Iterator[str]:
    placement, ranks = config.rollout.placement, config.num_ranks
    engine = engine_class(config.rollout.engine.object)
    several = SEVERAL.get(engine.runs_in)
    if several and placement == "each":
        yield (
            f"rollout.placement=each with {several[0]}: each of {ranks} ranks would have {several[1]}; write "
            "rollout.placement=controller"
        )
    if engine.shares_gpu and placement == "controller":
        yield (
            "rollout.placement=controller with rollout=vllm: vLLM inside the training processes runs in all "
            "of them together; write rollout.placement=each, or rollout=vllm_child or rollout=vllm_server"
        )
    gpus = config.rollout.engine.options.get("visible_gpus")
    if gpus is not None and placement == "each":
        yield (
            f"rollout.engine.visible_gpus={gpus} with rollout.placement=each is the same for the engines of "
            f"all {ranks} ranks; write null, so that each takes its rank's, or rollout.placement=controller"
        )


def engine_problems(config: RunConfig) -> Iterator[str]:
    """Requires an engine that can sample during training if it must, and responses that fit the model."""
    rollout = config.rollout
    engines = [engine_class(each.object) for each in (rollout.engine, rollout.sampling_engine)]
    if config.staleness.async_generation and engines[0].shares_gpu:
        yield (
            "regime.async_generation=true with rollout=vllm: inside the training process vLLM shares the "
            "random state, the environment and on a GPU the memory with the update, so the two cannot run "
            "at once; write rollout=vllm_child or rollout=vllm_server"
        )
    if config.staleness.is_stream and not all(engine.streams for engine in engines):
        yield (
            f"regime.stream={config.staleness.stream} with this rollout.engine: its requests cannot come and "
            "go between decoding steps; write regime=async, or rollout=vllm_child, vllm_server, hf_child "
            "or ray"
        )
    yield from _note_problems(config)
    yield from sampling_problems(config.rollout)
    options = config.rollout.sampling_engine.options.get("options") or {}
    rank, model_rank = options.get("lora_rank"), config.model.lora.rank if config.model.lora else None
    if rank is not None and rank != model_rank:
        policy = "no model.lora" if model_rank is None else f"model.lora.rank={model_rank}"
        yield (
            f"rollout.engine.options.lora_rank={rank} with {policy}: vLLM takes the policy's adapters; leave "
            "it out, or write null, which merges them into the weights"
        )
    yield from length_problems(config.model.path, config.scale)


def sampling_problems(rollout: RolloutSection) -> Iterator[str]:
    """A temperature that the engine cannot sample at, and probes of a sync that do not fit into vLLM."""
    try:
        lowest, highest = engine_class(rollout.sampling_engine.object).temperatures
        given, probe = rollout.sampling_engine.options.get("options"), rollout.weight_sync.options
    except UNREADABLE:  # reported as a target that cannot be imported
        return
    if rollout.temperature > 0 and not lowest <= rollout.temperature <= highest:
        yield (
            f"rollout.temperature={rollout.temperature:g}: this rollout.engine samples at {lowest:g} to "
            f"{highest:g}; write a temperature in this range, or rollout=hf"
        )
    if isinstance(given, Mapping) and "max_model_len" in given:
        room = VLLMOptions(**{name: given[name] for name in LENGTHS if name in given}).context_length
        lengths = {name: probe.get(name, 0) for name in ("probe_tokens", "sampled_tokens")}
        if (needed := sum(lengths.values())) > room:
            keys = " and ".join(f"rollout.weight_sync.{name}={value}" for name, value in lengths.items())
            yield (
                f"{keys} make {needed} tokens, and vLLM is started for {room} (max_model_len in the options "
                f"of rollout.engine); write smaller ones, or max_model_len={needed}"
            )


def _note_problems(config: RunConfig) -> Iterator[str]:
    """More candidates per position than the engine reports."""
    try:
        most = engine_class(config.rollout.sampling_engine.object).most_candidates
        wanted = config.rollout.top_k or config.num_candidates
    except UNREADABLE:  # reported as a target that cannot be imported
        return
    with suppress(OSError, DataError):  # reported by the rules about the model's folder, or a hub model
        vocabulary = model_config(config.model.path).get("vocab_size")
        wanted = min(wanted, vocabulary) if isinstance(vocabulary, int) else wanted
    if wanted <= most:
        return
    if config.rollout.is_cut:
        given = f"rollout.top_p={config.rollout.top_p:g} rollout.top_k={config.rollout.top_k}"
        cause = f"{given}: training needs all tokens that could have been sampled, at each place"
        fix = f"write rollout.top_k=20, or any number up to {most}"
    else:
        cause = f"algorithm={config.algorithm.name} reads log-probs of tokens that were not sampled"
        fix = f"write algorithm.objective.head=32, or any number up to {most}"
    if not most:
        fix = "write another one"
    yield f"{cause}, and this rollout.engine reports at most {most} of them; {fix}, or rollout=hf"


def length_problems(path: str, scale: Lengths) -> Iterator[str]:
    """Texts that do not fit into the model's positions. A hub model is left to the engine."""
    response, feedback = scale.max_new_tokens, scale.max_feedback_tokens
    context = scale.max_prompt_tokens + feedback
    try:
        positions = model_config(path).get("max_position_embeddings")
    except (OSError, DataError):  # reported by the rules about the model's folder
        return
    given = f"scale.max_prompt_tokens={scale.max_prompt_tokens}"
    given += f" and scale.max_feedback_tokens={feedback}" if feedback else ""
    if type(positions) is not int:
        return
    if context >= positions:
        yield (
            f"{given} leaves no room for a response: the model has {positions} positions; write a smaller "
            "number"
        )
    elif context + response > positions:
        yield (
            f"{given} and scale.max_new_tokens={response} make {context + response} tokens, the model has "
            f"{positions} positions; write scale.max_new_tokens={positions - context}"
        )
