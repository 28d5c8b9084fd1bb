"""Syntax trees are made one after the other, whatever threads ask for them; where they end."""

from __future__ import annotations

import ast
import gc
import inspect
import io
import re
import threading
import tokenize

import pytest

from horn import texts
from horn.language import source

WAIT_S = 30.0
LONG = "\n".join(f"x{i} = [a + {i}, (b, c), {{'k': d}}]" for i in range(300))


class Noted:
    """A lock that says when somebody who is not its first owner asks for it."""

    def __init__(self, lock):
        self.lock, self.owner, self.asked = lock, None, threading.Event()

    def __enter__(self):
        if self.owner is not None:
            self.asked.set()
        self.lock.acquire()
        self.owner = threading.current_thread()

    def __exit__(self, *_):
        self.lock.release()


def test_a_thread_waits_for_the_tree_of_another(monkeypatch):
    """Python counts a tree's depth once for all threads: two at once raise SystemError."""
    lock = Noted(texts._PARSING)
    monkeypatch.setattr(texts, "_PARSING", lock)
    main = threading.current_thread()
    done: list[ast.Module] = []
    other = threading.Thread(target=lambda: done.append(texts.parsed("y = 1")))
    inside = []

    def collecting(phase, info):
        if threading.current_thread() is main and lock.owner is main and not inside:
            other.start()
            assert lock.asked.wait(WAIT_S), "the other thread did not ask"
            inside.append(len(done))

    old = gc.get_threshold()
    gc.callbacks.append(collecting)
    gc.set_threshold(50)
    try:
        tree = texts.parsed(LONG)
    finally:
        gc.set_threshold(*old)
        gc.callbacks.remove(collecting)
    other.join(WAIT_S)
    assert inside == [0]  # it was asked for in the middle of the first, and not made then
    assert len(tree.body) == 300 and ast.unparse(done[0]) == "y = 1"


ENDS = '''
class Cell:

    @given(
        1,
    )
    def first(self, x):  # a comment

        text = """
out here
    """

        if x:
            return [
    text,
        ]
    # less deep
        return text + \\
    "on"


    def second(self): return 1
    async def third(self):
        yield 3

def fourth():
    def inner():

        return 1

    return inner
def fifth(): pass
f = (lambda x: x)
def last():
    # only this

    return 2'''


def test_a_function_ends_where_pythons_own_reader_says():
    """Which takes each process the time to make its expressions."""
    lines = list(io.StringIO(ENDS))
    starts = [n for n, line in enumerate(lines) if re.match(r" *(@|(async )?def )", line)]
    assert len(starts) == 8
    for n in starts:
        mine, pythons = (source._statement(lines[n:]), source._first(inspect.getblock(lines[n:])))
        assert ast.dump(mine, include_attributes=True) == ast.dump(pythons, include_attributes=True)


def test_a_text_without_an_end_is_refused_as_python_refuses_it():
    with pytest.raises((SyntaxError, tokenize.TokenError)):
        source._statement(["def f(x):\n", "    return (x,\n"] + ["x,\n"] * 500)
