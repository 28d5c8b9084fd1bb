"""Time: the statements that run step by step, and those that run once for all steps together.

Delayed inputs and carried States close circles; only statements on a circle must be repeated. All
statements before it (products with the inputs, mostly) and behind it (layers that nobody hears
late, the gradients of weights, which add up over the steps) run once, over the rows of the batch at
every step.

    Repeat(samples, targets)   AllSteps(before the circle)
    Repeat(circle)             AllSteps(behind it)          loss of the last step alone
    AllSteps(before the circle of gradients)  Repeat(circle, reverse)  AllSteps(gradients)
    updates

Buffers that one of these parts writes and another reads have all steps, others one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from horn import refusals
from horn.compiler.fusion import fused, told_in_place
from horn.compiler.parts import Sums
from horn.compiler.storage import Phase
from horn.errors import CompileError
from horn.ir import const
from horn.network import Network
from horn.neuron import (
    OF_A_SAMPLE,
)
from horn.program import (
    AllSteps,
    BatchSum,
    Buffer,
    Draw,
    Frame,
    Input,
    Loop,
    Output,
    Parts,
    Repeat,
    Reverse,
    Statement,
    Target,
    base,
    in_order,
    reads,
    writes,
)


class Flow:
    """Who makes what the statements of one pass read, each statement by its number.

    made : the last statement that writes a buffer. heard : the buffers that each reads. tallies :
    those that add to what they read of themselves, and that no other statement reads.
    """

    def __init__(self, statements: Sequence[Statement]) -> None:
        self.statements = statements
        self.made: dict[str, int] = {}
        for number, statement in enumerate(statements):
            self.made.update(dict.fromkeys(writes(statement), number))
        self.heard = [list(reads(s)) for s in statements]
        heard, made = list(enumerate(self.heard)), self.made
        others = {n for k, names in heard for n in names if made.get(n) != k}
        self.tallies = {
            k for k, names in heard
            if any(made.get(n) == k for n in names) and not others & {*writes(statements[k])}
        }  # fmt: skip
        self.batch_sums = {k for k, s in enumerate(statements) if isinstance(s, BatchSum)}

    def closure(self, found: set[int]) -> set[int]:
        """These statements, and all that they depend on."""
        found = set(found)
        pending = list(found)
        while pending:
            heard = self.heard[pending.pop()]
            more = {self.made[n] for n in heard if n in self.made} - found
            found |= more
            pending += more
        return found


@dataclass
class Body:
    """The statements of one pass through the steps, by their place in it."""

    fixed: list[Statement] = field(default_factory=list)  # the same at every step
    samples: list[Statement] = field(default_factory=list)  # read from the data
    before: list[Statement] = field(default_factory=list)
    circle: list[Statement] = field(default_factory=list)
    tallies: list[Statement] = field(default_factory=list)  # add up the values of each step
    behind: list[Statement] = field(default_factory=list)
    at_last: list[Statement] = field(default_factory=list)  # needed at the last step alone


class Arrangement:
    """Arranges the statements of the phases. keep : buffers that are read at every step; seeds : of
    these, the ones written at the last step alone, and their layers. part : the steps of a part, or
    0.
    """

    def __init__(
        self,
        network: Network,
        buffers: dict[str, Buffer],
        phases: dict[Phase, list[Statement]],
        keep: Iterable[str],
        seeds: Mapping[str, int],
        part: int = 0,
    ) -> None:
        self.network, self.buffers, self.phases = network, buffers, phases
        self.keep, self.seeds, self.part = set(keep), seeds, part
        self.views = {b.name: b.value for b in buffers.values() if b.role == "late"}

    def statements(self) -> tuple[Statement, ...]:
        later = self.phases["backward"] + self.phases["last"]
        forward = self.bodies(self.phases["forward"], later)
        backward = self.bodies(self.phases["backward"], self.phases["last"])
        first = list(self.phases["first"])
        runs = [run for run, _ in (*forward, *backward)]
        for run in runs:
            first += run.fixed
            run.before, run.circle, run.behind = map(fused, (run.before, run.circle, run.behind))
        self.tell_in_place([run for run, _ in backward], runs, first)
        if self.part:
            found = [*first, *self.in_parts(forward, backward)]
        else:
            judge = [s for run, _ in forward for s in run.at_last] + self.phases["judge"]
            tallies = [(Repeat, False, run.tallies) for run, _ in forward]
            found = merged([
                *first,
                *(s for run, turned in forward for s in forth(run, run.behind + turned)),
                *grouped(*tallies),
                *judge,
                *(s for run, turned in backward for s in back(run, turned)),
                *self.over_rows(self.phases["last"]),
            ])  # fmt: skip
        self.spans(in_order(found))
        return tuple(found)

    def tell_in_place(
        self, backward: Sequence[Body], runs: Sequence[Body], first: list[Statement]
    ) -> None:
        """Keep gradients for the step before in one place, where nothing else reads them."""
        for run in backward:
            others = [*first, *self.phases["last"], *self.phases["judge"]]
            for other in runs:
                others += [*other.samples, *other.before, *other.tallies, *other.behind]
                others += other.at_last + (other.circle if other is not run else [])
            run.circle, empty = told_in_place(run.circle, self.buffers, others, self.keep)
            first += empty
        self.views = {k: v for k, v in self.views.items() if k in self.buffers}

    def in_parts(
        self,
        forward: Sequence[tuple[Body, list[Statement]]],
        backward: Sequence[tuple[Body, list[Statement]]],
    ) -> list[Statement]:
        """All statements after the first phase, with ``Parts``."""
        if len(forward) > 1 or len(backward) > 1:
            raise CompileError(
                'recompute="sqrt" computes a sequence in parts, and what is heard from its end '
                "(horn.Reversed) needs all of it; train without it"
            )
        if any(buffer.role == "carried" for buffer in self.buffers.values()):
            raise CompileError(refusals.ONE_STEP)
        (run, _), (other, _) = forward[0], backward[0]
        behind = grouped((AllSteps, False, run.behind), (Repeat, False, run.tallies))
        steps = [*self.phases["judge"]]
        for of in (run, other):
            steps += [*of.samples, *of.before, *of.circle, *of.tallies, *of.behind, *of.at_last]
        changed = {name for s in steps for name in writes(s)}
        last = Sums(self.network, self.buffers, self.phases["last"], self.has_rows, changed)
        for name, layer in self.seeds.items():  # written by judge at the last step
            zero = Loop(Frame(layer), (Output(name, const(0.0)),))
            behind = [AllSteps((zero,)), *behind]
        flow = merged([*back(other, []), *self.over_rows(last.each)])
        judge, total = list[Statement](run.at_last), list[Statement]()
        tallied = {name for each in run.tallies for name in writes(each)}  # over all parts
        for each in self.phases["judge"]:
            if tallied & {*reads(each)}:
                total.append(each)
                tallied |= {*writes(each)}
            else:
                judge.append(each)
        parts = Parts(
            self.part, tuple(forth(run, [])), tuple(merged(behind)), tuple(judge), tuple(flow),
            frozenset(last.names),
        )  # fmt: skip
        return [*last.known, *last.zero, parts, *total, *last.after]

    def over_rows(self, statements: Sequence[Statement]) -> list[Statement]:
        def over(s: Statement) -> Statement:
            if isinstance(s, BatchSum):  # of one step
                return Repeat((s,))
            return AllSteps((s,)) if self.has_rows(s) else s

        return [over(s) for s in statements]

    def bodies(
        self, statements: Sequence[Statement], later: Sequence[Statement]
    ) -> list[tuple[Body, list[Statement]]]:
        """The statements of one pass, by the number of reversals before them: a reader of a
        reversal waits for all steps of its source. Each level with the reversals that follow it.
        """
        levels = self.levels(statements)
        found = []
        for level in range(max(levels, default=0) + 1):
            here = [s for s, at in zip(statements, levels, strict=True) if at == level]
            rest = [s for s, at in zip(statements, levels, strict=True) if at > level]
            turned: list[Statement] = [s for s in here if isinstance(s, Reverse)]
            others = [s for s in here if not isinstance(s, Reverse)]
            found.append((self.body(others, [*turned, *rest, *later]), turned))
        return found

    def levels(self, statements: Sequence[Statement]) -> list[int]:
        """The number of reversals before each statement, at any step. What is carried from step to
        step is of one step alone: who writes it and who reads it go through the steps together.
        """
        made: dict[str, list[int]] = {}
        together: dict[str, list[int]] = {}
        for number, statement in enumerate(statements):
            for name in writes(statement):
                made.setdefault(self.whole(name), []).append(number)
            for name in {*reads(statement), *writes(statement)}:
                if self.buffers[name].role == "carried":
                    together.setdefault(name, []).append(number)
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
            for numbers in together.values():
                highest = max(levels[number] for number in numbers)
                for number in numbers:
                    is_new |= levels[number] < highest
                    levels[number] = highest
        return levels

    def whole(self, name: str) -> str:
        """The buffer that a view of other steps belongs to; itself if it is no view."""
        return self.views[name][0] if name in self.views else name

    def has_rows(self, statement: Statement) -> bool:
        """Whether it runs over the rows of the batch."""
        names = {*reads(statement), *writes(statement)}
        if isinstance(statement, Loop) and any("b" in o.node.axes for o in statement.outputs):
            return True
        return any(base(axis) == "b" for name in names for axis in self.buffers[name].axes)

    def body(self, statements: Sequence[Statement], later: Sequence[Statement]) -> Body:
        """Assign the statements of one pass to its places."""
        flow = Flow(statements)
        bound = self.bound_to_carried(flow)
        tallies = flow.tallies - bound
        fixed, turning = self.fixed_and_turning(flow, tallies, flow.tallies & bound)
        needed = self.on_the_circle(flow, turning, flow.tallies & bound)
        wanted = self.wanted_of_all_steps(flow, tallies, later)
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

    def bound_to_carried(self, flow: Flow) -> set[int]:
        """The statements that depend on carried rows: these have one step only, so that sums of
        them belong to the circle.
        """
        found = set[int]()
        for number, names in enumerate(flow.heard):
            if any(self.buffers[n].role == "carried" or flow.made.get(n) in found for n in names):
                found.add(number)
        return found

    def fixed_and_turning(
        self, flow: Flow, tallies: set[int], summed: set[int]
    ) -> tuple[set[int], set[int]]:
        """The statements that are the same at every step, and those that depend on an earlier one.
        summed : sums that belong to the circle.
        """
        made, heard = flow.made, flow.heard
        fixed, turning = set[int](), set(summed)
        for number, statement in enumerate(flow.statements):
            of = [made[n] for n in heard[number] if n in made]
            if number in tallies or number in summed:
                continue
            late = [n for n in heard[number] if n in self.views and self.whole(n) in made]
            if late or any(other >= number for other in of) or any(n in turning for n in of):
                turning.add(number)
            elif self.is_fixed(statement, heard[number]) and all(n in fixed for n in of):
                fixed.add(number)
        turning |= flow.batch_sums  # sums over the rows of a step are computed step by step
        for number, names in enumerate(heard):
            if any(made.get(n) in turning for n in names) and number not in tallies:
                turning.add(number)
                fixed.discard(number)
        return fixed, turning

    def on_the_circle(self, flow: Flow, turning: set[int], summed: set[int]) -> set[int]:
        """The statements whose earlier step is read, with all that they depend on."""
        made, heard = flow.made, flow.heard
        found = {
            made[self.whole(n)]
            for names in heard for n in names if n in self.views and self.whole(n) in made
        }  # fmt: skip
        found |= {k for k in turning if any(made.get(n, -1) >= k for n in heard[k])}
        return flow.closure(found | summed | flow.batch_sums)

    def wanted_of_all_steps(
        self, flow: Flow, tallies: set[int], later: Sequence[Statement]
    ) -> set[int]:
        """The statements with a reader of all steps; of others the last step is enough."""
        asked = {self.whole(n) for s in later for n in reads(s)} | self.keep
        asked |= {self.whole(n) for names in flow.heard for n in names if n in self.views}
        asked |= {n for k in tallies for n in flow.heard[k]}
        return flow.closure({flow.made[n] for n in asked if n in flow.made})

    def is_fixed(self, statement: Statement, heard: Sequence[str]) -> bool:
        """Whether it computes the same at every step, its inputs apart."""
        if self.has_rows(statement) or isinstance(statement, (Input, Target)):
            return False
        if isinstance(statement, Draw):
            return statement.per not in OF_A_SAMPLE
        return not any(self.buffers[n].role == "late" for n in heard)

    def spans(self, statements: Sequence[Statement]) -> None:
        """Set the buffers with all steps, and the number of steps besides. Views that nobody reads
        are no buffers: what they are of may be kept for one step alone.
        """
        unread = set(self.views)
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
                        unread.discard(name)
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
        for name in unread:
            del self.buffers[name]
        self.check(statements)

    def check(self, statements: Sequence[Statement]) -> None:
        """Raise CompileError if a step's number for all rows is read at another step."""
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
    """The layers on circles: delayed messages to them depend on their own outputs."""
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


