"""Neurons in and out of blocks: packed for a peer, unpacked from one, combined in task order.

Shapes: x (batch, n), block (batch, k), columns (k,) int64, each once. Blocks are outboxes and
inboxes as they are: nothing is copied on the way. Shapes are checked here, loops are in
``horn._kernels.mailbox``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from horn._kernels import mailbox
from horn.runtime.messages import Array, BadFrame

# The monoids of the compiler's reductions that tasks combine.
OPS = {
    "sum": mailbox.SUM,
    "product": mailbox.PRODUCT,
    "max": mailbox.MAX,
    "min": mailbox.MIN,
}
MAX_BLOCKS = 1024


def gather(x: Array, columns: Array, block_out: Array) -> None:
    """block[:, j] = x[:, columns[j]]"""
    _check(x, columns, block_out)
    mailbox.gather(x, columns, block_out)


def scatter(block: Array, columns: Array, x_out: Array) -> None:
    """x[:, columns[j]] = block[:, j]; other columns are left alone"""
    _check(x_out, columns, block)
    mailbox.scatter(block, columns, x_out)


def combine(blocks: Sequence[Array], op: str, out: Array) -> None:
    """((block 0 op block 1) op block 2) ...: in the order given, whoever came first.

    ``out`` may be the first block, and no other.
    """
    if not 1 <= len(blocks) <= MAX_BLOCKS:
        raise BadFrame("blocks to combine", len(blocks), f"1 to {MAX_BLOCKS}")
    for index, block in enumerate(blocks):
        if block.shape != out.shape or block.dtype != out.dtype or not block.flags.c_contiguous:
            got = f"{block.dtype} {block.shape}"
            raise BadFrame(f"block {index} to combine", got, f"{out.dtype} {out.shape}, contiguous")
    mailbox.combine([block.reshape(-1) for block in blocks], _flat(out), OPS[op])


def combine_at(block: Array, columns: Array, op: str, x_out: Array) -> None:
    """x[:, columns[j]] op= block[:, j]"""
    _check(x_out, columns, block)
    mailbox.combine_at(block, columns, x_out, OPS[op])


def _flat(out: Array) -> Array:
    if not out.flags.c_contiguous:
        raise BadFrame("array to combine into", f"strides {out.strides}", "C-contiguous")
    return out.reshape(-1)


def _check(x: Array, columns: Array, block: Array) -> None:
    if x.ndim != 2 or block.shape != (x.shape[0], len(columns)) or block.dtype != x.dtype:
        wanted = f"{x.dtype} ({x.shape[0]}, {len(columns)}) for an array {x.shape}"
        raise BadFrame("block", f"{block.dtype} {block.shape}", wanted)
    if len(columns) and not (0 <= columns.min() and columns.max() < x.shape[1]):
        got = f"{columns.min()} to {columns.max()}"
        raise BadFrame("columns of a block", got, f"0 to {x.shape[1] - 1}")
    if columns.dtype != np.int64:
        raise BadFrame("columns of a block", columns.dtype, "int64")
