"""The kernels' choices for a program: layout, threads, and memory shared by buffers."""

from __future__ import annotations

import os
from collections import Counter

from horn import ir
from horn.network import Network
from horn.partition.share import Share
from horn.program import (
    BatchSum,
    ChannelSum,
    Convolve,
    Draw,
    Expand,
    Input,
    Loop,
    Matmul,
    Move,
    Pick,
    Post,
    Program,
    Rank,
    Reverse,
    ScatterAdd,
    Take,
    Target,
    Turn,
    base,
    every,
    layer_of,
    reads,
    writes,
)

# Statements that write one buffer.
MADE = (
    BatchSum, ChannelSum, Convolve, Expand, Input, Target, Draw, Matmul, Pick, Rank, Reverse,
    ScatterAdd, Take, Turn,
)  # fmt: skip
# Below 4 million multiplications a batch takes tens of microseconds: barriers would cost more.
MIN_WORK_PER_THREAD = 2_000_000
# Products read live weights in place (Tape.live_gemm) for at most so many samples, and at least so
# many neurons on either side: a panel of 32 is computed whole.
MAX_LIVE_ROWS, MIN_LIVE = 256, 64


def choose_layout(program: Program, products: str, batch_size: int) -> str:
    """Choose the layout of (batch, neurons) arrays: "neuron"-major (its batch together) or
    "batch"-major.

    A rule, not a measurement at start-up: a different layout rounds differently, and two runs of a
    job must agree to the last bit. Measured with weights (fan_out, fan_in) on three nets at
    batches of 20, 100 and 1000 (docs/notes/0002, 0070): horn's own products want batch-major, which
    saves 2 to 25 % of a step; OpenBLAS wants neuron-major up to some hundred rows (beyond, loading
    turns the batch for nothing); MKL wants it for thin batches only. Loops over (b, o, i) want one
    sample's inputs side by side; sparse links want the batch side by side. Of sequences a step has
    few rows: with neurons side by side loops have whole vectors (docs/notes/0184).

    products : the library of products, as ``Tape.products``.
    """
    links = [link for layer in program.network.layers for link in layer.links]
    if any(link.edges is not None for link in links):
        return "neuron"
    for statement in every(program.statements):
        if isinstance(statement, Loop) and any(
            len(ir.union(o.node.axes, o.axis)) == 3 for o in statement.outputs
        ):
            return "batch"
    if products == "horn" or program.steps:
        return "batch"
    if products == "mkl":
        return "neuron" if batch_size < 64 else "batch"
    return "neuron" if batch_size < 500 else "batch"


def is_stream(program: Program, batch_size: int) -> bool:
    """Whether the program answers single steps of one sequence, and learns nothing."""
    learned = {name for name, buffer in program.buffers.items() if buffer.role == "learned"}
    return batch_size == program.steps == 1 and not any(
        name in learned for s in every(program.statements) for name in writes(s)
    )


def choose_threads(network: Network, batch_size: int, limit: int | None, n_tasks: int = 1) -> int:
    """Choose the threads for one batch: at most the limit, or the cores, and no more than pay off.

    For sequences the work of all steps counts: threads divide the rows of a batch and wait for each
    other once for all steps, not at each (bands.c).
    """
    cores = len(os.sched_getaffinity(0))
    work = _work_per_sample(network) * batch_size // n_tasks
    return max(1, min(limit or cores, work // MIN_WORK_PER_THREAD))


def least_rows(network: Network, n_tasks: int = 1) -> int:
    """The fewest samples for which a second thread pays off: a batch may have less than it could,
    the last of an epoch, or one sample of which ``predict`` is asked.
    """
    return -(-2 * MIN_WORK_PER_THREAD * n_tasks // max(_work_per_sample(network), 1))


def _work_per_sample(network: Network) -> int:
    synapses = 0
    for layer in network.layers:
        for link in layer.links:
            each = layer.size * link.source.size if link.edges is None else link.edges.n
            synapses += each * len(link.names)
    return synapses * max(1, network.steps)


def parts_of_wholes(program: Program, share: Share) -> dict[str, str]:
    """The buffers that are parts of others, each with the buffer in whose memory it is computed,
    so that no copy is needed: a task's own part of an array that all gather; and the task's own
    sums, in the array of sums for itself and others.

    Only where nothing else writes that buffer, and it has one such part.
    """
    moves = [m for s in program.statements if isinstance(s, Post) for m in s.moves]
    arrays: dict[str, set[str]] = {}
    for move in moves:
        arrays.setdefault(move.out, set()).add(move.array)
    statements = list(every(program.statements))
    written = {o.buffer for s in statements if isinstance(s, Loop) for o in s.outputs}
    written |= {s.out for s in statements if isinstance(s, MADE)}
    read = {name for s in statements for name in reads(s)}
    moved = Counter(move.array for move in moves)
    views = {b.value[0] for b in program.buffers.values() if b.role in ("view", "late")}
    elsewhere = read | views | program.shown
    found: dict[str, str] = {}
    for move in moves:
        part, whole = (move.out, move.array) if move.monoid else (move.array, move.out)
        if part in found or part in found.values() or whole in found or move.out in written:
            continue
        if arrays[move.out] != {move.array} or not _is_part(program, share, move, part, whole):
            continue
        if move.monoid and (moved[whole] > 1 or whole in elsewhere):
            continue  # the others' parts are added to it
        found[part] = whole
    return found


def _is_part(program: Program, share: Share, move: Move, part: str, whole: str) -> bool:
    """Whether a part is a range of the whole, and neither has a fixed place."""
    small, large = program.buffers[part], program.buffers[whole]
    if move.monoid and (move.across or small.axes == large.axes):
        return False
    return (
        move.level is None
        and small.role == large.role == "work"
        and all(
            a == b or (a.endswith("@own") and _is_inside(share, a, b, bool(move.monoid)))
            for a, b in zip(small.axes, large.axes, strict=True)
        )
    )


def _is_inside(share: Share, a: str, b: str, is_sum: bool) -> bool:
    """Whether an own axis is a range of the whole axis, or of the part that the task receives."""
    if base(a) == b:
        return not is_sum
    if base(a) != base(b) or base(a) == "b":
        return False
    mine, theirs = share.places(a), share.places(b)
    if not isinstance(mine, slice) or not isinstance(theirs, slice):
        return False
    return bool(theirs.start <= mine.start < mine.stop <= theirs.stop)


def only_multiplied(program: Program) -> dict[str, str]:
    """The live parts of weights that only products with a batch read, all of them before the
    weights change: a product may then read them in place.
    """
    found: dict[str, str] = {}
    changed: set[str] = set()
    for s in every(program.statements):
        if isinstance(s, Take):
            buffer = program.buffers[s.array]
            sizes = [program.network.layers[layer_of(axis)].size for axis in buffer.axes[-2:]]
            if buffer.role == "learned" and len(buffer.axes) == 2 and min(sizes) >= MIN_LIVE:
                found[s.out] = s.array
            continue
        for name in reads(s):
            multiplies = isinstance(s, Matmul) and name == s.b and "b" in s.a_axes
            if name in found and (not multiplies or found[name] in changed):
                del found[name]
        changed.update(writes(s))
    return found
