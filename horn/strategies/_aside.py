"""A group's own weights, while what servers have is measured in their place."""

from __future__ import annotations

from dataclasses import dataclass, field

from horn.strategies import Array, View


@dataclass
class OwnWeights:
    """For a strategy's memory of one task. aside : the weights by name, {} if nothing is set aside;
    each as its parameter in the ``View``.
    """

    aside: dict[str, Array] = field(default_factory=dict, kw_only=True)

    def set_aside(self, view: View) -> None:
        self.aside = {name: array.copy() for name, array in view.parameters.items()}

    def take_back(self, view: View) -> None:
        for name, array in self.aside.items():
            view.parameters[name][...] = array
        self.aside = {}
