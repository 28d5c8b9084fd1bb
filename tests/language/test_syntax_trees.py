"""Syntax trees are made one after the other, whatever threads ask for them."""

from __future__ import annotations

import ast
import gc
import threading

from horn import texts

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
