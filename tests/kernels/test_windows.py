"""Sums over windows against NumPy: at every level, batches that no vector fits, and borders."""

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import horn
from horn._kernels.engine import LEVEL, Tape
from horn.backends import Setup, make
from horn.backends._windows import WindowLists
from horn.compiler.lower import training_program
from horn.program import Expand, every, writes
from horn.scheduling.folds import Squares, joined_of, only_squares

RTOL = {np.float32: 2e-5, np.float64: 1e-12}
# shape below, maps, what else the windows are told
SHAPES = [
    ((6, 5, 3), 7, {"kernel": 3, "padding": "same"}),
    ((9, 2), 20, {"kernel": 4, "stride": 2}),
    ((4, 4, 1), 9, {"kernel": (3, 2), "dilation": 2, "padding": 2}),
    ((1, 1, 5), 1, {"kernel": 1}),
    ((3, 3, 17), 33, {"kernel": 3, "padding": 3, "stride": 3}),
    ((5, 6, 4), 4, {"kernel": 3, "padding": "same", "groups": 4}),
    ((7, 3, 6), 15, {"kernel": (3, 2), "stride": 2, "groups": 3}),
    ((8, 4), 50, {"kernel": 3, "dilation": 2, "padding": 1, "groups": 2}),
    ((6, 5, 2), 5, {"kernel": 3, "stride": 2, "padding": ((0, 2), (3, 1))}),
]
BATCHES = [(1, 1), (16, 16), (33, 40), (47, 47), (3, 64)]  # rows, of how many


