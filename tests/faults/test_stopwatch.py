"""The watch of the fault experiments."""

import pytest

from tests.faults.stopwatch import PRESSURE, Stopwatch

SAID = "some avg10=9.02 avg60=20.03 avg300=21.73 total={}\nfull avg10=0.00 avg60=0.00 total=7\n"


def test_waiting_for_a_processor_does_not_count(tmp_path):
    pressure = tmp_path / "cpu"
    pressure.write_text(SAID.format(1_000_000))
    watch = Stopwatch(pressure)
    pressure.write_text(SAID.format(61_000_000))
    own, all_of_it = watch.seconds()
    assert all_of_it - own == pytest.approx(60.0)


def test_where_the_system_does_not_say_all_counts(tmp_path):
    for pressure in (tmp_path / "none", tmp_path):
        own, all_of_it = Stopwatch(pressure).seconds()
        assert own == all_of_it
    if PRESSURE.exists():
        own, all_of_it = Stopwatch().seconds()
        assert own <= all_of_it
