"""Rules about ranks and the rollout engine: what they share, and what the model can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.targets import UNREADABLE
from bapo_lightning.errors import DataError
from bapo_lightning.modules.policy.folder import model_config
from bapo_lightning.modules.policy.options import FLASH

ROUNDING = 0.01  # nats by which a pass in 16 bits differs from one in 32, and more on larger models

# Where one rank's engine is several already: how it is chosen, and what every rank would have.
SEVERAL = {"server": ("rollout=vllm_server", "servers"), "fleet": ("rollout=ray", "a fleet")}


@runtime_checkable
class RankLauncher(Protocol):
    """Starts the ranks of a run elsewhere than on this machine."""

    def run_problems(self, config: RunConfig) -> Iterator[str]:
        """Yields what of the run cannot be with these ranks."""
        ...

    def launch(self, config: RunConfig, arguments: Sequence[str]) -> int:
        """Trains in ranks with these arguments of the command; returns the exit code of the run."""
        ...


def rank_launcher(config: RunConfig) -> RankLauncher | None:
    """What starts the ranks; None: the run itself, or what started this process."""
    made: RankLauncher | None = config.ranks.make(RankLauncher) if config.ranks is not None else None
    return made


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
    """A proof of a sync that allows for less than the trainer's own rounding would fail on the first one."""
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
    if config.model.attention in FLASH and dtype == "float32":
        yield (
            f"model.attention={config.model.attention} computes in 16 bits, the update in float32; write "
            "trainer.precision=bf16-mixed, which keeps float32 weights"
        )


def _parallel_problems(config: RunConfig) -> Iterator[str]:
    ranks, size = config.num_ranks, config.rollout.tensor_parallel_size
    if getattr(config.rollout.engine.object, "shares_gpu", False) and ranks % size:
        yield (
            f"rollout.engine.options.tensor_parallel_size={size} does not divide {ranks} "
            f"rank{'s' * (ranks > 1)}, whose GPUs vLLM shares; write a number that does, strategy=fsdp with "
            f"trainer.devices={size}, or rollout=vllm_child with GPUs of its own in "
            "rollout.engine.visible_gpus"
        )


def _placement_problems(config: RunConfig) -> Iterator[str]:
    placement, engine, ranks = config.rollout.placement, config.rollout.engine, config.num_ranks
    shares_gpu = getattr(engine.object, "shares_gpu", False)
    own = SEVERAL.get(getattr(engine.object, "runs_in", ""))
    if own and placement == "each":
        yield (
            f"rollout.placement=each with {own[0]}: each of {ranks} ranks would have {own[1]}; write "
            "rollout.placement=controller"
        )
    if shares_gpu and placement == "controller":
        yield (
            "rollout.placement=controller with rollout=vllm: vLLM inside the training processes runs in all "
            "of them together; write rollout.placement=each, or rollout=vllm_child or rollout=vllm_server"
        )
    gpus = engine.options.get("visible_gpus")
    if gpus is not None and placement == "each":
        yield (
            f"rollout.engine.visible_gpus={gpus} with rollout.placement=each is the same for the engines of "
            f"all {ranks} ranks; write null, so that each takes its rank's, or rollout.placement=controller"
        )


def engine_problems(config: RunConfig) -> Iterator[str]:
    """An engine that can sample beside training where it must, and responses that the model can hold."""
    shares_gpu = getattr(config.rollout.engine.object, "shares_gpu", False)
    if config.staleness.async_generation and shares_gpu:
        yield (
            "regime.async_generation=true with rollout=vllm: inside the training process vLLM shares the "
            "random state, the environment and on a GPU the memory with the update, so the two cannot run "
            "at once; write rollout=vllm_child or rollout=vllm_server"
        )
    engines = config.rollout.engine.object, config.rollout.sampling_engine.object
    if config.staleness.is_stream and not all(hasattr(engine, "stream") for engine in engines):
        yield (
            f"regime.stream={config.staleness.stream} with this rollout.engine: its requests cannot come and "
            "go between decoding steps; write regime=async, or rollout=vllm_child, vllm_server, hf_child "
            "or ray"
        )
    yield from _note_problems(config)
    options = config.rollout.sampling_engine.options.get("options") or {}
    rank, own = options.get("lora_rank"), config.model.lora.rank if config.model.lora else None
    if rank is not None and rank != own:
        policy = "no model.lora" if own is None else f"model.lora.rank={own}"
        yield (
            f"rollout.engine.options.lora_rank={rank} with {policy}: vLLM takes the policy's adapters; leave "
            "it out, or write null, which merges them into the weights"
        )
    scale = config.scale
    yield from length_problems(
        config.model.path, scale.max_prompt_tokens, scale.max_new_tokens, scale.max_feedback_tokens
    )


def _note_problems(config: RunConfig) -> Iterator[str]:
    """More tokens to note at each place than the engine says."""
    try:
        most = getattr(config.rollout.sampling_engine.object, "most_noted", 0)
        wanted = config.rollout.top_k or config.noted
    except UNREADABLE:  # told as a target that cannot be imported
        return
    with suppress(OSError, DataError):  # named by the rules about the model's folder, or a hub model
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
    yield f"{cause}, and this rollout.engine tells {most} of them at most; {fix}, or rollout=hf"


def length_problems(
    path: str, max_prompt_tokens: int, max_new_tokens: int, max_feedback_tokens: int
) -> Iterator[str]:
    """Prompt, response and feedback that do not fit into the model's positions. A hub model is left to the
    engine.
    """
    context = max_prompt_tokens + max_feedback_tokens
    try:
        positions = model_config(path).get("max_position_embeddings")
    except (OSError, DataError):  # named by the rules about the model's folder
        return
    feedback = f" and scale.max_feedback_tokens={max_feedback_tokens}" if max_feedback_tokens else ""
    if type(positions) is not int:
        return
    if context >= positions:
        yield (
            f"scale.max_prompt_tokens={max_prompt_tokens}{feedback} leaves no room for a response: the model "
            f"has {positions} positions; write a smaller number"
        )
    elif context + max_new_tokens > positions:
        yield (
            f"scale.max_prompt_tokens={max_prompt_tokens}{feedback} and scale.max_new_tokens="
            f"{max_new_tokens} make {context + max_new_tokens} tokens, the model has {positions} positions; "
            f"write scale.max_new_tokens={positions - context}"
        )
