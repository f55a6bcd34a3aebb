"""Bytes that autograd keeps of a token until the backward pass, for the blocks used here.

The method is that of Korthikanti et al. (arXiv 2205.05198, section 4). Their 34 s b h bytes per block are
GPT's: LayerNorm, four-fold MLP, dropout, 16 bits. These blocks have RMSNorm, shared key-value heads, a gated
MLP and no dropout. Attention is computed tile by tile (arXiv 2205.14135), so only a log-sum-exp per head is
kept of the scores. The other tensors that transformers' modules save were read off their code. All figures
are bytes of one token in one block.
"""

from __future__ import annotations

from bapo_lightning.plan.model_shape import ModelShape

SCORE_BYTES = 4  # norms' inputs, log-sum-exps and logits are float32 whatever the model computes in


def norm_bytes(element_bytes: int, liger: bool = False) -> int:
    """Returns bytes per element of an RMSNorm's input: the input in float32, the normalised input, the
    output.

    Liger's kernel keeps no copies.
    """
    return 2 * element_bytes if liger else SCORE_BYTES + 2 * element_bytes


def block_bytes_per_token(
    model: ModelShape, element_bytes: int, liger: bool = False, packed_sdpa: bool = False
) -> int:
    """Returns bytes per token of a block: two norms; queries, keys, values, the attention's result and its
    log-sum-exp; the MLP's gate, its SiLU, the other half and their product.
    """
    num_queries = 3 if packed_sdpa else 2  # packed, attention's results are laid back and kept twice
    attention = num_queries * model.query_size + 2 * model.kv_size
    mlp = (3 if liger else 4) * model.ffn_size  # Liger computes the SiLU again
    per_token = (
        2 * norm_bytes(element_bytes, liger) * model.hidden_size
        + element_bytes * (attention + mlp)
        + SCORE_BYTES * model.num_heads
    )
    if model.head_norms:
        per_token += (SCORE_BYTES + element_bytes) * (model.query_size + model.kv_size)
    return per_token


def last_norm_bytes_per_token(model: ModelShape, element_bytes: int, liger: bool = False) -> int:
    """Returns bytes per token of the norm behind the last block, whose output is the hidden state."""
    return norm_bytes(element_bytes, liger) * model.hidden_size


def backward_bytes_per_token(model: ModelShape, element_bytes: int) -> int:
    """Returns the most bytes per token that a block's backward pass adds: the gradients of both factors of
    the gated product, and of the residual.
    """
    return element_bytes * (2 * model.ffn_size + model.hidden_size)
