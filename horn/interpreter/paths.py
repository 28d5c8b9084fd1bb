"""The paths that a function of the user's takes, if its comparisons turn out otherwise."""

from __future__ import annotations

from collections.abc import Iterator

# The most paths of a function that are looked at, and the most comparisons that are turned on each:
# enough for every neuron seen so far by a wide margin; one with more paths is judged by these.
MOST_PATHS, MOST_TURNS = 256, 24


class Path:
    """One run of a function: its first comparisons turn out as ``script`` says, the others as they
    are.
    """

    def __init__(self, script: tuple[bool, ...] = ()) -> None:
        self.script = script
        self.outcomes: list[bool] = []

    def turned(self, outcome: bool) -> bool:
        """How the next comparison turns out, which is ``outcome`` in truth."""
        if len(self.outcomes) < len(self.script):
            outcome = self.script[len(self.outcomes)]
        self.outcomes.append(outcome)
        return outcome

    def others(self) -> Iterator[Path]:
        """After the run: with each of the comparisons turned that no script has fixed."""
        for k in range(len(self.script), min(len(self.outcomes), MOST_TURNS)):
            yield Path((*self.outcomes[:k], not self.outcomes[k]))


def paths() -> Iterator[Path]:
    """Paths to run along, one after the other: the first with the comparisons as they are."""
    pending = [Path()]
    for _ in range(MOST_PATHS):
        if not pending:
            return
        path = pending.pop()
        yield path
        pending += path.others()