def sources_of(link):
    """(positions, maps, places) the neuron below at each place of each window, -1 for none."""
    taps, channels = link.connection.taps(link.source.shape, "").sources, link.source.shape[-1]
    maps, groups = link.connection.channels, link.connection.groups
    heard = np.array([range(channels)[k * channels // groups : (k + 1) * channels // groups]
                      for k in range(groups)])[np.arange(maps) // (maps // groups)]  # fmt: skip
    taps = taps[:, None, :, None]
    found = np.where(taps < 0, -1, taps * channels + heard[:, None])
    return found.reshape(len(taps), maps, -1)


def whole_lists(lists):
    """The pairs (row of x, number of the weight of the first result) of each group."""
    found = []
    for k, first in zip(lists["which"], lists["first"], strict=True):
        runs = range(*lists["ptr"][k : k + 2])
        pairs = [(lists["src"][j] + i * lists["apart"], lists["row"][j] + i) for j in runs
                 for i in range(lists["length"][j])]  # fmt: skip
        found.append([(first + src, lists["base"][row]) for src, row in pairs])
    return found


def some(rng, kind, n, width):
    """Positions of n that a task may have: rows, a range or what is left of them."""
    rows, each = (n // width, width) if kind == "rows" else (n, 1)
    start, stop = sorted(rng.integers(0, rows + 1, 2) * each)
    return np.flatnonzero(rng.random(n) < 0.6) if kind == "gaps" else np.arange(start, stop)


@pytest.mark.parametrize("below, maps, told", [*SHAPES, ((7, 6, 2), 3, {"kernel": 3, "stride": 2})])
@pytest.mark.parametrize("kind", ["all", "rows", "range", "gaps"])
def test_lists_have_each_tap_inside_once(below, maps, told, kind, rng):
    """In the order of windows, whatever positions a task has at both ends."""
    net = horn.Network()
    net.input(below)
    link, above = net.layer(connect=horn.Convolution(maps, **told)).links[0], net.layers[1]
    n_channels, n_parts = below[-1], told.get("groups", 1)
    taps, heard, per = (
        link.connection.taps(below, "").sources,
        n_channels // n_parts,
        maps // n_parts,
    )
    mine, theirs = (
        np.arange(n) if kind == "all" else some(rng, kind, n, shape[1] if len(shape) > 2 else 1)
        for n, shape in ((above.n_positions, above.shape), (net.layers[0].n_positions, below))
    )
    neurons = ((p[:, None] * n + np.arange(n)).reshape(-1)
               for p, n in ((mine, maps), (theirs, n_channels)))  # fmt: skip
    lists = WindowLists(link, *neurons)
    number = {position: k for k, position in enumerate(theirs)}
    forward, back = [], [[] for _ in range(len(theirs) * n_parts)]
    places = np.full((len(mine), taps.shape[1] * heard), -1)
    for k, position in enumerate(mine):
        looks = [(number[q], t) for t, q in enumerate(taps[position]) if q in number]
        for part in range(n_parts):
            first = part * per * taps.shape[1] * heard  # the weights of a part's first map
            forward.append([(at * n_channels + part * heard + c, first + t * heard + c)
                            for at, t in looks for c in range(heard)])  # fmt: skip
            for at, t in looks:
                back[at * n_parts + part] += [
                    (k * maps + m, (m * taps.shape[1] + t) * heard)
                    for m in range(part * per, (part + 1) * per)
                ]
        for at, t in looks:
            places[k, t * heard : (t + 1) * heard] = at * n_channels + np.arange(heard)
    src, which, first = (lists.gradients[name] for name in ("src", "which", "first"))
    assert (lists.gradients["n_parts"], lists.gradients["step"]) == (n_parts, heard)
    assert whole_lists(lists.to_maps) == forward
    assert whole_lists(lists.to_channels) == back
    np.testing.assert_array_equal(np.where(src < 0, -1, src)[which], np.where(
        places < 0, -1, places - first[:, None]))  # fmt: skip


@pytest.mark.parametrize(
    "below, kernel, padding, n_lists",
    [
        ((512, 512, 1), 7, "valid", (1, 13**2)),
        ((20000, 1), 1001, "same", (1001, 1001)),
        ((4000, 1), 4000, "valid", (1, 4000)),  # backward one tap each, of 4,000
    ],
)
def test_positions_inside_of_a_picture_share_their_lists(below, kernel, padding, n_lists):
    net = horn.Network()
    net.input(below)
    tracemalloc.start()
    link = net.layer(connect=horn.Convolution(4, kernel, padding=padding)).links[0]
    lists = WindowLists(link)
    made = lists.to_maps, lists.to_channels, lists.gradients
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tuple(len(each["ptr"]) - 1 for each in made[:2]) == n_lists
    assert peak < 100e6, "it was 150 bytes for each tap of each position: 1.9 GB and 3 GB"


@pytest.mark.parametrize("below, maps, told", SHAPES)
@pytest.mark.parametrize("rows, size", BATCHES)
def test_sums_and_gradients(below, maps, told, rows, size, dtype, n_threads, rng):
    net = horn.Network()
    net.input(below)
    link = net.layer(connect=horn.Convolution(maps, **told)).links[0]
    lists, n = WindowLists(link), int(np.prod(below))
    sources = sources_of(link)
    n_positions, _, n_places = sources.shape

    def drawn(*shape):
        return rng.standard_normal(shape).astype(dtype)

    x, w, y = drawn(n, size), drawn(maps, n_places), drawn(n_positions * maps, size)
    sent, back, gradient = np.full_like(y, 7), np.full_like(x, 7), np.full_like(w, 7)
    apart = np.full_like(y, 7)
    tape = Tape(dtype, n_threads)
    extent = tape.dim(size)
    tape.windows(x, w.reshape(-1), sent, **lists.to_maps, rows=extent)
    tape.windows(y, w.reshape(-1), back, **lists.to_channels, rows=extent)
    tape.windows(x, w.reshape(-1), apart, of_squares=True, **lists.to_maps, rows=extent)
    tape.window_gradients(x, y, gradient, **lists.gradients, rows=extent)
    tape.dims[extent.index] = rows
    tape.run()

    padded = np.concatenate([x, np.zeros((1, size), dtype)]).astype(np.float64)[:, :rows]
    seen = padded[sources]  # (positions, maps, places, rows)
    flows = y.astype(np.float64).reshape(n_positions, maps, size)[:, :, :rows]
    wide = w.astype(np.float64)
    expected = np.einsum("pmkb,mk->pmb", seen, wide).reshape(-1, rows)
    near = {"rtol": RTOL[dtype], "atol": RTOL[dtype] * 10}
    np.testing.assert_allclose(sent[:, :rows], expected, **near)
    np.testing.assert_array_equal(sent[:, rows:], 7)
    is_inside = (sources >= 0)[:, :, :, None]  # outside of the borders there is no message
    squares = np.where(is_inside, (seen - wide[None, :, :, None]) ** 2, 0).sum(axis=2)
    np.testing.assert_allclose(apart[:, :rows], squares.reshape(-1, rows), **near)
    np.testing.assert_array_equal(apart[:, rows:], 7)
    into = np.zeros((n + 1, rows))
    each = np.einsum("pmb,mk->pmkb", flows, wide)
    np.add.at(into, sources.reshape(-1), each.reshape(-1, rows))
    np.testing.assert_allclose(back[:, :rows], into[:-1], **near)
    np.testing.assert_array_equal(back[:, rows:], 7)
    np.testing.assert_allclose(gradient, np.einsum("pmkb,pmb->mk", seen, flows), **near)


@pytest.mark.parametrize("groups", [1, 2])
def test_threads_change_no_bit(groups, rng):
    net = horn.Network()
    net.input((8, 8, 4))
    link = net.layer(connect=horn.Convolution(10, 3, padding="same", groups=groups)).links[0]
    lists = WindowLists(link)
    x = rng.standard_normal((256, 50)).astype(np.float32)
    y = rng.standard_normal((640, 50)).astype(np.float32)
    w = rng.standard_normal(360 // groups).astype(np.float32)
    found = []
    for n_threads in (1, 2, 3):
        sent, gradient = np.zeros_like(y), np.zeros((10, 36 // groups), np.float32)
        tape = Tape(np.float32, n_threads)
        tape.windows(x, w, sent, **lists.to_maps)
        tape.window_gradients(x, y, gradient, **lists.gradients)
        tape.run()
        found.append(sent.tobytes() + gradient.tobytes())
    assert len(set(found)) == 1


POOLS = [
    ((6, 5, 3), {"kernel": 2, "stride": 2}),
    ((7, 7, 2), {"kernel": 3, "stride": 2, "padding": "same"}),
    ((7, 6, 2), {"kernel": 3, "stride": 2, "padding": ((2, 0), (0, 2))}),
    ((5, 4), {"kernel": 1, "stride": 2}),
]


@pytest.mark.parametrize("below, told", POOLS)
@pytest.mark.parametrize("rows, size", BATCHES)
def test_folds_and_their_gradients(below, told, rows, size, dtype, n_threads, rng):
    net = horn.Network()
    net.input(below)
    edges = net.layer(connect=horn.Window(**told)).links[0].edges
    ptr, n = edges.indptr.astype(np.int64), int(np.prod(below))
    src, n_out = edges.indices.astype(np.int32), len(ptr) - 1
    # many equal ones, and what is no number
    x = rng.integers(-3, 3, (n, size)).astype(dtype)
    x[rng.random(x.shape) < 0.02] = np.nan
    flows = rng.standard_normal((n_out, size)).astype(dtype)
    order = np.argsort(src, kind="stable").astype(np.int32)
    receivers = np.repeat(np.arange(n_out, dtype=np.int32), np.diff(ptr))
    back = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=n))]).astype(np.int64)
    places = (np.arange(len(src)) - ptr[receivers]).astype(dtype)
    tape, found = Tape(dtype, n_threads), {}
    extent = tape.dim(size)
    for fold in ("sum", "max", "min", "argmax", "argmin", "place of max", "place of min"):
        found[fold] = np.full_like(flows, 7)
    for fold in ("sum", "argmax", "argmin"):
        tape.pool(x, found[fold], fold, ptr=ptr, src=src, rows=extent)
    for fold in ("max", "min"):
        where = found["place of " + fold]
        tape.pool(x, found[fold], fold, ptr=ptr, src=src, where=where, rows=extent)
    into, gated = np.full_like(x, 7), np.full_like(x, 7)
    lists = {"ptr": back, "src": receivers[order], "rows": extent}
    tape.pool(flows, into, "sum", upper=found["argmax"], place=places[order], **lists)
    tape.pool(flows, gated, "sum", gate=x, **lists)
    tape.dims[extent.index] = rows
    tape.run()

    expected, given = np.zeros((n, rows)), np.zeros((n, rows))
    for k in range(n_out):
        seen, shown = x[src[ptr[k] : ptr[k + 1]], :rows], flows[k, :rows]
        np.testing.assert_allclose(found["sum"][k, :rows], seen.sum(0), rtol=1e-6)
        for fold, best in (("max", np.max), ("min", np.min)):
            np.testing.assert_array_equal(found[fold][k, :rows], best(seen, axis=0))
        for b in range(rows):
            for fold, place in (("max", seen[:, b].argmax()), ("min", seen[:, b].argmin())):
                assert found["arg" + fold][k, b] == found["place of " + fold][k, b] == place
            expected[src[ptr[k] + int(found["argmax"][k, b])], b] += shown[b]
        given[src[ptr[k] : ptr[k + 1]]] += shown
    for array in (*found.values(), into, gated):
        np.testing.assert_array_equal(array[:, rows:], 7)
    near = {"rtol": RTOL[dtype], "atol": RTOL[dtype]}
    np.testing.assert_allclose(into[:, :rows], expected, **near)
    np.testing.assert_allclose(gated[:, :rows], np.where(x[:, :rows] > 0, given, 0), **near)


def test_what_becomes_of_sums(dtype, rng):
    """Bits as of loops after the sums: a bias, relu, a gate."""
    net = horn.Network()
    net.input((5, 5, 3))
    link = net.layer(connect=horn.Convolution(11, 3, padding=1)).links[0]
    told = WindowLists(link).to_maps
    x = rng.standard_normal((75, 37)).astype(dtype)
    w = rng.standard_normal(297).astype(dtype)
    bias = rng.standard_normal(275).astype(dtype)
    gate = rng.standard_normal((275, 37)).astype(dtype)
    gate[::5] = np.nan
    plain, sent, gated = (np.zeros((275, 37), dtype) for _ in range(3))
    tape = Tape(dtype, 1)
    tape.windows(x, w, plain, **told)
    tape.windows(x, w, sent, bias=bias, relu=True, **told)
    tape.windows(x, w, gated, gate=gate, **told)
    tape.run()
    np.testing.assert_array_equal(sent, np.maximum(plain + bias[:, None], 0))
    np.testing.assert_array_equal(gated, np.where(gate > 0, plain, 0))


@pytest.mark.parametrize(
    "told, sentence",
    [
        ({"fold": "median"}, "fold is one of sum, max, argmax, min, argmin"),
        ({"ptr": np.array([0, 3])}, "ptr goes from 0 to the 2 of src in 1 rows"),
        ({"src": np.array([0, 3], np.int32)}, "src names places outside of 0 to 2"),
        ({"gate": np.zeros((1, 8))}, "gate of sum"),
        ({"where": np.zeros((2, 8))}, "is not as out"),
        ({"fold": "sum", "upper": np.zeros((3, 8))}, "upper .with place."),
    ],
)
def test_folds_that_do_not_fit_are_refused(told, sentence):
    x, out = np.zeros((3, 8)), np.zeros((1, 8))
    given = {"fold": "max", "ptr": np.array([0, 2]), "src": np.array([0, 2], np.int32)}
    Tape(np.float64).pool(x, out, **given)
    with pytest.raises(ValueError, match=sentence):
        Tape(np.float64).pool(x, out, **given | told)


class MaxPool(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input for m in messages))


def test_what_follows_windows_is_done_with_them():
    """No loop of its own has a bias, relu or its gradient, an extreme's place, or a copy."""
    net = horn.Network(seed=1)
    net.input((8, 8, 1))
    net.layer(connect=horn.Convolution(4, 3), activation="relu")
    net.layer(connect=horn.Convolution(4, 3), activation="relu")
    net.layer(connect=horn.Window(2, stride=2), neuron=MaxPool)
    net.output(2, activation="softmax", loss="cross_entropy")
    program = training_program(net, horn.SGD(0.1), "label")
    found = joined_of(program)
    joined = {
        end.out: (writes(first)[0], end.bias, end.relu, end.gate)
        for first, end in found.with_end.values()
    }
    assert joined == {
        "layer1.output": ("layer1.sum", "layer1.bias.each", True, ""),
        "layer2.output": ("layer2.sum", "layer2.bias.each", True, ""),
        "layer3.output": ("layer3.max", "", False, ""),
        "layer2.delta": ("layer2.gradient", "", False, "layer2.output"),
        "layer1.delta": ("layer1.gradient", "", False, "layer1.output"),
    }
    assert list(found.places.values()) == ["layer3.argmax"]


class Near(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += (m.weight - m.input) ** 2
        self.feedforward(horn.math.exp(-total))


class Doubled(horn.Neuron):
    """Its weight is read elsewhere, too, and so each synapse's is needed."""

    def forward(self, messages):
        apart = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(apart + max(m.weight for m in messages))


class Scaled(horn.Neuron):
    """Its squares have a factor: no sum of squares alone."""

    scale = horn.Weight(init=1.0)
    weight = horn.Weight()

    def forward(self, messages):
        self.feedforward(sum(m.scale * (m.input - m.weight) ** 2 for m in messages))


@pytest.mark.parametrize(
    "neuron, connect, n_squares, n_each",
    [
        (Near, horn.Convolution(4, 3), 1, 0),
        (Doubled, horn.Convolution(4, 3), 1, 1),
        (Scaled, horn.Convolution(4, 3), 0, 2),
        (Near, horn.Convolution(4, 3, groups=2), 1, 0),
        (Near, horn.Local(4, 3), 0, 0),
    ],
)
def test_squared_differences_are_summed_by_the_kernels_of_windows(
    neuron, connect, n_squares, n_each
):
    net = horn.Network(seed=1)
    net.input((8, 8, 2))
    net.layer(connect=connect, neuron=neuron, bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    program = training_program(net, horn.SGD(0.1), "label")
    found = [only_squares(program, s) for s in every(program.statements)]
    assert [s for s in found if s] == [Squares("layer0.output", "layer1.weight")] * n_squares
    done = joined_of(program).done
    weights = [s for s in every(program.statements) if isinstance(s, Expand) and s.frame.layer == 1]
    assert sum(id(s) not in done for s in weights) == n_each


def lists(**changes):
    found = {
        "ptr": np.array([0, 1, 2]), "src": np.array([0, 2], np.int32),
        "row": np.array([0, 1], np.int32), "length": np.array([1, 1], np.int32),
        "which": np.array([0, 1], np.int32), "first": np.array([0, 0], np.int32),
        "base": np.array([0, 1]), "step": 2,
    }  # fmt: skip
    return found | changes


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"ptr": np.array([0, 1, 3])}, "ptr goes from 0 to the number of runs"),
        ({"src": np.array([0, 3], np.int32)}, "src names places outside of 0 to 2"),
        ({"row": np.array([0, 2], np.int32)}, "row names places outside of 0 to 1"),
        ({"step": 3}, "base and step reach beyond the 4 weights"),
        ({"length": np.array([1, 2], np.int32)}, "row names places outside of 0 to 1"),
        ({"length": np.array([1, 0], np.int32)}, "length has runs of no pair"),
        ({"first": np.array([0, 1], np.int32)}, "src names places outside of 0 to 2"),
        ({"first": np.array([-1, 0], np.int32)}, "src names places outside of 0 to 2"),
        ({"which": np.array([0, 2], np.int32)}, "which names places outside of 0 to 1"),
        ({"which": np.array([0, 1, 1], np.int32)}, "which .* of other positions"),
        (
            {"which": np.zeros(3, np.int32), "first": np.zeros(3, np.int32)},
            "4 rows of out are no 3",
        ),
        ({"src": np.array([0, 2])}, "src is a contiguous vector of int32"),
        ({"step": -1}, "step and apart are at least 0, got -1 and 1"),
        ({"apart": -1}, "step and apart are at least 0, got 2 and -1"),
    ],
)
def test_lists_that_do_not_fit_are_refused(changes, sentence):
    x, w, out = np.zeros((3, 8)), np.zeros(4), np.zeros((4, 8))
    Tape(np.float64).windows(x, w, out, **lists())
    with pytest.raises(ValueError, match=sentence):
        Tape(np.float64).windows(x, w, out, **lists(**changes))


