"""The preparation of a job's data: arranged for its network, coded and normalized alike."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from horn.data import Dataset, as_dataset, check_features, check_names, lanes
from horn.data.checks import check_counted, other_units
from horn.data.conversion import as_heard
from horn.data.in_steps import flat, in_a_row, of_steps
from horn.data.inputs import side_by_side
from horn.data.normalization import Normalization, measure, together
from horn.data.pictures import in_colours
from horn.data.stream import read
from horn.data.targets import named
from horn.errors import DataError, ModelError
from horn.initial import Beginning
from horn.network import Network
from horn.weights import by_class

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GivenData:
    """The data and weights of a job as they were given, arranged for its network, but neither
    weighed nor normalized nor coded alike; they share the arrays of the job's. data : the two
    parts, where ``fraction`` of the samples was held out by ``seed``, since these are copies.
    """

    data: Any
    validation: Any
    test: Any
    fraction: float | None
    seed: int
    weight: Any  # of the data, before sample_weight replaced it
    sample_weight: Any
    class_weight: Any

    @classmethod
    def of(
        cls, whole: Any, data: Any, validation: Any, test: Any, fraction: float | None, seed: int,
        sample_weight: Any, class_weight: Any,
    ) -> GivenData:  # fmt: skip
        """Those of a job. whole : the data before a fraction was held out."""
        given, weight = whole, None
        if fraction is not None:
            weight = whole.weight
            # the end of a single sequence is no copy
            if len(data) + len(validation) == len(whole):
                given = tuple(part.with_fields(weight=None) for part in (data, validation))
            validation = None
        return cls(given, validation, test, fraction, seed, weight, sample_weight, class_weight)

    def arguments(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a job with these changes that make it from what was given. The parts of
        data that are not replaced are copied into one array.
        """
        found = {
            "data": self.data, "validation": self.fraction or self.validation, "test": self.test,
            "sample_weight": self.sample_weight, "class_weight": self.class_weight,
        }  # fmt: skip
        if "data" in changes:
            if isinstance(changes["data"], Dataset) and changes["data"].weight is not None:
                found |= {"sample_weight": None, "class_weight": None}
        elif isinstance(self.data, tuple):
            rest, held = self.data
            found["data"] = rest.joined(held, self.seed).with_fields(weight=self.weight)
        return found


