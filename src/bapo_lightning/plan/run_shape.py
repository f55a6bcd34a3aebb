"""The part of a run's configuration that decides its memory, work and time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from bapo_lightning.plan.model_shape import ModelShape
from bapo_lightning.system.chunks import CHUNK_ELEMENTS

SCORE_BYTES = 4  # norms' inputs, log-sum-exps and logits are float32 whatever the model computes in
Placement = Literal["asleep", "beside", "apart"]


@dataclass(frozen=True)
class EngineShape:
    """GPUs and sizes of the rollout engine."""

    # On the trainer's GPUs, freed during training (asleep) or not (beside), or on separate GPUs (apart).
    placement: Placement
    tensor_parallel: int  # GPUs that hold one copy of the weights together
    num_gpus: int
    element_bytes: int  # of weights and key-value cache
    memory_share: float | None  # share of a GPU's memory that it uses; None: only its weights and its cache
    max_sequences: int  # in one step of one copy

    @property
    def num_copies(self) -> int:
        """Number of copies of the model that sample at the same time."""
        return max(1, self.num_gpus // self.tensor_parallel)


@dataclass(frozen=True)
class LoraShape:
    """Low-rank adapters (arXiv 2106.09685) of some matrices of every block."""

    rank: int
    targets: tuple[str, ...]

    def parameters(self, model: ModelShape) -> int:
        """Returns the number of weights of all adapters."""
        shapes = model.linear_shapes
        return model.num_layers * sum(self.rank * sum(shapes[name]) for name in self.targets)


@dataclass(frozen=True)
class RunShape:
    """One run, in the form that the formulas need."""

    model: ModelShape
    strategy: Literal["single", "ddp", "fsdp"]
    num_gpus: int  # ranks of the trainer
    stored_bytes: int  # of an element of weights, gradients and optimizer state
    compute_bytes: int  # of an element of the factors of the blocks' products
    micro_batch_tokens: int
    prompt_tokens: int  # the longest prompt
    response_tokens: int  # the longest response
    prompts_per_batch: int  # in a rollout batch
    group_size: int
    epochs: int
    minibatches: int
    engine: EngineShape
    # bounds are searched in a separate forward pass if an update has several micro-batches
    searches: bool = False
    recomputes: bool = False  # the trainer scores each rollout batch itself when it enters training
    reference: bool = False  # the run's initial weights score each rollout batch as well
    log_z: bool = False  # the policy has a head for log Z
    measure_entropy_every: int = 0  # updates between measurements of entropy_rule/measured_delta; 0: never
    keeps_gradient: bool = False  # a copy of the last update's gradient, for gradient/cosine
    checkpointing: bool | Literal["selective"] = False
    liger: bool = False
    packed_sdpa: bool = False  # one row without padding, for which attention builds grids
    # blocks whose weights FSDP holds whole at a time: the current and the next one; all if not resharded
    gathered_layers: int = 2
    # FSDP sums them over ranks once per update; until then each rank holds all of its gradients in float32
    whole_gradients: bool = False
    autocast: bool = False  # products round float32 weights and hidden states, each separately
    offload: bool = False  # weights, gradients and optimizer state stay in the host's memory
    lora: LoraShape | None = None
    fused_step: bool = True  # the optimizer's step is one kernel without temporaries
    on_gpu: bool = True  # False: kernels of a CPU, to compare with measurements
    chunk_elements: int = CHUNK_ELEMENTS  # logits of the token scores' longest chunk
    liger_head: bool = False  # token scores by Liger's kernel

    @property
    def shards(self) -> int:
        """Number of ranks that share one copy of the training state."""
        return self.num_gpus if self.strategy == "fsdp" else 1

    @property
    def hidden_bytes(self) -> int:
        """Bytes of an element of the hidden states between blocks, and of the weights' gradients."""
        return SCORE_BYTES if self.autocast else self.compute_bytes

    @property
    def attention_bytes(self) -> int:
        """Bytes of an element of queries, keys, values: a CPU's packed attention takes float32 ones."""
        return self.hidden_bytes if self.packed_sdpa and not self.on_gpu else self.compute_bytes

    @property
    def rounds_head(self) -> bool:
        """Whether the token scores' products have 16-bit factors, and float32 results."""
        return self.compute_bytes < SCORE_BYTES and (self.on_gpu or not self.autocast)

    @property
    def trained_bytes(self) -> int:
        """Bytes of an element of what is trained: adapters are float32 next to weights of any precision."""
        return self.stored_bytes if self.lora is None else 4

    @property
    def trainable_parameters(self) -> int:
        """Number of weights that have a gradient."""
        count = self.model.num_parameters if self.lora is None else self.lora.parameters(self.model)
        return count + self.log_z_parameters

    @property
    def log_z_parameters(self) -> int:
        """Number of weights of the head for log Z: two linear layers with norms, and one to a number."""
        width = self.model.hidden_size
        return (2 * (width * width + 3 * width) + width + 1) if self.log_z else 0

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sample."""
        return self.prompt_tokens + self.response_tokens

    @property
    def tokens_at_once(self) -> int:
        """Tokens in the model at a time. A sample above the budget is alone."""
        share = ceil(self.samples_per_update / self.num_gpus) * self.longest
        return max(min(self.micro_batch_tokens, share), self.longest)

    @property
    def scored_at_once(self) -> int:
        """Number of response tokens among `tokens_at_once`."""
        return ceil(self.tokens_at_once * self.response_tokens / self.longest)

    @property
    def updates_per_batch(self) -> int:
        """Number of updates on one rollout batch, the paper's staleness."""
        return self.epochs * self.minibatches

    @property
    def samples_per_update(self) -> int:
        """Number of samples of one minibatch, all ranks together."""
        return self.prompts_per_batch * self.group_size // self.minibatches

    def micro_batches(self, mean_tokens: float) -> int:
        """Returns the micro-batches of one rank in one update, for samples of this mean length."""
        return max(1, ceil(self.samples_per_update * mean_tokens / self.num_gpus / self.tokens_at_once))
