"""Memory of one rank's GPU at each moment of an update that can be the fullest one.

    S  training state            held all the time
    1  token scores, forward     S + gradients so far + activations + chunks of logits
    2  token scores, backward    S + gradients so far + activations + chunk
                                   + gradients of head and hidden states
    3  last block, backward      S + gradients so far + activations + temporaries of its backward pass
    4  first block, backward     S + all gradients + the block's activations + the embedding's gradient
    5  optimizer step            S + all gradients + its temporaries

ZeRO (arXiv 1910.02054, section 3) has the arithmetic of the state, `activations` that of the activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from bapo_lightning.plan.activations import (
    SCORE_BYTES,
    backward_bytes_per_token,
    block_bytes_per_token,
    last_norm_bytes_per_token,
)
from bapo_lightning.plan.run_shape import RunShape

CHUNK_ELEMENTS, BLOCK_ELEMENTS, CPU_BLOCK_ELEMENTS = 1 << 27, 1 << 25, 1 << 20  # of `modules.token_scores`
BATCH_BYTES = 25  # a padded token of the minibatch: id, mask, two log-probs, version
TABLE_BYTES = 36  # a token of the token table: its eight columns
SCORED_BYTES = 20  # a response token in the token scores: log-prob, entropy, peak, norm, target's gradient


@dataclass(frozen=True)
class Amount:
    """A number of bytes and its arithmetic."""

    label: str
    bytes: float
    arithmetic: str


@dataclass(frozen=True)
class Moment:
    """Everything that is in memory at one time."""

    name: str
    amounts: tuple[Amount, ...]

    @property
    def bytes(self) -> float:
        """Sum of the amounts."""
        return sum(amount.bytes for amount in self.amounts)


def product(label: str, *factors: tuple[float, str], over: int = 1) -> Amount:
    """Returns an amount that is the product of (number, unit) factors divided by `over`."""
    value = prod(float(factor) for factor, _ in factors)
    text = " x ".join(
        f"{factor:,.4g}{unit}" if isinstance(factor, float) else f"{factor:,}{unit}"
        for factor, unit in factors
    )
    return Amount(label, value / over, f"{text} / {over}" if over > 1 else text)


def state(run: RunShape) -> list[Amount]:
    """Returns weights and AdamW's two moments: 4 + 8 bytes a parameter in float32, sharded or not."""
    model, size, over = run.model, run.stored_bytes, 1 if run.offload else run.shards
    if run.offload:
        return []
    held = [product("weights", (size, " B"), (model.num_parameters, " parameters"), over=over)]
    if run.lora is not None:
        held.append(
            product(
                "weights of the adapters", (size, " B"), (run.trainable_parameters, " parameters"), over=over
            )
        )
    held.append(
        product("AdamW's moments", (2 * size, " B"), (run.trainable_parameters, " parameters"), over=over)
    )
    return held


def gradients(run: RunShape) -> list[Amount]:
    """Returns the gradients of all trained weights, in their own precision, sharded or not."""
    if run.offload:
        return []
    return [
        product(
            "gradients", (run.stored_bytes, " B"), (run.trainable_parameters, " parameters"), over=run.shards
        )
    ]


def summed(run: RunShape, num_micro_batches: int) -> list[Amount]:
    """Returns the gradients that are held between two micro-batches."""
    if num_micro_batches == 1:
        return []
    if run.strategy == "fsdp" and run.whole_gradients:
        return [product("gradients, whole", (SCORE_BYTES, " B"), (run.trainable_parameters, " parameters"))]
    return gradients(run)


def minibatch(run: RunShape) -> list[Amount]:
    """Returns the minibatch and the table of its tokens, which every rank has whole."""
    samples = run.samples_per_update
    return [
        product("minibatch", (BATCH_BYTES, " B"), (samples, " samples"), (run.longest, " tokens")),
        product("token table", (TABLE_BYTES, " B"), (samples, " samples"), (run.response_tokens, " tokens")),
    ]


def gathered(run: RunShape) -> list[Amount]:
    """Returns the weights that FSDP holds whole while they are used: those outside of the blocks all the
    time, and those of a few blocks.
    """
    if run.strategy != "fsdp":
        return []
    size, model = run.compute_bytes, run.model
    return [
        product("gathered: embedding, head", (size, " B"), (model.root_parameters, " parameters")),
        product(
            "gathered: blocks",
            (size, " B"),
            (run.gathered_layers, " blocks"),
            (model.layer_parameters, " parameters"),
        ),
    ]


def activations(run: RunShape) -> list[Amount]:
    """Returns what the blocks keep of a micro-batch: all activations, or their inputs only."""
    model, size, tokens = run.model, run.compute_bytes, run.tokens_at_once
    per_token = (
        size * model.hidden_size
        if run.checkpointing
        else block_bytes_per_token(model, size, run.liger, run.packed_sdpa)
    )
    label = "inputs of the blocks" if run.checkpointing else "activations of the blocks"
    return [product(label, (per_token, " B"), (model.num_layers, " blocks"), (tokens, " tokens"))]


