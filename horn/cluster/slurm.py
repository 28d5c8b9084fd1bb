"""The place of this process in an allocation of Slurm, by its environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping


def slurm(environment: Mapping[str, str]) -> tuple[int, int, str] | None:
    """This node's number, the number of nodes, and the first one's name; None outside of Slurm."""
    if "SLURM_PROCID" not in environment:
        return None
    names = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    count = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "1")
    return int(environment["SLURM_PROCID"]), int(count), first_node(names)


def first_node(names: str) -> str:
    """The first name of a list of nodes: node[03-05,9]-ib0,other -> node03-ib0"""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])*", names)
    name = "" if first is None else first[0]
    return re.sub(r"\[([^,\-\]]*)[^\]]*\]", r"\1", name) or "localhost"