def one_weight(n):
    """The lists of n groups, each of which has one row of x, times one weight."""
    return lists(
        ptr=np.array([0, 1]), src=np.zeros(1, np.int32), row=np.zeros(1, np.int32),
        length=np.ones(1, np.int32), which=np.zeros(n, np.int32), base=np.zeros(1, np.int64),
        first=np.arange(n, dtype=np.int32),
    )  # fmt: skip


def test_a_row_alone_may_have_any_stride(dtype, rng):
    """Of one row NumPy's stride may be that of a number, as in the transpose of a column."""
    column = rng.standard_normal((100, 1)).astype(dtype)
    for x in (column.T, column.T.copy(), column[:, 0][None]):
        out = np.full((1, 100), np.nan, dtype)
        tape = Tape(dtype)
        tape.windows(x, np.ones(1, dtype), out, **one_weight(1))
        tape.run()
        np.testing.assert_array_equal(out, column.T)


def test_rows_that_do_not_follow_each_other_are_refused(dtype):
    rows = np.ones((2, 100), dtype)
    for x in (rows[::-1], np.broadcast_to(rows[0], (2, 100))):
        with pytest.raises(ValueError, match=r"contiguous rows, each after the one before, got"):
            Tape(dtype).windows(x, np.ones(1, dtype), rows.copy(), **one_weight(2))


