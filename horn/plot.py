"""Pictures of trainings and models, with matplotlib (the extra ``plot``).

    history(run)           loss and other measurements, by epoch
    weights(model, layer)  the weights of each neuron of a layer as pictures: filters
    confusion(run, data)   the classes of samples against the predicted ones
    raster(run, x, layer)  the output of each neuron at each step of a sequence: spikes
    live()                 a callback that draws while it trains

All but ``live`` return a ``matplotlib.figure.Figure``. A notebook shows that of a cell's last line,
and others by ``display(figure)``; ``path`` writes it, too (.png, .svg, .pdf).
"""

from __future__ import annotations

import functools
import importlib.util
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from horn.answers import answer_kind, by_step, checked_answer_kind
from horn.callbacks import Callback, TrainingContext, may_add_columns, place
from horn.connections.placed import PLACED
from horn.data.classes import as_array
from horn.errors import ModelError
from horn.mistakes import of_module, shown
from horn.own_lines import shell

MOST = 64  # the most neurons of a layer in a picture
MOST_SEQUENCES = 8  # the most sequences side by side
# Columns that a picture of a training leaves out unless they are named.
UNSEEN = ("epoch", "iteration", "seconds", "samples_per_s", "learning_rate", "group_loss", "groups")
Path = str | os.PathLike[str]


class LivePlot(Callback):
    """The callback that ``live`` returns."""

    def __init__(self, columns: tuple[str, ...], path: str | os.PathLike[str] | None) -> None:
        _check_names("live", columns)
        self.columns, self.path = columns, path
        self.figure: Any = None
        self._handle: Any = None

    def check(self, job: Any) -> None:
        _check("live", self.path)
        if not may_add_columns(job.callbacks):
            self._check_shown([name for name in self.columns if name in job.columns], job.columns)

    def _check_shown(self, shown: Sequence[str], columns: Iterable[str]) -> None:
        if not shown:
            raise ModelError(
                f"horn.plot.live: none of {', '.join(self.columns)} is measured; the columns are "
                f"{', '.join(columns)}"
            )

    def on_epoch_end(self, context: TrainingContext) -> None:
        rows = context.history.rows
        shown = [name for name in self.columns if _is_measured(rows, name)]
        self._check_shown(shown, context.history.columns)
        self.figure = _figure(6.4, 3.6)
        axes: Any = self.figure.subplots()
        for name in shown:
            _plot(axes, rows, name)
        axes.set_xlabel("epoch")
        axes.set_xlim(0.5, max(context.n_epochs, context.epoch) + 0.5)
        axes.legend()
        if self.path is not None:
            _written(self.figure, self.path)
        elif getattr(shell(), "kernel", None) is not None:
            self._show()

    def _show(self) -> None:
        """Show the figure as an image, in place of that of the epoch before."""
        from IPython import display  # a notebook has it

        show: Any = display.display
        make: Any = display.Image
        picture = make(data=_png(self.figure), format="png")
        if self._handle is None:
            self._handle = show(picture, display_id=True)
        else:
            self._handle.update(picture)

    def on_train_begin(self, context: TrainingContext) -> None:
        self._handle = None  # another run has its own picture


def live(*columns: str, path: str | os.PathLike[str] | None = None) -> LivePlot:
    """A callback that draws columns of the history after each epoch: in the cell of a notebook, or
    into a file (.png, .svg, .pdf). Columns: loss and val_loss by default.
    """
    return LivePlot(columns or ("loss", "val_loss"), path)


def history(run: Any, *columns: str, path: Path | None = None) -> Any:
    """Draw the measurements after each epoch: losses on the left, accuracies and others on the
    right.

    run : the result of ``horn.train``, or its history. columns : names, by default all measured
    ones except times and rates; of "group_loss" each group is a line. Raises ModelError : one of
    them was not measured.
    """
    _check("history", path)
    _check_names("history", columns)
    found = getattr(run, "history", run)
    rows = list(found) if isinstance(found, Iterable) else [found]
    if not all(isinstance(row, Mapping) for row in rows):
        raise ModelError(
            "horn.plot.history: needs what horn.train returned, its history, or a list of rows as "
            f"dicts, got {_said(run)}"
        )
    # A job resumed from a checkpoint may have had other columns before.
    names = dict.fromkeys(name for row in rows for name in row)
    measured = [name for name in names if _is_measured(rows, name)]
    shown = [name for name in columns or measured if columns or name not in UNSEEN]
    for name in shown:
        if name not in measured:
            raise ModelError(
                f"horn.plot.history: {name!r} was not measured; the columns are "
                f"{', '.join(measured) or 'none: there is no epoch'}"
            )
    if not shown:
        raise ModelError("horn.plot.history: nothing was measured: there is no epoch to draw")
    sides = [[n for n in shown if n.endswith("loss")], [n for n in shown if not n.endswith("loss")]]
    panels = [names for names in sides if names]
    figure = _figure(4.4 * len(panels), 3.2)
    for axes, own in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in own:
            _plot(axes, rows, name)
        axes.set_xlabel("epoch")
        axes.legend()
    return _written(figure, path)


