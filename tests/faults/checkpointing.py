"""Small checkpoints of which every value is known, and a program that writes them until it is told
to stop, or killed.

python -m tests.faults.checkpointing FOLDER FIRST N THREADS: N checkpoints (0: no end), from
iteration FIRST. Says on stdout "written ITERATION" when one is committed, "refused TEXT" when not.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from horn.checkpoint import ArrayPiece, CheckpointReader, Checkpoints, WrittenPart, write_part
from horn.errors import CheckpointError
from tests.support.checkpoints import whole_array

Array = np.ndarray[Any, Any]
N_ROWS, N_COLUMNS = 24, 64
SHARES = {  # of the rows: a slice with steps, and the rest by their numbers
    "rank-0": slice(0, N_ROWS, 2),
    "rank-1": np.arange(N_ROWS - 1, 0, -2),
}


def weights(iteration: int, n_columns: int = N_COLUMNS) -> Array:
    values = np.random.default_rng(iteration).standard_normal((N_ROWS, n_columns))
    return values.astype(np.float32)


def parts(iteration: int, n_columns: int) -> dict[str, list[ArrayPiece]]:
    whole = weights(iteration, n_columns)
    return {
        name: [ArrayPiece("parameter", "w", whole[rows], (rows, slice(0, n_columns)))]
        for name, rows in SHARES.items()
    }


def save(
    folder: Path,
    iteration: int,
    attempt: int = 0,
    keep: int = 3,
    n_threads: int = 1,
    n_columns: int = N_COLUMNS,
) -> Path:
    """As tasks do it: the parts side by side, then the manifest, or the end of the attempt."""
    checkpoints = Checkpoints(folder, keep)
    temporary = checkpoints.begin(iteration, attempt)
    given = parts(iteration, n_columns)
    facts = {"seed": iteration, "n_columns": n_columns}

    def write(part: tuple[str, list[ArrayPiece]]) -> WrittenPart:
        return write_part(temporary, *part, {"rank": part[0]})

    try:
        if n_threads > 1:
            with ThreadPoolExecutor(n_threads) as threads:
                written = list(threads.map(write, given.items()))
        else:
            written = list(map(write, given.items()))
    except CheckpointError:
        checkpoints.discard(temporary)
        raise
    return checkpoints.commit(temporary, iteration, facts, written)


def check(opened: CheckpointReader) -> None:
    """It is all there, and of one iteration."""
    assert opened.facts["seed"] == opened.iteration
    expected = weights(opened.iteration, opened.facts["n_columns"])
    found = whole_array(opened, "parameter", "w", expected.shape, np.float32)
    assert found.tobytes() == expected.tobytes()


def newest(folder: Path) -> int | None:
    """The iteration of what is loaded, which is whole and of that iteration; None if nothing is."""
    opened = Checkpoints(folder).latest()
    if opened is None:
        return None
    check(opened)
    return opened.iteration


def main(folder: Path, first: int, n: int, n_threads: int) -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.sweep()
    attempt, iteration = checkpoints.next_attempt(), first
    while n == 0 or iteration < first + n:
        try:
            save(folder, iteration, attempt, n_threads=n_threads)
            print(f"written {iteration}", flush=True)
        except CheckpointError as error:
            print(f"refused {error}", flush=True)
        iteration += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
