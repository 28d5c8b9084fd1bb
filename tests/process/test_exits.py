from __future__ import annotations

import os
from typing import Any

import pytest

from horn.process import control, main
from horn.process.exits import write_last


@pytest.mark.parametrize("name", ["sys.stdout", "sys.stderr"])
@pytest.mark.parametrize("is_closed", [True, False])
def test_streams_that_the_users_code_has_closed_are_told_of(
    monkeypatch: pytest.MonkeyPatch, name: str, is_closed: bool
) -> None:
    assert write_last("a line\n")
    stream = open(os.devnull, "w")
    stream.close()
    monkeypatch.setattr(name, stream if is_closed else None)
    assert not write_last("a line\n")


def test_a_task_whose_folder_is_gone_reports_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with exit code 1, and nobody said why."""

    class Line:
        said: list[Any] = []

        def send(self, message: Any) -> None:
            self.said.append(message)

        def receive(self, timeout_s: float | None) -> Any:
            return control.StartTask(0, b"", None, "/nowhere/work-1"), ()

    monkeypatch.setattr(main.ctypes, "CDLL", lambda _: type("", (), {"prctl": print}))
    line: Any = Line()
    with pytest.raises(FileNotFoundError):
        main.TaskProcess(line).run()
    assert isinstance(line.said[-1], control.FailureReport)
    assert line.said[-1].text == "[Errno 2] No such file or directory: '/nowhere/work-1'"
