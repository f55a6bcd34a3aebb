"""Memory of one rank's GPU at each moment of an update that can be the fullest one.

    S  training state            held all the time
    1  token scores, forward     S + gradients so far + activations + chunks of logits
    2  token scores, backward    S + gradients so far + activations + chunk
                                   + gradients of head and hidden states
    3  last block, backward      S + gradients so far + activations + temporaries of its backward pass
    4  first block, backward     S + all gradients + the block's activations + the embedding's gradient
    5  optimizer step            S + all gradients + its temporaries

ZeRO (arXiv 1910.02054, section 3) has the arithmetic of the state, Korthikanti et al. (arXiv 2205.05198,
section 4) the arithmetic of the activations. Their 34 s b h bytes per block are for GPT: LayerNorm,
four-fold MLP, dropout, 16 bits. These blocks have RMSNorm, shared key-value heads, a gated MLP and no
dropout. Attention is computed tile by tile (arXiv 2205.14135), so only a log-sum-exp per head is kept of the
scores. The other tensors that transformers' modules save were read from their code.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from bapo_lightning.plan.run_shape import SCORE_BYTES, RunShape
from bapo_lightning.system.chunks import BLOCK_ELEMENTS, CPU_BLOCK_ELEMENTS

BATCH_BYTES = 29  # a padded token of the minibatch: id, mask, three log-probs, version
TABLE_BYTES = 120  # a token of the token table: its columns
LIGER_WAVE = 1024  # tokens whose logits' gradient Liger's head keeps at a time
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


def product(label: str, over: int = 1, **factors: float) -> Amount:
    """Returns an amount that is the product of factors, named by their units, divided by `over`."""
    text = " x ".join(
        f"{factor:,.4g} {unit}" if isinstance(factor, float) else f"{factor:,} {unit}"
        for unit, factor in factors.items()
    )
    value = prod(map(float, factors.values())) / over
    return Amount(label, value, f"{text} / {over}" if over > 1 else text)


def norm_bytes(run: RunShape) -> int:
    """Returns an RMSNorm's bytes per token: float32 input, normalised input, output. Liger copies none."""
    size = run.hidden_bytes
    return (2 * size if run.liger else SCORE_BYTES + 2 * size) * run.model.hidden_size


def block_bytes(run: RunShape) -> int:
    """Returns bytes per token that a block keeps: two norms; queries, keys, values, the attention's result
    and its log-sum-exp; the MLP's gate, its SiLU, the other half and their product.
    """
    model, size, width = run.model, run.compute_bytes, run.model.hidden_size
    per_token = 2 * norm_bytes(run)
    if run.autocast:  # instead of a norm's output, a rounded copy for each product that takes it
        per_token += width * ((3 + 2) * size - 2 * SCORE_BYTES)
    # Heads of keys and values are repeated if CUDA's tiled kernels cannot share them: in float32.
    key_size = model.query_size if run.on_gpu and size == SCORE_BYTES else model.kv_size
    attention = run.attention_bytes * 2 * (model.query_size + key_size)
    if run.packed_sdpa or size < run.attention_bytes:  # the result once more: laid back, or rounded
        attention += size * model.query_size
    mlp = (3 if run.liger else 4) * model.ffn_size  # Liger computes the SiLU again
    per_token += attention + size * mlp + SCORE_BYTES * model.num_heads
    if model.head_norms:
        per_token += (SCORE_BYTES + size) * (model.query_size + model.kv_size)
    return per_token


def kept_bytes(run: RunShape) -> int:
    """Returns bytes per token that selective checkpointing keeps of a block on top of its input: the results
    of all products, and of attention with its log-sum-exp.
    """
    model = run.model
    projected = model.query_size + 2 * model.kv_size + 2 * model.ffn_size + 2 * model.hidden_size
    attention = run.attention_bytes * model.query_size + SCORE_BYTES * model.num_heads
    if run.lora is not None:  # each adapter has two products
        shapes = run.model.linear_shapes
        adapted = (run.lora.rank + shapes[name][1] for name in run.lora.targets)
        projected += sum(adapted)
    return run.compute_bytes * projected + attention


def _input_bytes(run: RunShape) -> int:
    return run.hidden_bytes * run.model.hidden_size


