"""What Linux says of a process."""

from __future__ import annotations

import os
from pathlib import Path

from horn.process_stat import SESSION, STATE, is_stopped, process_stat


def test_a_name_with_parentheses_and_letters_of_states_is_no_state():
    name = Path("/proc/self/comm")
    before = name.read_text()
    try:
        name.write_text("a) T 1 (")
        assert process_stat(os.getpid())[STATE] == b"R" and not is_stopped(os.getpid())
        assert int(process_stat(os.getpid())[SESSION]) == os.getsid(0)
    finally:
        name.write_text(before.strip())


def test_of_a_process_that_is_not_there_nothing_is_said():
    assert process_stat(2**30) == [] and not is_stopped(2**30)
