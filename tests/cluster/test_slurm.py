"""The place in an allocation of Slurm."""

from __future__ import annotations

from horn.cluster.slurm import first_node, slurm


def test_the_first_node_of_an_allocation():
    assert first_node("node[03-05,9],other") == "node03"
    assert first_node("gpu7") == "gpu7"
    assert first_node("tux[1-3]-ib0") == "tux1-ib0"
    assert first_node("tux[1-3]-ib0,other") == "tux1-ib0" == first_node("tux1-ib0,tux[2,3]")
    assert first_node("rack[0-1]n[2-3],a[1]") == "rack0n2"
    assert first_node("r[07,9]n[12]") == "r07n12"
    assert slurm({}) is None
    found = slurm({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-4]"})
    assert found == (1, 4, "n1")
