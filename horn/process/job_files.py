"""A job as the files of a folder, from which another machine makes the same job: a payload
(``job_payload.py``) in files instead of shared memory.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from horn.data.classes import all_from_json, all_to_json
from horn.errors import DataError
from horn.job import Job
from horn.partition.placement import Placement
from horn.process.job_payload import draft, open_payload, pack
from horn.process.job_spec import RunSpec
from horn.strategies import Strategy

NAME, FACTS = "job.py", "job.json"
TARGET = '''"""Written by horn.Cluster.submit."""

from pathlib import Path

from horn.process.job_files import load


def job():
    return load(Path(__file__).parent)
'''
# A payload needs a RunSpec, but how the job runs is decided elsewhere.
_NO_RUN = RunSpec(
    n_tasks=1, n_groups=1, hosts="", job="", url="", backend="kernels", threads=1,
    barrier="message", begun=0.0, interval_s=1.0, superstep_timeout_s=1.0, start_timeout_s=1.0,
    max_trace_events=0,
)  # fmt: skip


def save(job: Job, folder: Path, strategy: Strategy | None = None) -> None:
    """Write a job into an empty folder, with job.py. Raises JobError: a part cannot travel.
    DataError: a file of its data was cut short meanwhile.
    """
    memory = pack(
        draft(job, strategy, with_callbacks=True), job, _NO_RUN, Placement.default(job.network)
    )
    try:
        for number, descriptor in enumerate(memory.descriptors):
            with open(folder / f"{number}.bin", "wb") as file:
                size, at = os.fstat(descriptor).st_size, 0
                while at < size:
                    n = os.sendfile(file.fileno(), descriptor, at, size - at)
                    if not n:  # a file that data are mapped from
                        raise DataError(
                            f"{os.readlink(f'/proc/self/fd/{descriptor}')}: was cut short to "
                            f"{at:,} bytes, expected {size:,}; write it again under another name, "
                            "and rename that when it is whole"
                        )
                    at += n
        n_files = len(memory.descriptors)
    finally:
        memory.close()
    classes = job.data.all_classes
    given = {"data": job.data, "validation": job.validation, "test": job.test}
    names = {what: list(data.feature_names) for what, data in given.items() if data is not None}
    facts = {"files": n_files, "check": job.check, "feature_names": names,
             "classes": None if classes is None else all_to_json(classes)}  # fmt: skip
    (folder / FACTS).write_text(json.dumps(facts), "utf-8")
    (folder / NAME).write_text(TARGET, "utf-8")


def load(folder: Path) -> Job:
    """Make the job of a folder. Runs its sources."""
    facts = json.loads((folder / FACTS).read_text("utf-8"))
    files = [folder / f"{number}.bin" for number in range(facts["files"])]
    opened = open_payload([os.open(file, os.O_RDONLY | os.O_CLOEXEC) for file in files])
    job = opened.job
    classes = None if facts["classes"] is None else all_from_json(facts["classes"])
    data = {
        what: given if given is None or classes is None else given.called(classes)
        for what, given in
        (("data", job.data), ("validation", job.validation), ("test", job.test))
    }  # fmt: skip
    for what, names in facts.get("feature_names", {}).items():
        data[what] = data[what].with_fields(feature_names=tuple(names))
    network = job.network.beginning_with(opened.parameters, opened.states)
    return job.with_settings(network=network, check=facts["check"], **data)
