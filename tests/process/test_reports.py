"""The report of a task that failed comes to its parent, whatever has failed."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from horn.coordination.membership import RegistrationTimeout
from horn.errors import BarrierTimeout
from horn.process.control import TEXT_CHARACTERS, ControlChannel, FailureReport
from horn.process.main import TaskProcess
from horn.process.rendezvous import named
from horn.topology import Topology
from horn.training.divergence import NonFinite
from horn.transport import PeerLost

LONG = "x" * (2 * TEXT_CHARACTERS)
NO_TEXT = os.fsdecode(b"/data/\xff.csv")  # a file's name that is no UTF-8


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


def reported(error: BaseException, trouble: NonFinite | None = None) -> FailureReport:
    """What the parent hears of an error."""
    ours, theirs = ControlChannel.pair()
    try:
        task = TaskProcess(ours)
        task.loop = SimpleNamespace(guard=SimpleNamespace(trouble=trouble))  # type: ignore[assignment]
        task.report(error)
        found = theirs.receive(1.0)
    finally:
        ours.close()
        theirs.close()
    assert found is not None and isinstance(found[0], FailureReport)
    return found[0]


def test_a_name_that_is_no_text_is_spelled_out():
    said = reported(ValueError(f"cannot read {NO_TEXT}"))
    assert said.text == "cannot read /data/\\udcff.csv" and "ValueError" in said.traceback


def test_a_name_that_is_no_text_may_be_that_of_the_users_file():
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", NO_TEXT, "exec"), {"__name__": "job"})
    said = reported(caught.value)
    assert said.line is not None and said.line[:2] == ("/data/\\udcff.csv", 1)


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (ValueError(LONG), "text"),
        (BarrierTimeout("superstep 3", ("task 1",), (), 1.0, LONG), "hint"),
        (PeerLost("superstep 3", ("task 1",), LONG), "reason"),
        (PeerLost("superstep 3", ("task 1",), NO_TEXT), "reason"),
    ],
    ids=["text", "hint", "reason", "name"],
)
def test_what_is_too_long_is_cut(error: Exception, field: str):
    said = reported(error)
    assert getattr(said, field) in ("x" * TEXT_CHARACTERS, "/data/\\udcff.csv")


def test_an_error_that_cannot_say_what_it_is_is_reported_with_what_it_raises():
    said = reported(Mute())
    assert said.kinds[0] == "RuntimeError" and said.text == "it has no text"


def test_a_divergence_is_reported_without_the_arrays_if_they_cannot_be_sent():
    """As where memory is out. Its engine is missing here."""
    said = reported(ValueError("diverged"), NonFinite("nan", 3, 1))
    assert said.text == "diverged" and said.trouble == ("nan", 3, 1)


def test_who_has_not_registered_is_named_by_rank_whatever_the_folder():
    """Each folder counts its members from 0."""
    folders = {"/groups/1": [2, 3], "/servers": [4]}
    for folder, absent, names in (
        ("/groups/1", (3,), ("task 3",)),
        ("/servers", (4,), ("server 0",)),
    ):
        here = ("0",) if len(folders[folder]) > 1 else ()
        late = RegistrationTimeout(folder, (str(len(here)),), here, 1.0, "look there")
        with pytest.raises(BarrierTimeout) as caught, named(folders, Topology(2, 2, 1)):
            raise late
        assert (caught.value.absent, caught.value.absent_ranks) == (names, absent)
        assert caught.value.arrived == (("task 2",) if here else ())
