from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from horn._kernels.blas import Blas
from horn._kernels.operands import Array, Axis, Extent, Input, Number, Op, Output
from horn._kernels.operands import Coef as Coef
from horn._kernels.operands import Dim as Dim
from horn._kernels.operands import Drawn as Drawn
from horn._kernels.operands import Iota as Iota
from horn._kernels.operands import Ragged as Ragged
from horn._kernels.operands import Scalar as Scalar
from horn._kernels.operands import View as View

STRIP_BYTES: int
BEGIN_CYCLES: int
LEVEL: int
DRAWS: dict[str, int]

class Anchor:
    def settle(self, memory: Array) -> None: ...

class Tape:
    dtype: np.dtype[Any]
    blas: Blas
    dims: NDArray[np.int64]
    scalars: NDArray[np.float64]
    labels: list[str]
    def __init__(
        self,
        dtype: DTypeLike = ...,
        n_threads: int = 1,
        blas: Blas | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def products(self) -> str: ...
    @property
    def n_threads(self) -> int: ...
    def dim(self, maximum: int) -> Dim: ...
    def scalar(self, value: float = 0.0) -> Scalar: ...
    def gemm(
        self,
        a: Array,
        b: Array,
        c: Array,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        m: Extent | None = None,
        n: Extent | None = None,
        k: Extent | None = None,
        thin: bool = False,
        steady: bool = False,
        zeros: str = "",
        label: str = "",
    ) -> int: ...
    def update(
        self,
        a: Array,
        b: Array,
        w: Array,
        *,
        alpha: Coef,
        v: Array | None = None,
        decay: float = 0.0,
        parts: Sequence[Array] = (),
        k: Extent | None = None,
        label: str = "",
    ) -> int: ...
    @property
    def reads_live(self) -> bool: ...
    def live_gemm(
        self,
        a: Array,
        w: View,
        c: Array,
        *,
        m: Extent | None = None,
        n: Extent | None = None,
        k: Extent | None = None,
        beta: Number = 0.0,
        label: str = "",
    ) -> int: ...
    def gemm_loop(
        self,
        a: Array,
        b: Array,
        c: Array,
        *,
        inputs: Sequence[Input],
        ops: Sequence[Op],
        outputs: Sequence[Output],
        alpha: Number = 1.0,
        beta: Number = 0.0,
        m: Extent | None = None,
        n: Extent | None = None,
        k: Extent | None = None,
        zeros: str = "",
        label: str = "",
    ) -> int: ...
    def loop(
        self,
        axes: Mapping[Any, int | Dim | Ragged],
        inputs: Sequence[Input],
        ops: Sequence[Op],
        outputs: Sequence[Output],
        *,
        reduce: tuple[str, Axis] | None = None,
        accumulate: bool = False,
        offset: int = 0,
        label: str = "",
    ) -> int: ...
    def draw(
        self,
        out: Array,
        kind: Literal["uniform", "normal", "bernoulli"],
        *,
        key: tuple[int, int],
        site: int,
        iteration: Dim,
        rows: Extent | None = None,
        neurons: Extent | None = None,
        samples: NDArray[np.uint64] | None = None,
        first: int = 0,
        below: Number | None = None,
        label: str = "",
    ) -> int: ...
    def rank(
        self,
        array: Array,
        out: Array,
        *,
        rows: Extent | None = None,
        neurons: Extent | None = None,
        label: str = "",
    ) -> int: ...
    def load(
        self,
        source: Array,
        index: NDArray[np.int64],
        out: Array,
        *,
        rows: Extent | None = None,
        scale: Number = 1.0,
        label: str = "",
    ) -> int: ...
    def of_data(self, array: Array) -> None: ...
    def rebind(
        self, number: int, source: Array, center: Array | None = None, factor: Array | None = None
    ) -> None: ...
    def live(
        self,
        mask: Array,
        kept: NDArray[np.int32],
        count: Dim,
        *,
        n: Extent | None = None,
        label: str = "",
    ) -> int: ...
    def windows(
        self,
        x: Array,
        w: Array,
        out: Array,
        *,
        ptr: NDArray[np.int64],
        src: NDArray[np.int32],
        row: NDArray[np.int32],
        length: NDArray[np.int32],
        which: NDArray[np.int32],
        first: NDArray[np.int32],
        base: NDArray[np.int64],
        step: int,
        apart: int = 1,
        of_squares: bool = False,
        bias: Array | None = None,
        relu: bool = False,
        gate: Array | None = None,
        rows: Extent | None = None,
        label: str = "",
    ) -> int: ...
    def window_gradients(
        self,
        x: Array,
        y: Array,
        out: Array,
        *,
        src: NDArray[np.int32],
        which: NDArray[np.int32],
        first: NDArray[np.int32],
        n_parts: int = 1,
        step: int = 0,
        rows: Extent | None = None,
        label: str = "",
    ) -> int: ...
    def pool(
        self,
        x: Array,
        out: Array,
        fold: str,
        *,
        ptr: NDArray[np.int64],
        src: NDArray[np.int32],
        where: Array | None = None,
        upper: Array | None = None,
        place: Array | None = None,
        gate: Array | None = None,
        rows: Extent | None = None,
        label: str = "",
    ) -> int: ...
    def anchor(self, array: Array) -> Anchor: ...
    def step_load(self, number: int, columns: int) -> None: ...
    def move(
        self,
        array: Array,
        memory: Array,
        first: int,
        unit: int,
        rows: Dim | None = None,
        stays: bool = False,
    ) -> None: ...
    def seek(self, step: int, first: int = 0) -> None: ...
    def repeat(self, first: int, last: int, steps: int, reverse: bool = False) -> None: ...
    def divides_rows(self, first: int, last: int) -> int: ...
    def pick(self, rows: Array, picks: NDArray[np.int64], limit: int) -> bool: ...
    def total(self, numbers: Array) -> float: ...
    def run(self, first: int = 0, last: int | None = None, is_alone: bool = False) -> None: ...
    def clock(self, on: bool) -> None: ...
    def times(self) -> list[float]: ...
