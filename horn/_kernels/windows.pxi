"""Convolutions, their gradients and pools over windows: checked, as tape.h has them."""


def _same(ptr, src):
    """Whether each row's part of src equals that of the row before, as bytes."""
    counts = np.diff(ptr)
    n = len(counts)
    starts = ptr[:n]
    before = np.roll(starts, 1)
    place = np.arange(len(src)) + np.repeat(before - starts, counts)
    differs = np.zeros(len(src) + 1, np.int64)
    np.cumsum(src != src[np.clip(place, 0, max(len(src) - 1, 0))], out=differs[1:])
    same = (differs[ptr[1:]] == differs[starts]) & (counts == np.roll(counts, 1))
    same[:1] = False
    return same.astype(np.uint8)


def _units(which):
    """Pairs of groups with the same list, other groups alone: (units, 2) int32, -1 for none."""
    order = np.argsort(which, kind="stable")
    lists = which[order]
    begins = np.flatnonzero(np.diff(lists, prepend=-1))
    rank = np.arange(len(lists)) - np.repeat(begins, np.diff(begins, append=len(lists)))
    second = np.flatnonzero(rank % 2)
    other = np.full(len(lists), -1)
    other[second - 1] = order[second]
    found = np.stack([order, other], axis=1)[rank % 2 == 0]
    return np.ascontiguousarray(found[np.argsort(found[:, 0])], np.int32)


def _least_and_most(ptr, numbers):
    """The least and the most number of each list, 0 of an empty one."""
    starts, counts = ptr[:len(ptr) - 1], np.diff(ptr)
    least, most = np.zeros((2, len(starts)), np.int64)
    has = counts > 0
    if has.any():
        least[has] = np.minimum.reduceat(numbers, starts[has])
        most[has] = np.maximum.reduceat(numbers, starts[has])
    return least, most


cdef int _is_of_batch(x, other, name) except -1:
    if x.shape[1] != other.shape[1]:
        raise ValueError(f"x {x.shape} and {name} {other.shape} differ in their batch")
    return 0


cdef _lists_of(Binding bind, which, first, n_lists):
    which, first = bind.flat(which, "which", np.int32), bind.flat(first, "first", np.int32)
    if len(which) != len(first):
        raise ValueError(f"which {which.shape} and first {first.shape} are of other positions")
    if len(which) and not 0 <= which.min() <= which.max() < n_lists:
        raise ValueError(f"which names places outside of 0 to {n_lists - 1}")
    return which, first


