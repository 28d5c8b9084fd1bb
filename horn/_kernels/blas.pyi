from dataclasses import dataclass

NAMES: tuple[str, ...]

@dataclass(frozen=True)
class Blas:
    name: str
    path: str
    sgemm: int = 0
    dgemm: int = 0
    is_ilp64: bool = False
    get_threads: int = 0
    set_threads: int = 0
    is_asked: bool = False

def load(name: str | None = None) -> Blas: ...
