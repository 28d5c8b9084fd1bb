"""Processes of a benchmark on this host that measure together."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from typing import Any

WAIT_S = 300.0


def measured(measure: Callable[..., Any], n_tasks: int, n_meetings: int, *given: Any) -> list[Any]:
    """What ``measure(task, n_tasks, store, pipe, *given)`` returns in each of the processes.

    store : a file that gloo may meet by. Through the pipe each process tells something, as its
    endpoint, and gets the list of what all told, ``n_meetings`` times. The first error is raised.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for task in range(n_tasks):
            ours, theirs = context.Pipe()
            arguments = (measure, task, n_tasks, os.path.join(folder, "store"), theirs, *given)
            process = context.Process(target=_told, args=arguments, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            for _ in range(n_meetings):
                all_told = [_read(pipe) for pipe in pipes]
                for pipe in pipes:
                    pipe.send(all_told)
            return [_read(pipe) for pipe in pipes]
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()
                    process.join()


def _told(
    measure: Callable[..., Any], task: int, n_tasks: int, store: str, pipe: Any, *given: Any
) -> None:
    try:
        pipe.send(measure(task, n_tasks, store, pipe, *given))
    except Exception as error:
        pipe.send(error)
        raise


def _read(pipe: Any) -> Any:
    if not pipe.poll(WAIT_S):
        raise TimeoutError("a process of the benchmark says nothing")
    got = pipe.recv()
    if isinstance(got, Exception):
        raise got
    return got