def grouped(*parts: tuple[type[Repeat | AllSteps], bool, list[Statement]]) -> list[Statement]:
    """Group statements by the way they run, without empty groups."""
    return [
        Repeat(tuple(body), reverse) if kind is Repeat else AllSteps(tuple(body))
        for kind, reverse, body in parts if body
    ]  # fmt: skip


def forth(run: Body, behind: list[Statement]) -> list[Statement]:
    """The statements that run through the steps forward in time."""
    return grouped(
        (Repeat, False, run.samples), (AllSteps, False, run.before), (Repeat, False, run.circle),
        (AllSteps, False, behind),
    )  # fmt: skip


def back(run: Body, turned: list[Statement]) -> list[Statement]:
    """The statements that run back through the steps."""
    return grouped(
        (Repeat, False, run.samples), (AllSteps, False, run.before), (Repeat, True, run.circle),
        (AllSteps, False, run.behind + run.at_last + turned),
    )  # fmt: skip


def merged(statements: Sequence[Statement]) -> list[Statement]:
    """Join neighbours that run over all steps."""
    found: list[Statement] = []
    for statement in statements:
        if isinstance(statement, AllSteps) and found and isinstance(found[-1], AllSteps):
            found[-1] = AllSteps((*found[-1].body, *statement.body))
        else:
            found.append(statement)
    return found
