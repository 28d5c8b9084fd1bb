"""The connections that follow from the shapes of layers, by name: a file keeps their arguments, not
their synapses.
"""

from __future__ import annotations

from typing import Any

from horn.connections.convolution import Convolution
from horn.connections.local import Local
from horn.connections.one_to_one import OneToOne
from horn.connections.part import Part
from horn.connections.transposed_convolution import TransposedConvolution
from horn.connections.window import Window

PLACED: dict[str, Any] = {
    kind.__name__: kind
    for kind in (Convolution, Local, OneToOne, Part, TransposedConvolution, Window)
}
