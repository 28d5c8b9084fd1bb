"""Time: which statements run step by step, and which once for all steps together.

What a layer hears late, and what a neuron carries from step to step, closes circles; only what lies
on one has to be repeated. All before it (products with the inputs, mostly) and all behind it (what
nobody hears late, the gradients of weights, which add up over the steps) runs once, over the rows
of the batch at every step.

    Repeat(samples, targets)   AllSteps(before the circle)
    Repeat(circle)             AllSteps(behind it)          what the last step alone is asked
    AllSteps(before the circle of what comes back)  Repeat(circle, reverse)  AllSteps(gradients)
    updates

Buffers that one of these parts makes and another reads have all steps, others one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from horn.errors import CompileError
from horn.network import Network
from horn.program import (
    AllSteps,
    Buffer,
    Draw,
    Input,
    Loop,
    Repeat,
    Reverse,
    Statement,
    Target,
    base,
    reads,
    writes,
)

PHASES = ("first", "forward", "judge", "backward", "last")


@dataclass
class Body:
    """The statements of one pass through the steps, by where they run."""

    fixed: list[Statement] = field(default_factory=list)  # the same at every step
    samples: list[Statement] = field(default_factory=list)  # read of the data
    before: list[Statement] = field(default_factory=list)
    circle: list[Statement] = field(default_factory=list)
    tallies: list[Statement] = field(default_factory=list)  # add up what each step says
    behind: list[Statement] = field(default_factory=list)
    at_last: list[Statement] = field(default_factory=list)  # of which the last step is asked alone


class Arrangement:
    """Puts the statements of the phases together. keep : buffers of which every step is asked."""

    def __init__(
        self, buffers: dict[str, Buffer], phases: dict[str, list[Statement]], keep: Iterable[str]
    ) -> None:
        self.buffers, self.phases = buffers, phases
        self.keep = set(keep)
        self.views = {b.name: b.value for b in buffers.values() if b.role == "late"}

    def statements(self) -> tuple[Statement, ...]:
        later = self.phases["backward"] + self.phases["last"]
        forward = self.bodies(self.phases["forward"], later, self.phases["judge"])
        backward = self.bodies(self.phases["backward"], self.phases["last"], [])
        first = list(self.phases["first"])
        for body, _ in (*forward, *backward):
            first += body.fixed
        parts: list[tuple[type[Statement] | None, bool, list[Statement]]] = [(None, False, first)]
        for body, turned in forward:
            parts += [
                (Repeat, False, body.samples),
                (AllSteps, False, body.before),
                (Repeat, False, body.circle),
                (AllSteps, False, body.behind + turned),
            ]
        parts += [(Repeat, False, body.tallies) for body, _ in forward]
        at_last = [statement for body, _ in forward for statement in body.at_last]
        parts.append((None, False, at_last + self.phases["judge"]))
        for body, turned in backward:
            parts += [
                (Repeat, False, body.samples),
                (AllSteps, False, body.before),
                (Repeat, True, body.circle),
                (AllSteps, False, body.behind + body.at_last + turned),
            ]
        found: list[Statement] = []
        for kind, reverse, statements in parts:
            if not statements:
                continue
            if kind is None:
                found += statements
            elif kind is Repeat:
                found.append(Repeat(tuple(statements), reverse))
            else:
                found.append(AllSteps(tuple(statements)))
        for statement in self.phases["last"]:
            found.append(AllSteps((statement,)) if self.has_rows(statement) else statement)
        found = merged(found)
        self.spans(found)
        return tuple(found)

    def bodies(
        self, statements: Sequence[Statement], later: Sequence[Statement],
        judge: Sequence[Statement],
    ) -> list[tuple[Body, list[Statement]]]:  # fmt: skip
        """The statements of one pass, by how many reversals lie before them: what reads a reversal
        waits for all steps of what is reversed. Each with the reversals that follow it.
        """
        levels = self.levels(statements)
        found = []
        for level in range(max(levels, default=0) + 1):
            here = [s for s, at in zip(statements, levels, strict=True) if at == level]
            rest = [s for s, at in zip(statements, levels, strict=True) if at > level]
            turned: list[Statement] = [s for s in here if isinstance(s, Reverse)]
            others = [s for s in here if not isinstance(s, Reverse)]
            found.append((self.body(others, [*turned, *rest, *later], judge), turned))
        return found

    def levels(self, statements: Sequence[Statement]) -> list[int]:
        """How many reversals lie before each statement, at any step."""
        made: dict[str, list[int]] = {}
        for number, statement in enumerate(statements):
            for name in writes(statement):
                made.setdefault(self.whole(name), []).append(number)
        levels = [0] * len(statements)
        is_new = True
        while is_new:
            is_new = False
            for number, statement in enumerate(statements):
                for name in reads(statement):
                    for other in made.get(self.whole(name), []):
                        least = levels[other] + isinstance(statements[other], Reverse)
                        if other != number and least > levels[number]:
                            levels[number], is_new = least, True
                assert levels[number] <= len(statements), "a reversal waits for itself"
        return levels

    def whole(self, name: str) -> str:
        """What a buffer is a view of, of other steps; itself if it is none."""
        return self.views[name][0] if name in self.views else name

    def has_rows(self, statement: Statement) -> bool:
        """Whether it runs over the rows of the batch."""
        names = {*reads(statement), *writes(statement)}
        if isinstance(statement, Loop) and any("b" in o.node.axes for o in statement.outputs):
            return True
        return any(base(axis) == "b" for name in names for axis in self.buffers[name].axes)

    def body(
        self, statements: Sequence[Statement], later: Sequence[Statement],
        judge: Sequence[Statement],
    ) -> Body:  # fmt: skip
        """Where the statements of one pass run."""
        made: dict[str, int] = {}
        for number, statement in enumerate(statements):
            made.update(dict.fromkeys(writes(statement), number))
        heard = [list(reads(s)) for s in statements]
        others = {n for k, names in enumerate(heard) for n in names if made.get(n) != k}
        tallies = {
            k for k, names in enumerate(heard)
            if any(made.get(n) == k for n in names) and not others & {*writes(statements[k])}
        }  # fmt: skip
        # What depends on what rows carry, of which there is but one step, is of the circle.
        bound = set[int]()
        for number, names in enumerate(heard):
            if any(self.buffers[n].role == "carried" or made.get(n) in bound for n in names):
                bound.add(number)
        summed = tallies & bound
        tallies -= bound
        # What is fixed, and what depends on something of an earlier step.
        fixed, turning = set[int](), set(summed)
        for number, statement in enumerate(statements):
            of = [made[n] for n in heard[number] if n in made]
            if number in tallies or number in summed:
                continue
            late = [n for n in heard[number] if n in self.views and self.whole(n) in made]
            if late or any(other >= number for other in of) or any(n in turning for n in of):
                turning.add(number)
            elif self.is_fixed(statement, heard[number]) and all(n in fixed for n in of):
                fixed.add(number)
        # What an earlier step is heard of: it is on the circle, with all that it depends on.
        needed = {
            made[self.whole(n)]
            for names in heard for n in names if n in self.views and self.whole(n) in made
        }  # fmt: skip
        needed |= {k for k in turning if any(made.get(n, -1) >= k for n in heard[k])} | summed
        pending = list(needed)
        while pending:
            for name in heard[pending.pop()]:
                if name in made and made[name] not in needed:
                    needed.add(made[name])
                    pending.append(made[name])
        # What is behind and read by nobody who sees all steps: the last step is all that is asked.
        asked = {self.whole(n) for s in later for n in reads(s)} | self.keep
        asked |= {self.whole(n) for names in heard for n in names if n in self.views}
        asked |= {n for k in tallies for n in heard[k]}
        wanted = {made[n] for n in asked if n in made}
        pending = list(wanted)
        while pending:
            for name in heard[pending.pop()]:
                if name in made and made[name] not in wanted:
                    wanted.add(made[name])
                    pending.append(made[name])
        found = Body()
        for number, statement in enumerate(statements):
            if number in tallies:
                found.tallies.append(statement)
            elif number in fixed:
                found.fixed.append(statement)
            elif number in turning and number in needed:
                found.circle.append(statement)
            elif number in turning:
                (found.behind if number in wanted else found.at_last).append(statement)
            elif isinstance(statement, (Input, Target)):
                found.samples.append(statement)
            else:
                found.before.append(statement)
        return found

    def is_fixed(self, statement: Statement, heard: Sequence[str]) -> bool:
        """Whether it makes the same at every step, but for what it reads of others."""
        if self.has_rows(statement) or isinstance(statement, (Input, Target)):
            return False
        if isinstance(statement, Draw):
            return statement.per != "sample"
        return not any(self.buffers[n].role == "late" for n in heard)

    def spans(self, statements: Sequence[Statement]) -> None:
        """Say which buffers have all steps, and how many besides."""
        where: dict[str, set[int]] = {}
        wide: set[str] = set()
        extra: dict[str, tuple[int, int]] = dict.fromkeys(self.keep, (0, 0))
        for place, statement in enumerate(statements):
            inside = statement.body if isinstance(statement, (Repeat, AllSteps)) else (statement,)
            at = place if isinstance(statement, (Repeat, AllSteps)) else -1
            for each in inside:
                for name in (*reads(each), *writes(each)):
                    buffer = self.buffers[name]
                    if name in self.views:
                        whole, delay = self.views[name]
                        before, after = extra.get(whole, (0, 0))
                        extra[whole] = max(before, delay), max(after, -delay)
                    elif buffer.role == "work" and at >= 0:
                        where.setdefault(name, set()).add(at)
                        if isinstance(statement, AllSteps):
                            wide.add(name)
        for name, places in where.items():
            has_rows = any(base(axis) == "b" for axis in self.buffers[name].axes)
            if (name in wide or len(places) > 1) and has_rows:
                extra.setdefault(name, (0, 0))
        for name, span in extra.items():
            self.buffers[name] = replace(self.buffers[name], span=span)
        self.check(statements)

    def check(self, statements: Sequence[Statement]) -> None:
        """What has one number at each step, for all rows, is not read at another."""
        made = dict[str, Statement]()
        for statement in statements:
            if not isinstance(statement, Repeat):
                continue
            for each in statement.body:
                made.update(dict.fromkeys(writes(each), statement))
        for statement in statements:
            inside = statement.body if isinstance(statement, (Repeat, AllSteps)) else ()
            for each in inside:
                for name in reads(each):
                    buffer = self.buffers[name]
                    here = made.get(name, statement) is statement
                    if not here and buffer.span is None and buffer.role == "work":
                        raise CompileError(
                            f"{name}: what all samples of a batch share at one step is not kept "
                            "for another; ask the layer, or keep it in a State"
                        )


def on_circles(network: Network) -> frozenset[int]:
    """The layers that hear, late, what depends on what they send."""
    hears = {x.index: {link.source.index for link in x.links} for x in network.layers}
    found = set[int]()
    for index in hears:
        seen, pending = set[int](), [index]
        while pending:
            new = hears[pending.pop()] - seen
            seen |= new
            pending += new
        if index in seen:
            found.add(index)
    return frozenset(found)


def merged(statements: Sequence[Statement]) -> list[Statement]:
    """Neighbours that run over all steps as one."""
    found: list[Statement] = []
    for statement in statements:
        if isinstance(statement, AllSteps) and found and isinstance(found[-1], AllSteps):
            found[-1] = AllSteps((*found[-1].body, *statement.body))
        else:
            found.append(statement)
    return found
