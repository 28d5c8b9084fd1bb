"""Pictures of a training, with matplotlib (the extra ``plot``)."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from typing import Any

from horn.callbacks import Callback, TrainingContext, place
from horn.errors import ModelError


class LivePlot(Callback):
    """What ``live`` returns."""

    def __init__(self, columns: tuple[str, ...], path: str | os.PathLike[str] | None) -> None:
        self.columns, self.path = columns, path
        self.figure: Any = None
        self._handle: Any = None

    def check(self, job: Any) -> None:
        if importlib.util.find_spec("matplotlib") is None:
            raise ModelError("horn.plot.live needs matplotlib; pip install 'horn-bsp[plot]'")

    def on_epoch_end(self, context: TrainingContext) -> None:
        from matplotlib.figure import Figure  # an extra; draws without a display

        rows = context.history.rows
        shown = [c for c in self.columns if any(row.get(c) is not None for row in rows)]
        if not shown:
            raise ModelError(
                f"horn.plot.live: none of {', '.join(self.columns)} is measured; the columns are "
                f"{', '.join(context.history.columns)}"
            )
        self.figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes: Any = self.figure.subplots()
        for name in shown:
            axes.plot(context.history["epoch"], context.history[name], marker=".", label=name)
        axes.set_xlabel("epoch")
        axes.set_xlim(0.5, max(context.n_epochs, context.epoch) + 0.5)
        axes.legend()
        if self.path is not None:
            path = place(self.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.figure.savefig(path)
        elif getattr(_shell(), "kernel", None) is not None:
            self._show()

    def _show(self) -> None:
        """As a picture: a notebook draws figures by itself only after it was told to."""
        from IPython import display  # a notebook has it

        drawn = io.BytesIO()
        self.figure.savefig(drawn, format="png")
        show: Any = display.display
        make: Any = display.Image
        picture = make(data=drawn.getvalue(), format="png")
        if self._handle is None:
            self._handle = show(picture, display_id=True)
        else:
            self._handle.update(picture)

    def on_train_begin(self, context: TrainingContext) -> None:
        self._handle = None  # another run is another picture


def _shell() -> Any:
    """What runs a notebook's cells, if somebody does."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def live(*columns: str, path: str | os.PathLike[str] | None = None) -> LivePlot:
    """A callback that draws columns of the history after each epoch: in the cell of a notebook, or
    into a file (.png, .svg, .pdf). Columns: loss and val_loss by default.
    """
    return LivePlot(columns or ("loss", "val_loss"), path)
