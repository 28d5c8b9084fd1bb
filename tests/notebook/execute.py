"""Run a notebook's cells in a kernel of this Python, in the current folder: IN OUT.

A process of its own, since the client of a kernel leaves sockets to the garbage collector.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

DEAD = 3  # exit code: the kernel was killed


def main(source: str, target: str) -> None:
    folder = Path.cwd() / "jupyter"
    spec = folder / "horn-test"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "horn"}))
    # Sockets in the folder, not ports that others may take.
    specs = KernelSpecManager(kernel_dirs=[str(folder)], ensure_native_kernel=False)
    manager = AsyncKernelManager(
        kernel_name="horn-test", transport="ipc", ip=str(folder / "s"), kernel_spec_manager=specs,
        connection_file=str(folder / "connection.json"),
    )  # fmt: skip
    found = nbformat.read(source, 4)
    try:
        NotebookClient(found, km=manager, timeout=200, allow_errors=True).execute()
    except DeadKernelError:
        sys.exit(DEAD)
    nbformat.write(found, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
