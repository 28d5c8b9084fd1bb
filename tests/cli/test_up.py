"""The agent of horn up, which runs in a thread of the command."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from horn.cli import up


class StuckAgent:
    """An agent that ends once ``over`` is set, whatever it is told."""

    over = threading.Event()

    def __init__(self, capacity: Any) -> None:
        pass

    def run(self) -> None:
        self.over.wait(30.0)

    def stop(self) -> None:
        pass


def test_an_agent_that_does_not_end_in_time_is_told(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr("horn.cluster.agent.Agent", StuckAgent)
    monkeypatch.setattr(up, "END_S", 0.01)
    try:
        with ExitStack() as stack:
            up._agent(stack, None)
        assert "the worker has not ended within 0.01 s; its tasks end with this" in caplog.text
    finally:
        StuckAgent.over.set()


def test_an_agent_that_fails_ends_the_command_with_its_error(monkeypatch: Any) -> None:
    heard = threading.Event()
    monkeypatch.setattr("horn.cluster.agent.Agent", StuckAgent)
    monkeypatch.setattr(StuckAgent, "run", lambda self: 1 // 0)
    monkeypatch.setattr(up.os, "kill", lambda pid, number: heard.set())
    with pytest.raises(ZeroDivisionError), ExitStack() as stack:
        up._agent(stack, None)
        assert heard.wait(10.0)