def confusion(model: Any, data: Any, y: Any = None, *, path: Path | None = None) -> Any:
    """Draw the number of samples by their class (a row) and their predicted class (a column).

    model : a model, or the result of ``horn.train``. data : samples with their labels, or x and y,
    as for ``model.evaluate``, which judges the same outputs: those that are right are on the
    diagonal. The numbers are ``figure.counts``, (classes, classes) int64.

    Raises
    ------
    ModelError : the model tells no classes apart, or the targets are no labels. DataError : as of
    ``model.evaluate``, for labels that the model does not have.
    """
    _check("confusion", path)
    model = _model(model, "confusion")
    needed = (
        "horn.plot.confusion: needs a model of one output that tells classes apart, and data with "
        "labels, 0 and 1 of a single output: horn.plot.confusion(run, (x, y))"
    )
    if answer_kind(model.network, model.target, np.empty(0, int)) is None:
        raise ModelError(needed)
    found, outputs = model._judged(data, y, "horn.plot.confusion")
    if not found.has_labels or checked_answer_kind(model.network, found, model.target) is None:
        raise ModelError(needed)
    outputs, y = by_step(outputs, np.asarray(found.y), found.lengths)
    taken = outputs.argmax(axis=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0.5).astype(int)
    n = max(outputs.shape[1], 2)
    counts = np.zeros((n, n), np.int64)
    np.add.at(counts, (y, taken), 1)
    names = range(n) if model.classes is None else as_array(model.classes)
    figure = _figure(1.5 + 0.42 * n, 1.2 + 0.42 * n)
    axes = figure.subplots()
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0)
    if n <= 30:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if share[row, column] > 0.5 else "black"
            said = f"{count}" if count else ""
            axes.text(column, row, said, ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(n), [str(name) for name in names], rotation=90)
        axes.set_yticks(range(n), [str(name) for name in names])
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    figure.counts = counts
    return _written(figure, path)


def weights(model: Any, layer: str | None = None, *, path: Path | None = None) -> Any:
    """Draw the weights of a layer's neurons as pictures, 64 neurons at most.

    model : a model, or the result of ``horn.train``. layer : its name; by default the first that
    has weights. A convolution shows each map's window, other layers each neuron's weights at the
    positions of the neurons below, shared or its own: those of 784 pixels are 28 x 28. Three
    channels are colours; with another number each channel is a picture, those of a neuron in a
    row. Blue is negative, red positive, white 0; colours have their own middle.

    Raises
    ------
    ModelError : there is no such layer, or it has no weights.
    """
    model = _model(model, "weights")
    below: Mapping[str, tuple[int, ...]] = {}
    edges: dict[str, Any] = {}
    arrays: dict[str, list[str]] = {}
    for each in model.network.layers[1:]:
        for link in each.links:
            for name in () if link.tie is not None else link.weights.values():
                arrays.setdefault(each.name, []).append(name)
                below = {**below, name: link.source.shape}
                is_window = link.is_shared and type(link.connection) in PLACED.values()
                edges[name] = None if is_window else link.edges
    return draw(model.parameters, arrays, below, edges, layer, path)