def state(run: RunShape) -> list[Amount]:
    """Returns weights and AdamW's moments, 4 + 8 bytes per float32 parameter, and all else that is held."""
    if run.offload:
        return []
    size, over, trained, width = run.stored_bytes, run.shards, run.trainable_parameters, run.trained_bytes
    held = [product("weights", over, B=size, parameters=run.model.num_parameters)]
    if run.lora is not None:
        held.append(product("weights of the adapters", over, B=width, parameters=trained))
    elif run.log_z:
        held.append(product("weights of the log Z head", over, B=size, parameters=run.log_z_parameters))
    if run.reference and run.lora is None:  # adapters are left out instead
        held.append(product("weights of the reference", over, B=size, parameters=run.model.num_parameters))
    if run.keeps_gradient:
        held.append(product("gradient of the last update", over, B=width, parameters=trained))
    return [*held, product("AdamW's moments", over, B=2 * width, parameters=trained)]


def gradients(run: RunShape) -> list[Amount]:
    """Returns the gradients of all trained weights, in their own precision, sharded or not."""
    if run.offload:
        return []
    return [product("gradients", run.shards, B=run.trained_bytes, parameters=run.trainable_parameters)]


def summed(run: RunShape, num_micro_batches: int) -> list[Amount]:
    """Returns the gradients that are held between two micro-batches."""
    if num_micro_batches == 1:
        return []
    if run.strategy == "fsdp" and run.whole_gradients:
        return [product("gradients, whole", B=SCORE_BYTES, parameters=run.trainable_parameters)]
    return gradients(run)


def minibatch(run: RunShape) -> list[Amount]:
    """Returns the minibatch and the table of its tokens, which every rank has whole."""
    samples = run.samples_per_update
    return [
        product("minibatch", B=BATCH_BYTES, samples=samples, tokens=run.longest),
        product("token table", B=TABLE_BYTES, samples=samples, tokens=run.response_tokens),
    ]


def gathered(run: RunShape, has_head: bool = True) -> list[Amount]:
    """Returns the weights that FSDP holds whole while used: a few blocks, and the head from its forward to
    its backward pass, or in both passes if it shares its weight with the embedding.
    """
    if run.strategy != "fsdp":
        return []
    size, model, blocks = run.compute_bytes, run.model, run.gathered_layers
    head = model.head_parameters if has_head or model.tied else 0
    return [
        product("gathered: head, norm", B=size, parameters=head + model.hidden_size),
        product("gathered: blocks", B=size, blocks=blocks, parameters=model.layer_parameters),
    ]


def activations(run: RunShape) -> list[Amount]:
    """Returns the activations that the blocks keep for a micro-batch: all, or their inputs, or also results
    of products.
    """
    if run.checkpointing == "selective":
        label, per_token = "kept results of the blocks", _input_bytes(run) + kept_bytes(run)
    elif run.checkpointing:
        label, per_token = "inputs of the blocks", _input_bytes(run)
    else:
        label, per_token = "activations of the blocks", block_bytes(run)
    kept = product(label, B=per_token, blocks=run.model.num_layers, tokens=run.tokens_at_once)
    return [kept] if run.checkpointing else [kept, *rounded_weights(run, run.model.num_layers)]


def rounded_weights(run: RunShape, num_blocks: int) -> list[Amount]:
    """Returns the copies of the blocks' matrices that autocast makes and the backward pass needs."""
    parameters = run.model.layer_matmul_parameters
    rounded = product("rounded weights", B=run.compute_bytes, blocks=num_blocks, parameters=parameters)
    return [rounded] if run.autocast else []