@pytest.mark.parametrize("backend, rtol", [("reference", 1e-6), ("kernels", 1e-3)])
def test_a_window_over_all_of_a_long_signal_is_right(backend, rtol):
    """Lists had 50,000 times 50,000 places. Kernels sum one window in float, by design: 5002.5; the
    judge did, too.
    """
    n = 50_000
    net = horn.Network(seed=1)
    net.input((n, 1))
    net.layer(connect=horn.Convolution(1, kernel=n), activation="identity")
    net.output(1, activation="identity", loss="squared_error")
    engine = make(backend, Setup(net, None, None))
    engine.load(
        {
            name: np.full_like(array, 0.0 if "bias" in name else 0.1 if array.size > 1 else 1.0)
            for name, array in engine.parameters().items()
        }
    )
    found = engine.outputs(np.ones((1, n), np.float32))
    np.testing.assert_allclose(np.ravel(found), n * np.float64(np.float32(0.1)), rtol=rtol)


def test_arrays_of_another_batch_are_refused():
    """Numbers beyond the narrower one were read, and written."""
    x, w, wide = np.zeros((3, 8)), np.zeros(4), np.zeros((4, 16))
    with pytest.raises(ValueError, match=r"x .3, 8. and out .4, 4. differ in their batch"):
        Tape(np.float64).windows(x, w, wide[:, :4], **lists())
    src, which, first = np.zeros((1, 5), np.int32), *np.zeros((2, 2), np.int32)
    told = {"src": src, "which": which, "first": first}
    with pytest.raises(ValueError, match=r"x .3, 8. and y .4, 4. differ in their batch"):
        Tape(np.float64).window_gradients(x, wide[:, :4], np.zeros((2, 5)), **told)


