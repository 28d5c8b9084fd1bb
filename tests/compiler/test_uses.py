"""Where a program uses its buffers: what is found in one pass is what a search for each finds, and
deep networks cost as much more as they have layers.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import pytest

import horn
from horn.compiler import lower
from horn.errors import CompileError
from horn.partition.placement import LAYER_SPLITS, LINK_SPLITS, Placement
from horn.partition.rewrite import partition
from horn.partition.segment_marks import Uses, marked, uses_by_segment
from horn.partition.share import Share
from horn.partition.supersteps import IdleSupersteps, roots
from horn.program import Collect, Mark, Move, Post, Program, Statement, reads, segments, writes
from horn.runtime.exchange import Exchange
from tests.parity.programs import load, program
from tests.parity.test_tasks import place
from tests.planner.test_cost_model import Standing
from tests.support.calls import calls_of

SEEDS = range(12)
PLAIN = horn.SGD(0.1)


def divided(seed: int, folder: Path, n_groups: int) -> Program:
    """A random network's program, of a random placement; whole where that is refused."""
    r, network = random.Random(seed), load(program(seed), seed, folder).network()
    whole = lower.training_program(network, horn.SGD(0.1, momentum=0.5), "labels", thin=False)
    links = [r.choice(list(LINK_SPLITS)) for _ in range(9)]
    layers = [r.choice(list(LAYER_SPLITS)) for _ in range(9)]
    try:
        return partition(whole, place(network, links, layers), ["loss"], n_groups)
    except CompileError:
        return partition(whole, Placement(), ["loss"], n_groups)


def some_names(of: Program, seed: int) -> list[list[str]]:
    r, names = random.Random(seed), list(of.buffers)
    return [r.sample(names, r.randint(1, min(4, len(names)))) for _ in range(20)] + [["#none"]]


def uses(statements: Iterable[Statement], names: Collection[str]) -> bool:
    return any(not set(names).isdisjoint((*reads(s), *writes(s))) for s in statements)


def makes(statements: Iterable[Statement], names: Collection[str]) -> bool:
    return any(not set(names).isdisjoint(writes(s)) for s in statements)


@pytest.mark.parametrize("seed", SEEDS)
def test_first_and_last_uses_are_those_of_a_search_for_each(seed, tmp_path):
    found = divided(seed, tmp_path, n_groups=1 + seed % 3)
    wanted, single = some_names(found, seed), [(s,) for s in found.statements]
    for parts, of in ((segments(found), uses_by_segment(found)), (single, Uses(single))):
        for names in wanted:
            users = [k for k, part in enumerate(parts) if uses(part, names)]
            makers = [k for k, part in enumerate(parts) if makes(part, names)]
            assert of.first(names) == (users[0] if users else None)
            assert of.last_made(names) == (makers[-1] if makers else None)


@pytest.mark.parametrize("seed", SEEDS)
def test_marks_are_before_the_first_use_and_after_the_last(seed, tmp_path):
    found = divided(seed, tmp_path, n_groups=1 + seed % 3)
    needed, made = some_names(found, seed), some_names(found, seed + 100)
    statements = found.statements
    before = {next((k for k, s in enumerate(statements) if uses([s], n)), None) for n in needed}
    after = {max((k for k, s in enumerate(statements) if makes([s], n)), default=-1) for n in made}
    expected = list[Statement]()
    for k, statement in enumerate(statements):
        if k in before and expected and not isinstance(expected[-1], Mark):
            expected.append(Mark())
        expected.append(statement)
        if k in after and k + 1 < len(statements):
            expected.append(Mark())
    assert list(marked(found, needed, made).statements) == expected


def idle(of: Program, name: str) -> list[int]:
    """The supersteps posted after the last read of one buffer, collected before its first write."""
    places = list(enumerate(of.statements))
    posts = {s.superstep: k for k, s in places if isinstance(s, Post)}
    trips = [(s.superstep, posts[s.superstep], k) for k, s in places if isinstance(s, Collect)]
    others = [(k, s) for k, s in places if not isinstance(s, (Post, Collect))]
    writers = [k for k, s in others if name in roots(of, writes(s))]
    readers = [k for k, s in others if name in roots(of, reads(s)) and k not in writers]
    first, last = min(writers, default=len(places)), max(readers, default=-1)
    return [step for step, post, collect in trips if last < post and collect < first]


@pytest.mark.parametrize("seed", SEEDS)
def test_idle_supersteps_are_those_of_a_search_for_each_buffer(seed, tmp_path):
    found = divided(seed, tmp_path, n_groups=2 + seed % 3)
    of = IdleSupersteps(found)
    assert [of.of(name) for name in found.buffers] == [idle(found, name) for name in found.buffers]


def may_share(self: Exchange, move: Move) -> bool:
    """What an Exchange asks of each learned array, asked of the whole program each time."""
    of = self.program
    if not move.across or move.monoid or of.buffers[move.out].role != "learned":
        return False
    moves = [m for s in of.statements if isinstance(s, Post) for m in s.moves if m is not move]
    if any(move.out in roots(of, (m.array, m.out)) for m in moves):
        return False
    everybody = {(a, b) for shares in self._across for a in shares for b in shares if a != b}
    return move.out in roots(of, (move.array,)) and any(
        everybody <= {(c.src, dst) for c in self._ours[step].channels for dst in c.dsts}
        for step in idle(of, move.out)
    )


def deep(n_layers: int, width: int) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(4)
    for _ in range(n_layers):
        net.layer(width, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def of_groups(network: horn.Network) -> Program:
    whole = lower.training_program(network, PLAIN, "labels", thin=False)
    return partition(whole, Placement(), ["loss"], 2)


def exchange(of: Program) -> Exchange:
    share = Share(of.network, 0, 1, 0, 2)
    return Exchange(Standing(of), share, 8, np.float32, 0, can_share=True)


def test_groups_have_in_common_what_a_search_for_each_array_says(monkeypatch):
    found = of_groups(deep(3, 140))  # so wide that gradients are no small sums
    now = exchange(found)
    monkeypatch.setattr(Exchange, "_may_share", may_share)
    before = exchange(found)
    assert (now.common, now.channels) == (before.common, before.channels)
    assert {f"layer{k}.weight" for k in (2, 3)} <= set(now.common)


@pytest.mark.parametrize("work", ["marks", "exchange"])
def test_what_is_planned_of_a_program_grows_as_its_layers_do(work):
    few, many = (of_groups(deep(n, 140)) for n in (10, 30))

    def plan(of: Program) -> None:
        if work == "exchange":
            exchange(of)
            return
        names = [[name] for name, buffer in of.buffers.items() if buffer.role == "learned"]
        now = marked(of, names, names)
        found = uses_by_segment(now)
        for name in names:
            found.first(name), found.last_made(name)

    assert calls_of(lambda: plan(many)) < 4 * calls_of(lambda: plan(few))
