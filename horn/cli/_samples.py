"""What a command is to ask a model about."""

from __future__ import annotations

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
    return found


def _letters(model: Model) -> tuple[str, ...]:
    """The characters that its inputs are, of a model of what horn.data.text makes; else none."""
    found = model.classes
    if not model.network.steps or not isinstance(found, tuple):
        return ()
    are_letters = all(isinstance(each, str) and len(each) == 1 for each in found)
    return found if are_letters and len(found) == model.network.n_inputs else ()
