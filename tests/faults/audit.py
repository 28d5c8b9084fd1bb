"""A pytest plugin that watches what is executed. Experiment 35.

    pytest -p tests.faults.audit ...

Fails the run when, below a frame of horn's network or checkpoint code, a pickle looks a class up,
something is unmarshalled, or code is executed that is no import and not the user's own.
"""

from __future__ import annotations

import os
import sys
from typing import Any

WATCHED = frozenset({"pickle.find_class", "marshal.loads", "exec"})
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
# Whatever reads what others send, or what was saved.
GUARDED = tuple(
    ROOT + name.replace("/", os.sep)
    for name in ("horn/wire/", "horn/transport/", "horn/rpc/", "horn/security/",
                 "horn/coordination/", "horn/cluster/", "horn/checkpoint", "horn/modelfile.py",
                 "horn/model.py", "horn/training/", "horn/runtime/", "horn/process/",
                 "horn/executor/", "horn/strategies/", "zk/")
)  # fmt: skip
# Where the user's code is run, on purpose: as source, and never from bytes that came unasked.
USERS = (ROOT + "horn/sources.py",)
# Python's own, which evaluate what is written in classes: annotations, and methods made of fields.
OF_CLASSES = ("/typing.py", "/dataclasses.py", "/collections/__init__.py")
IMPORTS = ("<frozen importlib", "<frozen zipimport>")
found: list[str] = []


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in WATCHED:
        return
    frame = sys._getframe().f_back  # None where Python itself runs its main program
    guarded = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(IMPORTS) or file in USERS or file.endswith(OF_CLASSES):
            return
        if file.startswith(GUARDED) and not guarded:
            guarded = f"{file.removeprefix(ROOT)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    if guarded:
        found.append(f"{event} below {guarded}: {str(arguments)[:200]}")


def pytest_configure(config: Any) -> None:
    sys.addaudithook(hook)


def pytest_sessionfinish(session: Any) -> None:
    if found:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"executed on network and checkpoint paths: {len(found)}")
    for line in sorted(set(found)):
        terminalreporter.write_line(f"  {line}")
