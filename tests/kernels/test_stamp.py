"""Compiled kernels of other sources than those beside them are refused."""

import pytest

from horn._kernels import stamp


def test_the_stamp_is_of_every_source_and_of_nothing_else(tmp_path):
    assert stamp.stamp(tmp_path) == ""
    seen = set()
    for name in ("tape.h", "tape.c", "engine.pyx", "binding.pxi", "tape.pxd"):
        (tmp_path / name).write_text("int one;")
        seen.add(stamp.stamp(tmp_path))
    (tmp_path / "loops.py").write_text("one = 1")
    (tmp_path / "engine.so").write_bytes(b"one")
    assert stamp.stamp(tmp_path) in seen and len(seen) == 5
    (tmp_path / "tape.c").write_text("int two;")
    assert stamp.stamp(tmp_path) not in seen


def test_kernels_of_other_sources_are_refused(tmp_path, monkeypatch):
    (tmp_path / "tape.c").write_text("int one;")
    monkeypatch.setattr(stamp, "__file__", str(tmp_path / "stamp.py"))
    stamp.refuse_others(stamp.stamp(tmp_path))
    with pytest.raises(ImportError, match=r"other sources.*python setup\.py build_ext"):
        stamp.refuse_others("0123456789abcdef")
    (tmp_path / "tape.c").unlink()  # as in a wheel
    stamp.refuse_others("0123456789abcdef")