def raster(model: Any, x: Any, name: str, *, path: Path | None = None) -> Any:
    """Draw the output of each neuron of a layer (a row) at each step (a column) of a few sequences,
    side by side: of a spiking layer its spikes. Darker is more; blue and red where numbers are
    negative, too.

    model : a model of sequences, or the result of ``horn.train``. x : sequences, as for
    ``model.predict``; the first 8 are drawn. name : a layer, or "layer.state" of a State. The
    numbers are ``figure.sent``, as ``model.record`` returns them.

    Raises
    ------
    ModelError : there is no such layer or State, or it is a model of samples.
    """
    _check("raster", path)
    model = _model(model, "raster")
    if not hasattr(x, "__getitem__") or not len(x):
        raise ModelError(
            "horn.plot.raster: x is an array or a list of one sequence or more, as for "
            f"model.predict; got {_said(x)}"
        )
    is_one = model.is_one_sequence(x)
    sent = model.record(x if is_one else x[:MOST_SEQUENCES], name)[name]
    drawn = [sent] if is_one else sent
    low, high = min(each.min() for each in drawn), max(each.max() for each in drawn)
    largest = float(max(high, -low)) or 1.0
    least, colours = (-largest, "RdBu_r") if low < 0 else (0.0, "Greys")
    figure = _figure(1.2 + 1.8 * len(drawn), 3.2)
    panels = figure.subplots(1, len(drawn), squeeze=False, sharey=True)[0]
    for axes, each in zip(panels, drawn, strict=True):
        axes.imshow(each.T, cmap=colours, vmin=least, vmax=largest, aspect="auto",
                    interpolation="nearest", origin="lower")  # fmt: skip
        axes.set_xlabel("step")
    panels[0].set_ylabel(f"neurons of {name}")
    figure.sent = sent
    return _written(figure, path)


def draw(
    parameters: Mapping[str, Any],
    arrays: Mapping[str, Sequence[str]],
    below: Mapping[str, tuple[int, ...]],
    edges: Mapping[str, Any],
    layer: str | None,
    path: Path | None,
) -> Any:
    """Draw weights, as ``weights``. arrays : names of weights, by layer. below : the shape of the
    layer that they hear. edges : of sparse connections, but None of windows with shared weights.
    """
    _check("weights", path)
    known = {name: [a for a in own if a in parameters] for name, own in arrays.items()}
    known = {name: own for name, own in known.items() if own}
    if layer is None:
        layer = next(iter(known), None)
    if not isinstance(layer, str) or layer not in known:
        raise ModelError(
            f"horn.plot.weights: layer {layer!r} has no weights; those that have are "
            f"{', '.join(known) or 'none'}"
        )
    pictures = [
        picture
        for name in known[layer]
        for picture in _pictures(np.asarray(parameters[name]), below[name], edges.get(name))
    ]
    figure = _figure(6.4, 6.4)
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_title(layer, fontsize=9)
    if all(picture.shape[2] == 3 for picture in pictures):
        # of a neuron that hears nothing all is NaN
        spans = [
            (p, np.nanmin(p, initial=math.inf), np.nanmax(p, initial=-math.inf)) for p in pictures
        ]
        tiles = [[(p - low) / ((high - low) or 1.0)] for p, low, high in spans]
        axes.imshow(np.nan_to_num(_mosaic(tiles), nan=1.0))
    else:
        channels = [[picture[:, :, c] for c in range(picture.shape[2])] for picture in pictures]
        whole = _mosaic(channels)
        largest = float(np.nanmax(np.abs(whole), initial=0.0)) or 1.0
        shown = axes.imshow(whole, cmap="RdBu_r", vmin=-largest, vmax=largest)
        figure.colorbar(shown, shrink=0.5)
    return _written(figure, path)


def _mosaic(rows: Sequence[Sequence[Any]]) -> Any:
    """Pictures side by side, NaN between them: a row for each neuron, or near a square where each
    neuron has a single picture.
    """
    if len(rows[0]) == 1:
        cells, across = [row[0] for row in rows], math.ceil(math.sqrt(len(rows)))
        rows = [cells[k : k + across] for k in range(0, len(cells), across)]
    height = max(cell.shape[0] for row in rows for cell in row)
    width = max(cell.shape[1] for row in rows for cell in row)
    across = max(map(len, rows))
    size = (len(rows) * (height + 1) - 1, across * (width + 1) - 1)
    whole = np.full((*size, *rows[0][0].shape[2:]), np.nan)
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            top, left = y * (height + 1), x * (width + 1)
            whole[top : top + cell.shape[0], left : left + cell.shape[1]] = cell
    return whole


