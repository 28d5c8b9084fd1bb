"""What a command is to ask a model about."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horn.data import Dataset
    from horn.model import Model


def samples_of(
    spec: str, model: Model, *, whole: bool = False, labels: bool = True,
    label: str | None = None, ids: str | None = None,
) -> Dataset:  # fmt: skip
    """The data that a text names; see ``horn.data.load``. For a model of characters a .txt file is
    text in its alphabet, in the pieces that it learned from, or ``whole``.
    """
    from horn.data import load, text
    from horn.errors import DataError
    from horn.formats import csv, format_of

    letters = _letters(model)
    if letters and spec.endswith(".txt") and label is None and ids is None:
        is_whole = whole or bool(model.facts.get("stateful"))
        return text(spec, None if is_whole else model.network.steps, alphabet=letters)
    found = load(spec, labels=labels, label=label, ids=ids)
    learned = model.feature_names
    if labels and label is None and learned[:-1] and found.feature_names == learned[:-1]:
        # The last column was taken for the label.
        raise DataError(
            f"{spec}: has no column with labels: its last, {learned[-1]!r}, is one of the features "
            "that this model learned from; add one with the right answers, or ask  horn predict"
        )
    form = format_of(spec)
    if label is None and (spec == "-" or (form is not None and form.reader is csv)):
        _check_roles(found, learned, labels, ids)
    return found


def _check_roles(found: Dataset, learned: tuple[str, ...], labels: bool, ids: str | None) -> None:
    """Raise DataError for one column of a table that is no feature, where an option may say what it
    is. labels : whether the last column was taken for the label.
    """
    from horn.errors import DataError

    got = found.feature_names
    more = [name for name in got if name not in learned]
    absent = [name for name in learned if name not in got]
    if not learned or len(more) != 1 or len(absent) > labels:
        return
    name, said, options = shlex.quote(more[0]), "", []
    if absent:
        said = f"its last column was taken for the label, and {absent[0]!r} is missing; it "
    if absent or not labels:
        options += [f"--label {name}  if it is the label"]
    if ids is None:
        options += [f"--ids {name}  if it names the samples"]
    if options:
        raise DataError(
            f"{found.name}: {said}has {more[0]!r}, which this model has not learned from: add  "
            f"{', '.join(options)}, or leave the column out"
        )


def _letters(model: Model) -> tuple[str, ...]:
    """The characters that its inputs are, of a model of what horn.data.text makes; else none."""
    found = model.classes
    if not model.network.steps or not isinstance(found, tuple):
        return ()
    are_letters = all(isinstance(each, str) and len(each) == 1 for each in found)
    return found if are_letters and len(found) == model.network.n_inputs else ()
