"""What a training loop measures: after each epoch, and of the model at the end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from horn.answers import n_answers
from horn.backends import Engine
from horn.data import Dataset
from horn.evaluation import measure
from horn.job import Job
from horn.outputs import better, has_answers
from horn.training.history import History


class Measuring:
    """Measures the model of an engine on the data of its job. is_stream : the training data pass
    once, and are not measured again.
    """

    def __init__(self, job: Job, engine: Engine, is_stream: bool = False) -> None:
        self.job, self.engine, self.is_stream = job, engine, is_stream
        self.has_answers = has_answers(job.network, job.data, job.target)
        # each loss and accuracy has a name
        self.is_several = job.network.has_several or len(job.network.judged) > 1
        is_wanted = self.has_answers or job.aggregates or self.is_several
        self.sample = _sample(job) if is_wanted and not is_stream else None

    def epoch(self) -> dict[str, Any]:
        """The columns that are measured after an epoch, of a sample of the training data and of the
        validation data.
        """
        job, sample, row = self.job, self.sample, dict[str, Any]()
        if sample is not None and job.aggregates:
            _, right, combined = self.engine.watch(sample)
            if self.has_answers and not job.network.has_several:
                row["acc"] = int(right) / n_answers(job.network, sample)
            for (name, aggregate), value in zip(job.aggregates.items(), combined, strict=True):
                row[name] = aggregate.of(float(value), len(sample))
        elif sample is not None and not self.is_several:
            row["acc"] = measure(self.engine, job.network, sample, job.target)["acc"]
        if sample is not None and self.is_several:
            found = measure(self.engine, job.network, sample, job.target)
            names = [name for name in found if name != "loss"]  # that is of the training
            row |= {name: _finite(found[name]) for name in names}
        if job.validation is not None and job.network.is_judged:
            found = self.of(job.validation)
            row["val_loss"], row["val_acc"] = found.pop("loss"), found.pop("acc", None)
            row |= {f"val_{name}": _finite(value) for name, value in found.items()}
        return row

    def of(self, data: Any) -> dict[str, float]:
        """The loss, accuracy and metrics of a whole data set; {} for a network without a loss."""
        job = self.job
        if not job.network.is_judged:
            return {}
        return measure(self.engine, job.network, data, job.target, job.metrics)

    def last(
        self, history: History, best_epoch: int | None, is_other: bool
    ) -> dict[str, dict[str, float]]:
        """The metrics of the model that is kept, in a run without test data: of the validation
        data, else the training data; none without a loss. best_epoch : whose model it is, None
        for the last. is_other : than the model of the last row.
        """
        job = self.job
        if not job.network.is_judged:
            return {}
        if job.validation is not None and is_other and best_epoch is None:
            return {"validation": self.of(job.validation)}
        if job.validation is not None:
            # Not by its place: a group that came back to servers has the rows since then.
            own = [row for row in history if best_epoch and row["epoch"] == best_epoch]
            row = own[0] if own else history[-1]
            columns = better(job.network, job.metrics, job.validation, job.target)
            found = {name.removeprefix("val_"): row.get(name) for name in columns}
            return {"validation": {k: v for k, v in found.items() if v is not None}}
        return {} if self.is_stream else {"training": self.of(job.data)}


def _sample(job: Job) -> Dataset:
    """The part of the training data that is measured after an epoch."""
    data, step = job.data, job.looks_at_every
    if data.pieces > 1:
        of_first: Dataset = data.with_first_pieces(job.looked_pieces)
        return of_first
    y = None if data.y is None else np.ascontiguousarray(data.y[::step])
    x = np.ascontiguousarray(data.x[::step])
    lengths = None if data.lengths is None else data.lengths[::step]
    sample: Dataset = data.with_fields(x=x, y=y, ids=None, weight=None, lengths=lengths)
    return sample


def _finite(value: float) -> float | None:
    """The value, or None if it is not finite, as in JSON."""
    return value if math.isfinite(value) else None
