"""Sizes of the pieces in which token scores are computed. `make plan` counts the same ones."""

from __future__ import annotations

# Float32 logits of a chunk: at least 512 MiB (883 tokens of a vocabulary of 152 000), with which matrix
# products run at full speed; at most 4 GiB, so that 31 bits count them.
CHUNK_ELEMENTS, MOST_CHUNK_ELEMENTS = 1 << 27, 1 << 30
SHARE = 32  # a chunk's logits fill at most 1 / SHARE of an accelerator's memory
# Elements of a [R, V] block: 4 MiB on a CPU, which the caches of a few cores hold; on an accelerator enough
# to keep it busy.
CPU_BLOCK_ELEMENTS, BLOCK_ELEMENTS = 1 << 20, 1 << 25


def chunk_elements(device_bytes: float) -> int:
    """Returns the logits of a chunk on an accelerator with so many bytes of memory: a power of 2.

    The longer a chunk, the fewer logits the backward pass computes again. Where chunks end decides the order
    of the sums in the head's gradient, and so its last bits. So free memory, which depends on what else is on
    the card, has no say. A power of 2 is nearly always the same on cards of one size, whose memory differs by
    a few percent.
    """
    room = min(max(int(device_bytes) // (SHARE * 4), CHUNK_ELEMENTS), MOST_CHUNK_ELEMENTS)
    return 1 << (room.bit_length() - 1)