def _pictures(array: Any, below: tuple[int, ...], edges: Any) -> Iterable[Any]:
    """A picture of each chosen neuron: (height, width, channels); NaN where there is no synapse."""
    n = len(edges.indptr) - 1 if edges is not None else len(array)
    if edges is not None and edges.is_shared:
        array = array.ravel()[edges.weight]
    chosen = np.unique(np.linspace(0, n - 1, min(n, MOST)).astype(int))
    for o in chosen:
        if edges is not None:
            first, end = edges.indptr[o], edges.indptr[o + 1]
            own = np.full(math.prod(below), np.nan)
            own[edges.indices[first:end]] = array[first:end]
            picture = own.reshape(_as_image(below))
            there = np.argwhere(~np.isnan(picture))
            if len(there):  # only the window around its synapses
                (top, left, _), (bottom, right, _) = there.min(axis=0), there.max(axis=0)
                picture = picture[top : bottom + 1, left : right + 1]
            yield picture
        elif array.ndim == 4:
            yield array[o]
        elif array.ndim == 3:  # along a line
            yield array[o][None]
        else:
            yield array[o].reshape(_as_image(below))


def _as_image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    side = math.isqrt(shape[0])
    return (side, side, 1) if side * side == shape[0] else (1, shape[0], 1)


def _is_measured(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    known = (row.get(name) for row in rows)
    if name == "group_loss":
        return any(known)
    return any(isinstance(value, Real) for value in known)  # NumPy's numbers count, too


def _plot(axes: Any, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    """Plot a column by epoch as a line; of "group_loss" one line for each group."""
    x = [row.get("epoch", k) for k, row in enumerate(rows, 1)]
    if name != "group_loss":
        axes.plot(x, [row.get(name) for row in rows], marker=".", label=name)
        return
    own = [dict(zip(row.get("groups") or (), row.get(name) or (), strict=False)) for row in rows]
    for group in sorted({group for each in own for group in each}):
        y = [each.get(group) for each in own]
        axes.plot(x, y, marker=".", label=f"loss of group {group}")


def _model(given: Any, name: str) -> Any:
    """The model of a run, or the given model. Raises ModelError."""
    model = getattr(given, "model", given)
    if not all(hasattr(type(model), method) for method in ("predict", "record", "evaluate")):
        raise ModelError(
            f"horn.plot.{name}: needs a model, or what horn.train returned, got {_said(given)}"
        )
    return model


def _said(thing: Any) -> str:
    return f"{thing!r:.60}" if isinstance(thing, (str, int, type(None))) else type(thing).__name__


def _check_names(name: str, columns: Sequence[Any]) -> None:
    for column in columns:
        if not isinstance(column, str):
            raise ModelError(
                f"horn.plot.{name}: columns are names, one after the other, as in "
                f'horn.plot.{name}({"run, " * (name == "history")}"loss", "val_loss"); got '
                f"{_said(column)}"
            )


def _check(name: str, path: Path | None) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ModelError(f"horn.plot.{name} needs matplotlib; pip install 'horn-bsp[plot]'")
    if path is None:
        return
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"horn.plot.{name}: path is that of a picture, got {shown(path)}")
    from matplotlib.backend_bases import FigureCanvasBase  # an extra

    suffix, known = os.path.splitext(path)[1][1:], FigureCanvasBase.get_supported_filetypes()
    if suffix and suffix.lower() not in known:
        raise ModelError(
            f"horn.plot.{name}: {os.fspath(path)}: there is no picture of the kind .{suffix}; "
            "write .png, .svg or .pdf"
        )


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # an extra; draws without a display

    figure: Any = Figure(figsize=(width, height), layout="constrained")
    # A notebook asks for it: it draws figures by itself only after matplotlib.pyplot was imported.
    figure._repr_png_ = functools.partial(_png, figure)
    return figure


def _png(figure: Any) -> bytes:
    """The bytes of a .png file of a figure."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


def _written(figure: Any, path: Path | None) -> Any:
    if path is not None:
        try:
            figure.savefig(place(path))
        except OSError as error:
            raise ModelError(f"{path}: cannot be written ({error.strerror})") from error
    return figure


if not TYPE_CHECKING:  # type checkers report unknown names themselves
    _NAMES = ("confusion", "history", "live", "raster", "weights")
    __getattr__, __dir__ = of_module(__name__, _NAMES)
