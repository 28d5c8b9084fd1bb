"""Progress in a notebook: one output that is written again, a bar and a table of epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horn import html
from horn.own_lines import shell
from horn.training.progress import Progress, count, figure

if TYPE_CHECKING:
    from horn.job import Job


def is_here() -> bool:
    """Whether a notebook's kernel runs this process. Imports nothing."""
    return getattr(shell(), "kernel", None) is not None


class NotebookProgress(Progress):
    """The progress in a notebook's cell. With ipywidgets the bar is a widget, else plain HTML."""

    interval_s = 0.25

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.n_iterations = 1
        self.now = 0
        self.text = ""
        self._handle: Any = None
        self._bar: Any = None

    def begin(self, job: Job) -> None:
        from IPython import display  # as below

        show: Any = display.display
        self.n_iterations = job.n_iterations
        if job.acc_is_of:
            self.note(job.acc_is_of)
        try:
            import ipywidgets  # only where somebody installed it

            named = job.name or "training"
            self._bar = ipywidgets.FloatProgress(value=0.0, min=0.0, max=1.0, description=named)
            show(self._bar)
        except ImportError:
            self._bar = None
        self._handle = show(self._page(), display_id=True)

    def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
        self.now = iteration
        self.text = f"epoch {epoch}  loss {figure(loss)}  {count(samples_per_s)} samples/s"
        self._show()

    def epoch(self, row: Mapping[str, Any]) -> None:
        self.rows.append(dict(row))
        self.now = row["iteration"]
        self._show()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._show()

    def end(self) -> None:
        self.text = ""
        self._show()

    def html(self) -> str:
        """The present content of the cell."""
        done = self.now / self.n_iterations
        bar = f"<p>{html.cell(self.text)}</p>"
        if self._bar is None:
            bar = html.progress(done, self.text)
        notes = "".join(f"<p>{html.cell(note)}</p>" for note in self.notes)
        return f"{bar}{notes}{html.epochs(self.rows) if self.rows else ''}"

    def _page(self) -> Any:
        from IPython import display  # a notebook has it

        make: Any = display.HTML
        return make(self.html())

    def _show(self) -> None:
        if self._handle is None:
            return
        if self._bar is not None:
            self._bar.value = self.now / self.n_iterations
        self._handle.update(self._page())