def test_gradients_that_do_not_fit_are_refused():
    x, y, out = np.zeros((3, 8)), np.zeros((4, 8)), np.zeros((2, 5))
    src, which, first = np.zeros((1, 5), np.int32), *np.zeros((2, 2), np.int32)
    lists = {"src": src, "which": which, "first": first}
    Tape(np.float64).window_gradients(x, y, out, **lists)
    for change in ({"src": src + 3}, {"src": src - 2}, {"first": first + 3}, {"first": first - 1}):
        with pytest.raises(ValueError, match="src names places outside of -1 to 2"):
            Tape(np.float64).window_gradients(x, y, out, **lists | change)
    with pytest.raises(ValueError, match="which names places outside of 0 to 0"):
        Tape(np.float64).window_gradients(x, y, out, **lists | {"which": which + 1})
    for changes in ({"y": y[:3]}, {"n_parts": 3}):
        with pytest.raises(ValueError, match="do not give out"):
            Tape(np.float64).window_gradients(x, changes.pop("y", y), out, **lists | changes)
    with pytest.raises(ValueError, match="src names places outside of -1 to 2"):
        Tape(np.float64).window_gradients(x, y, out, **lists, n_parts=2, step=3)
    for wrong in ({"n_parts": 0}, {"step": -1}):
        with pytest.raises(ValueError, match="n_parts is at least 1 and step 0"):
            Tape(np.float64).window_gradients(x, y, out, **lists, **wrong)
    with pytest.raises(ValueError, match="contiguous rows"):
        Tape(np.float64).window_gradients(np.zeros((3, 16))[:, ::2], y, out, **lists)


@pytest.mark.cluster
@pytest.mark.parametrize("level", range(LEVEL))
@pytest.mark.skipif("HORN_SIMD" in os.environ, reason="it is one of these levels")
def test_all_this_at_lower_levels(level):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "HORN_SIMD": str(level)}, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
