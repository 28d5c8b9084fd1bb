"""Frames that go out damaged, each before it goes out as it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

Parts = Sequence[Any]


class Noisy:
    """A link of which every frame goes out wrong first, and then as it should be. As no link does,
    it does not wait: None while it is full, and who sends comes again.
    """

    def __init__(self, link: Any, wrong: Callable[[Parts], list[Parts]]) -> None:
        self.link, self.wrong, self.is_on = link, wrong, False
        self.n_wrong = 0
        self.told: set[int] = set()  # to whom a wrong frame has gone, but not yet the right one

    def put(self, to: int, parts: Parts) -> Any:
        if self.is_on and to not in self.told:
            for other in self.wrong(parts):
                if self.link.put(to, other) is None:
                    return None
                self.n_wrong += 1
            self.told.add(to)
        is_gone = self.link.put(to, parts)
        if is_gone is not None:
            self.told.discard(to)
        return is_gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)


def flipped(seed: object) -> Callable[[Parts], list[Parts]]:
    """With one to five bits changed, anywhere."""
    draw = random.Random(str(seed))

    def wrong(parts: Parts) -> list[Parts]:
        copies = [bytearray(part) for part in parts]
        part = draw.choice([copy for copy in copies if copy])
        for _ in range(draw.choice([1, 1, 2, 5])):
            bit = draw.randrange(8 * len(part))
            part[bit // 8] ^= 1 << bit % 8
        return [] if copies == [bytearray(p) for p in parts] else [[bytes(c) for c in copies]]

    return wrong
