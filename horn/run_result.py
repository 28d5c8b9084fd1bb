"""What ``horn.train`` gives: a model, and how it came to be."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from horn import html
from horn.mistakes import NoSuchAttribute, no_attribute
from horn.model import Model
from horn.training.history import History
from horn.training.profile import Profile


@dataclass(frozen=True, repr=False)
class Run:
    """The result of ``train``.

    model : the last state, or the best one with early stopping or ``keep_best``.
    state : "SUCCEEDED"; "DIVERGED" where the loss of the last epoch is more than a thousand times
    that of the best one and above that of the first, or than that of guessing, and no better
    epoch's model was kept; "STOPPED" after Ctrl-C; then stopped is True, the model is that after
    the last whole update, unless the best is kept, and checkpoint is the one to resume from, if
    there was a folder.
    seconds : the whole of ``train``, without the run that it resumes; of a job on a cluster its
    attempts are counted as in the history, whose last row has no more. best_epoch : the epoch of
    the model, if the best was kept.
    test : {"loss", "acc", ...} of the job's test data. metrics : the final measurements of the
    model, by data: {"test": {...}}, else "validation", else "training".
    counters : a row per task of a group: compute_s, pack_s, send_s, wait_s, unpack_s, n_sent,
    sent_bytes, n_received, received_bytes, n_supersteps, peak_memory_bytes (of that task;
    memory that tasks share counts in each), and of frames in its group n_dropped (of strangers),
    n_damaged, n_repeated (or too early), n_resent, and n_mended, connections made anew; empty with
    one task, which sends nothing. staleness : with servers, the number of pushed pieces of the
    parameters by the number of updates that they came late.
    """

    model: Model
    history: History
    state: str
    seconds: float
    epochs: int
    iterations: int
    stopped_early: bool = False
    best_epoch: int | None = None
    test: dict[str, float] | None = None
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    counters: list[dict[str, Any]] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    stopped: bool = False
    checkpoint: str = ""
    profile: Profile | None = None

    if not TYPE_CHECKING:  # type checkers report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and hasattr(Model, name):
                raise NoSuchAttribute(f"a run has no {name!r}: its model has, run.model.{name}")
            raise no_attribute("a run", name, dir(self))

        def __getitem__(self, name: str) -> Any:
            if name in [each.name for each in fields(self)]:
                raise TypeError(f"a run has no columns; write run.{name}")
            known = name if name in list(self.history.columns) else "loss"
            raise TypeError(f"a run has no columns: its history has, run.history[{known!r}]")

        def __iter__(self) -> Any:
            raise TypeError("horn.train gives one run: run.model, run.history, run.metrics")

    def __repr__(self) -> str:
        return f"<Run {html.plain(self._facts())}, {self.model!r}>"

    def _repr_html_(self) -> str:
        return html.facts(self._facts()) + self.history._repr_html_()

    def _facts(self) -> dict[str, Any]:
        said = {"state": self.state, "seconds": self.seconds, "updates": self.iterations,
                "best epoch": self.best_epoch}  # fmt: skip
        for where, values in self.metrics.items():
            said |= {f"{where} {name}": value for name, value in values.items()}
        return said

    def as_dict(self) -> dict[str, Any]:
        """All but the model, for JSON."""
        return {
            "metrics": self.metrics,
            "epochs": self.epochs,
            "iterations": self.iterations,
            "stopped_early": self.stopped_early,
            "best_epoch": self.best_epoch,
            "seconds": self.seconds,
            "history": list(self.history),
            "counters": self.counters,
            "staleness": {str(late): n for late, n in sorted(self.staleness.items())},
        }