def logits(run: RunShape, is_forward: bool) -> list[Amount]:
    """Returns a chunk of logits in float32; in the forward pass the powers of a block of it, in the backward
    pass a 16-bit copy for 16-bit factors. Liger's kernel has only the gradient of a few.
    """
    words = run.model.vocab_size
    if run.liger_head:
        tokens = min(LIGER_WAVE, run.scored_at_once)
        wave = product("gradient of a wave's logits", B=run.compute_bytes, tokens=tokens, words=words)
        return [*_rounded_head(run), *([] if is_forward else [wave])]
    rows = min(max(1, run.chunk_elements // words), run.scored_at_once)
    element = SCORE_BYTES + (run.compute_bytes if run.rounds_head and not is_forward else 0)
    amounts = [product("logits of a chunk", B=element, tokens=rows, words=words), *_rounded_head(run)]
    if not is_forward:
        return amounts
    block = min(max(1, (BLOCK_ELEMENTS if run.on_gpu else CPU_BLOCK_ELEMENTS) // words), rows)
    return [*amounts, product("powers of a block", B=SCORE_BYTES, tokens=block, words=words)]


def _rounded_head(run: RunShape) -> list[Amount]:
    rounded = product("rounded head", B=run.compute_bytes, parameters=run.model.head_parameters)
    return [rounded] if run.rounds_head and run.autocast else []


def head_gradient(run: RunShape, element_bytes: int) -> list[Amount]:
    """Returns the output head's gradient. It is made in float32; accumulated, it waits in the precision of
    the pass for the embedding's gradient if the two share one weight; with FSDP it is otherwise reduced, in
    float32, while the last block computes. LoRA has none, since it leaves the head unchanged.
    """
    parameters = run.model.head_parameters
    return [] if run.lora else [product("gradient of the head", B=element_bytes, parameters=parameters)]


def moments(run: RunShape, num_micro_batches: int) -> list[Moment]:
    """Returns the moments that can be the fullest, in the order of an update."""
    always = [*state(run), *minibatch(run)]
    before = summed(run, num_micro_batches)
    after = before if run.whole_gradients and before else gradients(run)
    held, blocks = [*always, *before], gathered(run, has_head=False)
    passing, scored = [*held, *gathered(run)], _scored(run, norm_bytes(run))
    is_reduced = run.strategy == "fsdp" and not run.model.tied
    waits = head_gradient(run, SCORE_BYTES if is_reduced else run.hidden_bytes)
    has_own = run.model.tied or not before or is_reduced
    last = [*activations(run), *_block_at_work(run), *(waits if has_own else [])]
    return [
        Moment("token scores, forward", (*passing, *scored, *logits(run, is_forward=True))),
        Moment("token scores, backward", (*passing, *_scores_backward(run))),
        Moment("last block, backward", (*held, *blocks, *last)),
        Moment("first block, backward", (*always, *after, *blocks, *_first_block(run))),
        Moment("optimizer step", (*always, *gradients(run), *_step(run))),
    ]


def _scores_backward(run: RunShape) -> list[Amount]:
    model = run.model
    whole = head_gradient(run, SCORE_BYTES)
    part = whole if run.rounds_head else []  # of one chunk
    if run.liger_head:  # made also for a frozen head, and in float32 only for float32 weights
        sizes = {"B": run.compute_bytes, "parameters": model.head_parameters}
        whole, part = whole if run.autocast else [], [product("rounded gradient of the head", **sizes)]
    return [
        *_scored(run, norm_bytes(run) - run.hidden_bytes * model.hidden_size),  # its output is gone
        product("gradient of those", B=SCORE_BYTES * model.hidden_size, tokens=run.scored_at_once),
        *logits(run, is_forward=False),
        *whole,
        *part,
    ]


def _scored(run: RunShape, last_norm_bytes: int) -> list[Amount]:
    per_token = run.hidden_bytes * run.model.hidden_size + SCORED_BYTES
    return [
        *activations(run),
        product("last norm", B=last_norm_bytes, tokens=run.tokens_at_once),
        product("hidden states scored", B=per_token, tokens=run.scored_at_once),
    ]


def _first_block(run: RunShape) -> list[Amount]:
    model, size, is_sharded = run.model, run.hidden_bytes, run.strategy == "fsdp"
    amounts = [product("gradient of a block's input", B=size * model.hidden_size, tokens=run.tokens_at_once)]
    if run.lora:
        return amounts
    if model.tied:
        amounts += head_gradient(run, size)
    amounts.append(product("gradient of the embedding", B=size, parameters=model.head_parameters))
    if is_sharded:
        reduced = model.head_parameters + model.hidden_size
        amounts.append(product("to be reduced, with the norm's", B=SCORE_BYTES, parameters=reduced))
    return amounts


def _block_at_work(run: RunShape) -> list[Amount]:
    model, size, tokens = run.model, run.compute_bytes, run.tokens_at_once
    # the gradients of both factors of the gated product, and of the residual
    most = size * 2 * model.ffn_size + run.hidden_bytes * model.hidden_size
    amounts = [product("backward of a block", B=most, tokens=tokens)]
    if run.checkpointing:
        shared = SCORE_BYTES * model.hidden_size if run.hidden_bytes == SCORE_BYTES else 0
        redone = block_bytes(run) - shared
        if run.checkpointing == "selective":
            redone = max(0, redone - kept_bytes(run))
        amounts += [product("activations of one block", B=redone, tokens=tokens), *rounded_weights(run, 1)]
    if run.strategy == "fsdp":
        both = size + SCORE_BYTES
        amounts.append(product("its whole gradient, twice", B=both, parameters=model.layer_parameters))
    return amounts


def _step(run: RunShape) -> list[Amount]:
    if run.fused_step:
        return []
    size, trained = run.trained_bytes, run.trainable_parameters
    if run.on_gpu:  # all weights at a time
        return [product("AdamW's square roots", run.shards, B=size, parameters=trained)]
    return [product("AdamW's temporaries", B=2 * size, parameters=run.model.largest_parameter)]
