from dataclasses import dataclass
from pathlib import Path

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
    said: tuple[str, str] = ("", "")
    in_pieces: bool = False

def openblas_at(path: str | Path) -> Blas | None: ...
def is_unsure(blas: Blas) -> bool: ...
def pieces(blas: Blas) -> Blas: ...
def load(name: str | None = None) -> Blas: ...
