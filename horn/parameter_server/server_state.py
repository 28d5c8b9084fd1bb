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
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.updates import ServerPiece
from horn.wire.messages import PullParameters

logger = logging.getLogger(__name__)

# Raised with another fact. States of OLDEST lack ``measuring``, and are read.
FORMAT, OLDEST = 3, 2
# Attributes of a server; each is a fact of the same name.
PLAIN = ("n_pushes", "n_changes", "n_repeated", "stop_after")
SETS = ("left", "final", "fresh", "begun")
NUMBERS = ("staleness", "fences", "lives")  # by number
SETS_BY_GROUP = ("leavers", "here")
REQUESTS = ("pulls", "pulled")


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
            for group, (samples, array) in found.items():
                waiting.append([index, clock, group, samples])
                arrays[f"waiting/{index}/{clock}/{group}"] = array
        arrays |= {f"before/{index}/{clock}": array for clock, array in kept.before.items()}
    for group, shared in s.given.items():
        arrays |= {f"given/{group}/{index}": array for index, array in shared.items()}
    facts = _identity(s) | {
        "format": FORMAT,
        "n_groups": s.topology.n_groups,
        "kept": [[i, k.n_updates, list(k.n_pushes), list(k.pulled)] for i, k in s.kept.items()],
        "waiting": waiting,
        "before": [[index, clock] for index, kept in s.kept.items() for clock in kept.before],
        "verdicts": [[g, epoch, stop] for (g, epoch), stop in s.verdicts.items()],
        "clocks": [[g, *where] for g, where in s.clocks.items()],
        "batches": [[g, *said] for g, of_group in s.batches.items() for said in of_group.items()],
        "given": [[g, sorted(shared)] for g, shared in s.given.items()],
        "measuring": sorted(s.measuring),
    }
    facts |= {name: getattr(s, name) for name in PLAIN}
    facts |= {name: sorted(getattr(s, name)) for name in SETS}
    facts |= {name: sorted(getattr(s, name).items()) for name in NUMBERS}
    for name in SETS_BY_GROUP:
        facts[name] = [[group, sorted(some)] for group, some in getattr(s, name).items()]
    for name in REQUESTS:
        said = getattr(s, name).items()
        facts[name] = [[group, w.clock, w.final, w.turn] for group, w in said]
    return facts, arrays


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
    s.verdicts = {(g, epoch): stop for g, epoch, stop in facts["verdicts"]}
    s.clocks = {g: (clock, is_new, batches) for g, clock, is_new, batches in facts["clocks"]}
    s.batches = {}
    for group, clock, n in facts["batches"]:
        s.batches.setdefault(group, {})[clock] = n
    s.given = {g: {i: arrays[f"given/{g}/{i}"] for i in some} for g, some in facts["given"]}
    s.measuring = set(facts.get("measuring", ()))
    for name in PLAIN:
        setattr(s, name, facts[name])
    for name in SETS:
        setattr(s, name, set(facts[name]))
    for name in NUMBERS:
        setattr(s, name, dict(facts[name]))
    s.staleness = Counter(s.staleness)
    for name in SETS_BY_GROUP:
        setattr(s, name, {group: set(some) for group, some in facts[name]})
    for name in REQUESTS:
        pulls = {g: PullParameters(clock=c, final=f, turn=n) for g, c, f, n in facts[name]}
        setattr(s, name, pulls)