@dataclass(frozen=True)
class DataPreparation:
    """Prepares the training, validation and test data of a job, whose fields these are."""

    network: Network
    target: str | None
    stateful: bool
    normalize: bool | str | None

    def training(self, data: Any, begun: Beginning | None) -> Dataset:
        """The training data as a dataset, coded as the model did that the job begins with, and not
        yet normalized.
        """
        found = self._with_targets(as_dataset(self._arranged(data, "data"), "data"))
        if begun is not None:
            found = self._coded(found, begun)
        check_counted(found)
        return found

    def _coded(self, data: Dataset, begun: Beginning) -> Dataset:
        if begun.classes is None or self.target != "labels":
            return data
        # its last layer knows the classes by their places; a new one may have others
        known = begun.classes
        taken = [
            output.name
            for output in self.network.outputs
            if any(name in begun.taken for name in output.shapes)
        ]
        if not isinstance(known, Mapping):  # of the only output
            known = dict.fromkeys(taken, known)
        known = {name: known[name] for name in taken if name in known}
        own = known if data.targets else known.get(self.network.last.name)
        return data if own is None else data.with_classes(own, "the model that it begins with")

    def read(self, data: Any, training: Any, what: str) -> Dataset:
        """Validation or test data as a dataset, not yet as the training data are."""
        letters = getattr(training, "classes", None)
        if isinstance(data, Dataset) and data.is_text and isinstance(letters, tuple):
            data.with_classes(letters, "the training data")  # an alphabet, whatever its size
        return self._with_targets(read(self._arranged(data, what), what))

    def _arranged(self, data: Any, what: str) -> Any:
        """Lay several inputs by name, and sequences, out as the rows of a dataset."""
        net = self.network
        if isinstance(data, Dataset) and data.pieces > 1:  # of a job like this one
            data = lanes.joined(data)
        data = named(data, net.compared, what)
        if net.steps:
            data = in_a_row(data, net.layers[0].shape) if self.stateful else data
            data = flat(data, net.layers[0].shape)
        if self.stateful:
            return lanes.whole(data, net.n_inputs, net.target_shapes, what)
        if net.steps:
            return of_steps(data, net.steps, net.layers[0].shape, net.target_shapes, what)
        return side_by_side(in_colours(data, net.layers[0].shape), net.input_shapes, what)

    def in_pieces(
        self, data: Any, truncate: int | None, n_lanes: int, what: str, *, least: int
    ) -> Any:
        """Cut the sequences of a stateful job into pieces, ``least`` of each."""
        if not self.stateful or data is None:
            return data
        steps = truncate or self.network.steps
        return lanes.pieces(data, self.network.n_inputs, steps, n_lanes, what, least=least)

    def _with_targets(self, data: Dataset) -> Dataset:
        """Arrange the targets of the data by the names of the outputs."""
        net = self.network
        return data.of_outputs(net.compared if self.target == "labels" else (), net.has_several)

    def held_out(self, data: Dataset, fraction: float, given: Any) -> tuple[Dataset, Dataset]:
        """The training data without a fraction, and that. given : as the job has them."""
        if not 0.0 < fraction < 1.0:
            raise ModelError(
                f"Job: validation={fraction!r} must be a fraction between 0 and 1, as 0.1, "
                "or data: (x, y)"
            )
        if self.stateful and len(data) == 1:
            return lanes.ending(data, self.network.n_inputs, fraction)
        n_held = round(len(data) * fraction)
        is_cut = isinstance(given, Dataset) and given.pieces > 1
        if is_cut and not 0 < n_held < len(data):
            raise DataError(
                f"{data.name}: is cut into {len(data):,} lanes already, too few to hold out "
                f"validation={fraction}; pass the data that they were cut from, or "
                "validation=(x, y)"
            )
        return data.split(fraction, self.network.seed)

    def as_seen(self, data: Dataset, begun: Beginning | None) -> Dataset:
        """Normalize the training data, as the model did that the job begins with."""
        if not isinstance(self.normalize, bool) and self.normalize not in (None, "channel"):
            raise ModelError(
                f'Job: normalize is True, "channel", False or None, got {self.normalize!r}'
            )
        self.check_columns(data, begun)
        normal = data.normalization
        if self.normalize is not False and begun is not None and begun.normalization is not None:
            normal = begun.normalization
            shapes = self.network.input_shapes
            if len(shapes) > 1:
                normal = normal.of_inputs(begun.input_shapes, shapes)
            elif len(shape := self.network.layers[0].shape) > 1:
                normal = normal.of_size(data.n_features, shape[-1])
            if not self.network.steps and not normal.fits(data.n_features):
                raise DataError(
                    f"data: has {data.n_features:,} features per sample, but the model that it "
                    f"begins with normalizes {len(normal.mean):,}, each by its own mean; give the "
                    "same features, begin with its arrays alone (initial=model.parameters), so "
                    "that these data are measured, or normalize=False and normalize them yourself"
                )
        elif self.normalize and normal is None:
            of_step = self.network.n_inputs if self.network.steps else None
            if self.normalize == "channel" and len(self.network.inputs) > 1 and not of_step:
                normal = self._of_each_input(data)
            else:
                normal = measure(data.x, data.scale, self._channels(data), of_step, data.lengths)
        elif self.normalize is False:
            normal = None
        if normal is not None and self.network.steps and len(normal.mean) != self.network.n_inputs:
            raise DataError(
                f"data: has {self.network.n_inputs:,} features in a step, but was to be normalized "
                f"as data of {len(normal.mean):,}; give the same features, or normalize=False"
            )
        return data if normal is data.normalization else data.with_fields(normalization=normal)

    def check_columns(self, data: Dataset, begun: Beginning | None) -> None:
        """Check the names of the features against those of the model that the job begins with: its
        first layer knows them by their places; a new one may have others.
        """
        if begun is not None and set(self.network.layers[1].shapes) & set(begun.taken):
            check_names(data, begun.feature_names, "the model that it begins with")

    def _of_each_input(self, data: Dataset) -> Normalization:
        """By channel where an input has some, else by feature. Raises ModelError if none has."""
        shapes = self.network.input_shapes
        if max(map(len, shapes.values())) < 2:
            raise ModelError(
                'Job: normalize="channel" needs an input with channels, as '
                f"net.input((32, 32, 3)), but they are {', '.join(map(str, shapes.values()))}; "
                "normalize=True is of every feature"
            )
        found, first = [], 0
        for shape in shapes.values():
            here = data.x[:, first : (first := first + math.prod(shape))]
            found.append(measure(here, data.scale, shape[-1] if len(shape) > 1 else None))
        return together(found)

    def _channels(self, data: Dataset) -> int | None:
        """The number of channels if each is normalized as one, else None. Raises ModelError."""
        if self.normalize is True:
            return None
        shape = self.network.layers[0].shape
        if len(shape) < 2 or data.n_features % shape[-1]:
            raise ModelError(
                f'Job: normalize="channel" needs an input with channels, as '
                f"net.input((32, 32, 3)), but it is {shape}; normalize=True is of every feature"
            )
        return shape[-1]

    def weighed(self, data: Dataset, class_weight: Any) -> Dataset:
        """Add the weights by class to the training data."""
        if class_weight is not None and self.network.has_several:
            raise ModelError(
                f"Job: class_weight is of one output, but the network has "
                f"{', '.join(self.network.columns)}; give sample_weight, one number per sample, or "
                "net.output(..., weight=...), a factor of an output's loss"
            )
        if class_weight is not None:
            data = by_class(class_weight, self.network, self.target, data)
        if data.weight is not None and (not self.network.is_judged or self.target is None):
            raise ModelError(
                f"Job: weights of samples are factors of their loss, but {self.network.last.name} "
                f'has none; give net.output a loss, as loss="squared_error", or leave them out'
            )
        return data

    def like(self, other: Dataset | None, data: Dataset) -> Dataset | None:
        """Code and normalize validation or test data as the training data."""
        if other is None:
            return None
        if self.target == "labels" and (data.has_labels or data.targets):
            other = other.with_classes(data.all_classes, "the training data")
        check_counted(other)
        check_names(other, data.feature_names, "the training data")
        other = as_heard(other, data.units["scale"], bool(data.feature_names))
        if said := other_units(other, data.units):
            logger.warning("%s: %s", other.name, said)
        if other.normalization is data.normalization:
            return other
        if not self.network.steps:
            check_features(other, data.n_features, "the training data")
        return other.with_fields(normalization=data.normalization)