cdef conv_t *windows_of(Binding bind, x, w, out, ptr, src, row, length, which, first, base, step,
                        apart, of_squares, bias, relu, gate, rows) except NULL:
    """The instruction of ``Tape.windows``."""
    x, w = bind.rows_of(x, "x"), bind.flat(w, "w", bind.dtype)
    out = bind.rows_of(out, "out", writes=True)
    _is_of_batch(x, out, "out")
    if step < 0 or apart < 0:
        raise ValueError(f"step and apart are at least 0, got {step} and {apart}")
    ptr, base = bind.flat(ptr, "ptr", np.int64), bind.flat(base, "base", np.int64)
    src, row = bind.flat(src, "src", np.int32), bind.flat(row, "row", np.int32)
    length = bind.flat(length, "length", np.int32)
    which, first = _lists_of(bind, which, first, len(ptr) - 1)
    n_groups = len(which)
    n_r = len(out) // max(n_groups, 1)
    if n_groups < 1 or n_r * n_groups != len(out) or n_r < 1:
        raise ValueError(f"{len(out)} rows of out are no {n_groups} groups")
    if not len(src) == len(row) == len(length) or ptr[0] != 0 or ptr[len(ptr) - 1] != len(src) \
            or np.any(np.diff(ptr) < 0):
        raise ValueError("ptr goes from 0 to the number of runs, and src, row and length have those")
    if len(length) and length.min() < 1:
        raise ValueError("length has runs of no pair")
    if len(row) and not 0 <= row.min() <= (row.astype(np.int64) + length).max() <= len(base):
        raise ValueError(f"row names places outside of 0 to {len(base) - 1}")
    least, _ = _least_and_most(ptr, src)
    _, most = _least_and_most(ptr, src + (length.astype(np.int64) - 1) * apart + 1)
    if not 0 <= (least[which] + first).min() <= (most[which] + first).max() <= len(x):
        raise ValueError(f"src names places outside of 0 to {len(x) - 1}")
    reach = (n_r - 1) * step
    if len(base) and not 0 <= base.min() <= base.max() + reach < len(w):
        raise ValueError(f"base and step reach beyond the {len(w)} weights")
    unit = _units(which)
    bind.room_for_windows(len(x) * ((x.shape[1] * x.itemsize + 127) // 128 * 128))
    cdef conv_t *g = _conv(bind, x, w, out, rows)
    g.kind, g.step, g.n_groups, g.n_r, g.n_rows = 0, step, n_groups, n_r, len(base)
    g.of_squares, g.apart = of_squares, apart
    g.packed = <char *>bind.block(len(base) * n_r * bind.dtype.itemsize)
    g.n_x, g.n_units = len(x), len(unit)
    g.unit = <const int32_t *>at(unit)
    g.ptr = <const int64_t *>at(ptr)
    g.base = <const int64_t *>at(base)
    g.src = <const int32_t *>at(src)
    g.row = <const int32_t *>at(row)
    g.length = <const int32_t *>at(length)
    g.which = <const int32_t *>at(which)
    g.first = <const int32_t *>at(first)
    bind.keep += [ptr, base, src, row, length, which, first, unit]
    g.end = _end(bind, out, bias, relu, gate)
    g.bias = g.gate = g.out
    if bias is not None:
        g.bias = at(bias)
    if gate is not None:
        g.gate, g.ldz = at(gate), leading(gate)
    return g


cdef conv_t *window_gradients_of(Binding bind, x, y, out, src, which, first, n_parts, step,
                                 rows) except NULL:
    """The instruction of ``Tape.window_gradients``, of one place at least."""
    x, y = bind.rows_of(x, "x"), bind.rows_of(y, "y")
    _is_of_batch(x, y, "y")
    out = bind.array(out, "out", writes=True)
    src = bind.array(src, "src")
    if src.dtype != np.int32 or src.ndim != 2 or not src.flags.c_contiguous:
        raise ValueError(f"src is contiguous int32 (lists, places), got {src.shape} of {src.dtype}")
    which, first = _lists_of(bind, which, first, len(src))
    if n_parts < 1 or step < 0:
        raise ValueError(f"n_parts is at least 1 and step 0, got {n_parts} and {step}")
    last = (n_parts - 1) * step
    if src.size and len(which) and not (src.min() >= -1 and first.min() >= 0
                                        and (src.max(axis=1)[which] + first).max() + last < len(x)):
        raise ValueError(f"src names places outside of -1 to {len(x) - 1}")
    if out.dtype != bind.dtype or out.ndim != 2 or not out.flags.c_contiguous \
            or out.shape[1] != src.shape[1] or len(y) != out.shape[0] * len(which) \
            or len(out) % n_parts or not out.size:
        raise ValueError(f"y {y.shape}, src {src.shape} and which {which.shape} do not give out "
                         f"{out.shape} in {n_parts} parts")
    # gradients, two vectors of maps at a time, and sums of tiles of 12 places at most
    maps = (len(out) // n_parts + 31) // 32 * 32
    cdef int64_t room_bytes = WINDOW_DEEP * (1 + maps) * x.itemsize
    bind.room_for_windows(bind.t.n_threads * room_bytes
                          + 8 * maps * (n_parts * (src.shape[1] + 12) + 12 * 17))
    cdef conv_t *g = _conv(bind, x, y, out, rows)
    g.n_x, g.room_bytes = len(x), room_bytes
    g.kind, g.ldw, g.n_groups = 1, leading(y), len(which)
    g.n_parts, g.step, g.n_r, g.n_rows = n_parts, step, len(out) // n_parts, out.shape[1]
    g.src = <const int32_t *>at(src)
    g.which = <const int32_t *>at(which)
    g.first = <const int32_t *>at(first)
    bind.keep += [src, which, first]
    return g


cdef pool_t *pool_of(Binding bind, x, out, fold, ptr, src, where, upper, place, gate,
                     rows) except NULL:
    """The instruction of ``Tape.pool``."""
    x, out = bind.rows_of(x, "x"), bind.rows_of(out, "out", writes=True)
    ptr, src = bind.flat(ptr, "ptr", np.int64), bind.flat(src, "src", np.int32)
    kinds = {"sum": POOL_SUM, "max": POOL_MAX, "argmax": POOL_ARGMAX, "min": POOL_MIN,
             "argmin": POOL_ARGMIN}
    if fold not in kinds:
        raise ValueError(f"fold is one of {', '.join(kinds)}, got {fold!r}")
    kind = kinds[fold]
    if len(ptr) != len(out) + 1 or ptr[0] != 0 or ptr[len(ptr) - 1] != len(src) \
            or np.any(np.diff(ptr) < 0):
        raise ValueError(f"ptr goes from 0 to the {len(src)} of src in {len(out)} rows")
    if len(src) and not 0 <= src.min() <= src.max() < len(x):
        raise ValueError(f"src names places outside of 0 to {len(x) - 1}")
    _is_of_batch(x, out, "out")
    if (where is not None and fold not in ("max", "min")) \
            or ((upper is not None or gate is not None) and fold != "sum") \
            or (upper is None) != (place is None):
        raise ValueError(f"where is of max and min, upper (with place) and gate of sum: {fold}")
    if where is not None:
        where = bind.rows_of(where, "where", writes=True)
        kind = POOL_MAX_BOTH if fold == "max" else POOL_MIN_BOTH
        if where.shape != out.shape:
            raise ValueError(f"where {where.shape} is not as out {out.shape}")
    if upper is not None:
        upper, kind = bind.rows_of(upper, "upper"), POOL_SUM_AT
        place = bind.flat(place, "place", bind.dtype)
        if upper.shape != x.shape or len(place) != len(src):
            raise ValueError(f"upper {upper.shape} is not as x {x.shape}, or place not as src")
    end = _end(bind, out, None, False, gate)
    cdef pool_t *g = <pool_t *>bind.block(sizeof(pool_t))
    g.kind, g.end, g.n_groups = kind, end, len(out)
    g.x = at(x)
    g.out = g.gate = at(out)
    g.ldx, g.ldo = leading(x), leading(out)
    g.rows = bind.extent(rows, x.shape[1], "rows")
    g.ptr = <const int64_t *>at(ptr)
    g.src = <const int32_t *>at(src)
    if where is not None:
        g.where, g.ldw = at(where), leading(where)
    if upper is not None:
        g.upper, g.ldu = at(upper), leading(upper)
        g.place = at(place)
    if gate is not None:
        g.gate, g.ldz = at(gate), leading(gate)
    same = _same(ptr, src)
    if kind != POOL_SUM_AT and where is None and gate is None and same.any():
        g.same = <const uint8_t *>at(same)
    bind.keep += [ptr, src, place, same]
    return g


cdef int _end(Binding bind, out, bias, relu, gate) except -1:
    """The operations on sums before they are stored, as bits."""
    if bias is not None and bind.flat(bias, "bias", bind.dtype).shape != out.shape[:1]:
        raise ValueError(f"bias {bias.shape} is not one for each of {len(out)} rows")
    if gate is not None and bind.rows_of(gate, "gate").shape != out.shape:
        raise ValueError(f"gate {gate.shape} is not as out {out.shape}")
    return (END_BIAS if bias is not None else 0) | (END_RELU if relu else 0) \
        | (END_GATE if gate is not None else 0)


cdef conv_t *_conv(Binding bind, x, w, out, rows) except NULL:
    cdef conv_t *g = <conv_t *>bind.block(sizeof(conv_t))
    g.x = at(x)
    g.w = at(w)
    g.out = at(out)
    g.ldx, g.ldo = leading(x), leading(out)
    g.rows = bind.extent(rows, x.shape[1], "rows")
    return g
