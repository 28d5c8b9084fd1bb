"""The state of a durable server: plain facts for JSON and arrays by name; and its restoration."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from horn.backends import Array
from horn.errors import ProtocolError
from horn.parameter_server.journal import Journal
from horn.parameter_server.server import GroupState, ParameterServer
from horn.parameter_server.updates import ServerPiece
from horn.wire.messages import PullParameters

logger = logging.getLogger(__name__)

# Raised with another fact. States of before 3 lack ``measuring``, those of before 4 have what was
# given to each group by itself; both are read.
FORMAT, OLDEST = 4, 2
# Attributes of a server; each is a fact of the same name.
PLAIN = ("n_pushes", "n_changes", "n_repeated", "stop_after")
# Facts that are groups' numbers, those with the attribute; and sets of theirs, by group.
FLAGS = {"left": "has_left", "fresh": "is_fresh", "begun": "has_begun", "measuring": "measures"}
SETS = ("leavers", "here")


def _identity(s: ParameterServer) -> dict[str, Any]:
    return {"server": s.number, "dtype": s.dtype.str,
            "slots": list(s.optimizer.slots), "n_tasks": s.topology.n_tasks,
            "n_first": s.n_first}  # fmt: skip


def state(s: ParameterServer) -> tuple[dict[str, Any], dict[str, Array]]:
    arrays: dict[str, Array] = {}
    waiting = []
    for index, kept in s.kept.items():
        arrays[f"parameter/{index}"] = kept.w
        arrays |= {f"slot/{name}/{index}": slot for name, slot in kept.slots.items()}
        for clock, found in kept.waiting.items():
            for g, (samples, array) in found.items():
                waiting.append([index, clock, g, samples])
                arrays[f"waiting/{index}/{clock}/{g}"] = array
        arrays |= {f"before/{index}/{clock}": array for clock, array in kept.before.items()}
    groups = sorted(s.groups.items())
    given, first = [], dict[tuple[int, int], int]()  # the first group that has an array of a piece
    for g, group in groups:
        of = {i: first.setdefault((i, id(array)), g) for i, array in group.given.items()}
        arrays |= {f"given/{g}/{i}": array for i, array in group.given.items() if of[i] == g}
        if of:
            given.append([g, sorted(of.items())])
    pulled = [(g, group.pulled) for g, group in groups if group.pulled is not None]
    facts = _identity(s) | {
        "format": FORMAT,
        "n_groups": s.topology.n_groups,
        "kept": [[i, k.n_updates, list(k.n_pushes), list(k.pulled)] for i, k in s.kept.items()],
        "waiting": waiting,
        "before": [[index, clock] for index, kept in s.kept.items() for clock in kept.before],
        "final": sorted(s.final),
        "staleness": sorted(s.staleness.items()),
        "fences": [[g, group.fence] for g, group in groups if group.fence],
        "lives": [[g, group.life] for g, group in groups if group.life >= 0],
        "verdicts": [[g, *said] for g, group in groups for said in group.verdicts.items()],
        "clocks": [[g, *group.clock] for g, group in groups if group.clock is not None],
        "batches": [[g, *said] for g, group in groups for said in group.batches.items()],
        "given": given,
        "pulls": [_request(g, wanted) for g, wanted in s.pulls.items()],
        "pulled": [_request(g, wanted) for g, wanted in pulled],
    }
    facts |= {name: getattr(s, name) for name in PLAIN}
    for fact, name in FLAGS.items():
        facts[fact] = [g for g, group in groups if getattr(group, name)]
    for name in SETS:
        facts[name] = [[g, sorted(some)] for g, group in groups if (some := getattr(group, name))]
    return facts, arrays


def _request(group: int, wanted: PullParameters) -> list[Any]:
    return [group, wanted.clock, wanted.final, wanted.turn]


def recover(s: ParameterServer, journal: Journal) -> int:
    """Give a new server what its journal has, and warn where the end of that is missing. Returns
    how many messages it has handled again. Raises JournalError, and as ``restore``.
    """
    saved, since = journal.recover()
    if saved is not None:
        restore(s, saved.facts, saved.arrays)
    n_replayed = 0
    for message in since:
        n_replayed += 1
        block = message.arrays[0] if message.arrays else None
        s.on(message.src, message.meta, block, message.attempt)
    if journal.lost:
        logger.warning("%s; server %d goes on from %s", journal.lost, s.number, s.clocks_in_words())
    return n_replayed


def restore(s: ParameterServer, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Give a server the ``state`` of one with the same pieces. Raises ProtocolError if it is of
    another server, or incomplete.
    """
    if (form := facts.get("format")) not in range(OLDEST, FORMAT + 1):
        raise ProtocolError(
            f"server {s.number}: a state with format {form!r}, expected {OLDEST} to {FORMAT}; "
            f"resume it with the horn that wrote it, or begin in another folder"
        )
    for what, value in _identity(s).items():
        if facts.get(what) != value:
            raise ProtocolError(
                f"server {s.number}: a state with {what} {facts.get(what)!r}, expected "
                f"{value!r}; it is of another job"
            )
    try:
        _restore(s, facts, {name: np.array(array) for name, array in arrays.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"server {s.number}: its state lacks {error}") from error


def _restore(s: ParameterServer, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    facts = {"measuring": (), **facts}
    given = facts["given"]
    if facts["format"] < 4:
        given = [[g, [(index, g) for index in some]] for g, some in given]
    s.grow(facts["n_groups"])
    s.kept = {}
    mine = {piece.index: piece for piece in s.mine}
    for index, n_updates, n_pushes, pulled in facts["kept"]:
        slots = {name: arrays[f"slot/{name}/{index}"] for name in s.optimizer.slots}
        piece, w = mine[index], arrays[f"parameter/{index}"]
        if w.shape != (len(piece),) or w.dtype != s.dtype:
            raise ValueError(f"{s.dtype} ({len(piece)},) for piece {index}, but has {w.shape}")
        s.kept[index] = ServerPiece(piece, w, slots, n_updates, list(n_pushes), list(pulled))
    for index, clock, group, samples in facts["waiting"]:
        array = arrays[f"waiting/{index}/{clock}/{group}"]
        s.kept[index].waiting.setdefault(clock, {})[group] = (samples, array)
    for index, clock in facts["before"]:
        s.kept[index].before[clock] = arrays[f"before/{index}/{clock}"]
    for name in PLAIN:
        setattr(s, name, facts[name])
    s.final, s.staleness = set(facts["final"]), Counter(dict(facts["staleness"]))
    s.groups = {number: GroupState() for number in range(s.topology.n_groups)}
    for fact, name in FLAGS.items():
        for g in facts[fact]:
            setattr(s.group(g), name, True)
    for name in SETS:
        for g, some in facts[name]:
            setattr(s.group(g), name, set(some))
    for g, attempt in facts["fences"]:
        s.group(g).fence = attempt
    for g, attempt in facts["lives"]:
        s.group(g).life = attempt
    for g, epoch, stop in facts["verdicts"]:
        s.group(g).verdicts[epoch] = stop
    for g, clock, is_new, batches in facts["clocks"]:
        s.group(g).clock = clock, is_new, batches
    for g, clock, n in facts["batches"]:
        s.group(g).batches[clock] = n
    for g, some in given:
        s.group(g).given = {index: arrays[f"given/{first}/{index}"] for index, first in some}
    s.pulls = {g: _pull(*wanted) for g, *wanted in facts["pulls"]}
    for g, *wanted in facts["pulled"]:
        s.group(g).pulled = _pull(*wanted)


def _pull(clock: int, final: bool, turn: int) -> PullParameters:
    return PullParameters(clock=clock, final=final, turn=turn)