def logits(run: RunShape, is_forward: bool) -> list[Amount]:
    """Returns a chunk of logits in float32, and in the forward pass the powers of a block of it. 16-bit
    factors add a copy: float32 in the forward pass, 16-bit in the backward pass.
    """
    words = run.model.vocab_size
    rows = min(max(1, CHUNK_ELEMENTS // words), run.scored_at_once)
    element = SCORE_BYTES + (
        0 if run.compute_bytes == SCORE_BYTES else SCORE_BYTES if is_forward else run.compute_bytes
    )
    chunk = product("logits of a chunk", (element, " B"), (rows, " tokens"), (words, " words"))
    block = min(max(1, (BLOCK_ELEMENTS if run.on_gpu else CPU_BLOCK_ELEMENTS) // words), rows)
    if not is_forward:
        return [chunk]
    return [chunk, product("powers of a block", (SCORE_BYTES, " B"), (block, " tokens"), (words, " words"))]


def head_gradient(run: RunShape) -> list[Amount]:
    """Returns the output head's gradient in float32, before it is added to the other gradients. LoRA has
    none, since it leaves the head as it is.
    """
    return _head_gradient(run, SCORE_BYTES)


def moments(run: RunShape, num_micro_batches: int) -> list[Moment]:
    """Returns the moments that can be the fullest, in the order of an update."""
    always = [*state(run), *minibatch(run)]
    before = summed(run, num_micro_batches)
    after = before if run.whole_gradients and before else gradients(run)
    return [
        Moment("token scores, forward", (*always, *before, *gathered(run), *_scores_forward(run))),
        Moment("token scores, backward", (*always, *before, *gathered(run), *_scores_backward(run))),
        Moment("last block, backward", (*always, *before, *gathered(run), *_last_block(run, bool(before)))),
        Moment("first block, backward", (*always, *after, *gathered(run), *_first_block(run))),
        Moment("optimizer step", (*always, *gradients(run), *_step(run))),
    ]


def _scores_forward(run: RunShape) -> list[Amount]:
    model, size, tokens, scored = run.model, run.compute_bytes, run.tokens_at_once, run.scored_at_once
    return [
        *activations(run),
        product("last norm", (last_norm_bytes_per_token(model, size, run.liger), " B"), (tokens, " tokens")),
        product("hidden states scored", (size * model.hidden_size + SCORED_BYTES, " B"), (scored, " tokens")),
        *logits(run, is_forward=True),
    ]


def _scores_backward(run: RunShape) -> list[Amount]:
    model, size, tokens, scored = run.model, run.compute_bytes, run.tokens_at_once, run.scored_at_once
    norm = last_norm_bytes_per_token(model, size, run.liger) - size * model.hidden_size
    return [
        *activations(run),
        product("last norm", (norm, " B"), (tokens, " tokens")),
        product("hidden states scored", (size * model.hidden_size + SCORED_BYTES, " B"), (scored, " tokens")),
        product("gradient of those", (SCORE_BYTES * model.hidden_size, " B"), (scored, " tokens")),
        *logits(run, is_forward=False),
        *head_gradient(run),
        *(head_gradient(run) if size != SCORE_BYTES else []),  # its part of one chunk
    ]


def _last_block(run: RunShape, has_gradients: bool) -> list[Amount]:
    waits = _waiting(run) if run.model.tied or not has_gradients or run.strategy == "fsdp" else []
    return [*activations(run), *_block_at_work(run), *waits]


def _first_block(run: RunShape) -> list[Amount]:
    model, size = run.model, run.compute_bytes
    work = product(
        "gradient of a block's input", (size * model.hidden_size, " B"), (run.tokens_at_once, " tokens")
    )
    if run.lora:
        return [work]
    embedding = product("gradient of the embedding", (size, " B"), (model.head_parameters, " parameters"))
    waits = _waiting(run) if model.tied or run.strategy == "fsdp" else []
    reduced = (
        [product("both, to be reduced", (SCORE_BYTES, " B"), (model.root_parameters, " parameters"))]
        if run.strategy == "fsdp"
        else []
    )
    return [work, *waits, embedding, *reduced]


def _waiting(run: RunShape) -> list[Amount]:
    """Returns the head's gradient, which waits for the embedding's if the two are one weight, and with FSDP
    for those of all weights outside of the blocks.
    """
    return _head_gradient(run, run.compute_bytes)


def _head_gradient(run: RunShape, element_bytes: int) -> list[Amount]:
    if run.lora:
        return []
    parameters = (run.model.head_parameters, " parameters")
    return [product("gradient of the head", (element_bytes, " B"), parameters)]


def _block_at_work(run: RunShape) -> list[Amount]:
    """Returns the memory of a block's backward pass; checkpointing first computes its activations again."""
    model, size, tokens = run.model, run.compute_bytes, run.tokens_at_once
    amounts = [
        product("backward of a block", (backward_bytes_per_token(model, size), " B"), (tokens, " tokens"))
    ]
    if run.checkpointing:
        again = block_bytes_per_token(model, size, run.liger, run.packed_sdpa) - (
            SCORE_BYTES * model.hidden_size if size == SCORE_BYTES else 0
        )
        amounts.append(product("activations of one block", (again, " B"), (tokens, " tokens")))
    if run.strategy == "fsdp":
        amounts.append(
            product(
                "its whole gradient, twice",
                (size + SCORE_BYTES, " B"),
                (model.layer_parameters, " parameters"),
            )
        )
    return amounts


def _step(run: RunShape) -> list[Amount]:
    if run.fused_step:
        return []
    if run.on_gpu:  # all weights at a time
        return [
            product(
                "AdamW's square roots",
                (run.stored_bytes, " B"),
                (run.trainable_parameters, " parameters"),
                over=run.shards,
            )
        ]
    return [
        product(
            "AdamW's temporaries", (2 * run.stored_bytes, " B"), (run.model.largest_parameter, " parameters")
        )
    ]
