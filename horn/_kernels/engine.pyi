from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from horn._kernels.blas import Blas

Array = NDArray[Any]
Axis = Hashable

MAX_DIMS: int
MAX_SCALARS: int
LEVEL: int
OPS: dict[str, tuple[int, int]]
MONOIDS: dict[str, int]
DRAWS: dict[str, int]

class Dim:
    index: int
    maximum: int
    def __init__(self, index: int, maximum: int) -> None: ...

class Scalar:
    index: int
    def __init__(self, index: int) -> None: ...

class Coef:
    factor: float
    scalar: Scalar | None
    per: Dim | None
    def __init__(
        self, factor: float = 1.0, scalar: Scalar | None = None, per: Dim | None = None
    ) -> None: ...

class View:
    array: Array
    axes: tuple[Axis, ...]
    index: dict[Axis, NDArray[np.int32]]
    ascending: bool
    def __init__(
        self,
        array: Array,
        axes: Sequence[Axis],
        index: Mapping[Any, NDArray[np.int32]] | None = None,
        ascending: bool = False,
    ) -> None: ...

class Iota:
    axis: Axis
    offset: int
    def __init__(self, axis: Axis, offset: int = 0) -> None: ...

class Ragged:
    indptr: NDArray[np.int64]
    over: Axis
    def __init__(self, indptr: NDArray[np.int64], over: Axis) -> None: ...

Extent = int | Dim
Number = float | Scalar | Coef
Input = View | Iota | float | Scalar | Coef
Output = tuple[View, int]
Op = tuple[Any, ...]

class Anchor:
    def settle(self, memory: Array) -> None: ...

class Tape:
    dtype: np.dtype[Any]
    blas: Blas
    dims: NDArray[np.int64]
    scalars: NDArray[np.float64]
    def __init__(
        self, dtype: DTypeLike = ..., n_threads: int = 1, blas: Blas | None = None
    ) -> None: ...
    def __len__(self) -> int: ...
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
        block: int = 0,
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
    def rebind(self, number: int, source: Array) -> None: ...
    def live(
        self,
        mask: Array,
        kept: NDArray[np.int32],
        count: Dim,
        *,
        n: Extent | None = None,
        label: str = "",
    ) -> int: ...
    def anchor(self, array: Array) -> Anchor: ...
    def pick(self, rows: Array, picks: NDArray[np.int64], limit: int) -> bool: ...
    def total(self, numbers: Array) -> float: ...
    def run(self, first: int = 0, last: int | None = None) -> None: ...
    def profile(
        self, runs: int = 100, first: int = 0, last: int | None = None
    ) -> list[tuple[str, float]]: ...
