"""A cluster from Python: ``horn.Cluster(zk).submit(job)`` gives a handle to wait for, to look at,
to cancel; in asyncio it is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from horn import backends, defaults, quantities, strategies
from horn import settings as settings_
from horn.cluster import fetching, packing, remote_files
from horn.cluster.client import ClusterClient
from horn.cluster.job_names import plain_name, user
from horn.cluster.job_status import JobStatus
from horn.cluster.package import MAX_BYTES
from horn.cluster.reconnecting import LOOK_S, ReconnectingClient
from horn.cluster.submission import Submission
from horn.cluster.submitting import submit
from horn.cluster.versions import versions
from horn.coordination.jobs import JobState
from horn.errors import (
    ClusterError,
    Conflict,
    Diverged,
    JobError,
    JobFailed,
    NotFound,
    Stopped,
    Timeout,
    check_whole,
)
from horn.mistakes import teaches
from horn.process import job_files
from horn.security.keys import Key
from horn.sources import running
from horn.summary import memory_bytes
from horn.training.run_settings import RunSettings

if TYPE_CHECKING:
    from horn.cluster.packing import PackedJob
    from horn.job import Job
    from horn.model import Model
    from horn.run_result import Run
    from horn.strategies import Strategy
    from horn.training.history import History

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Cluster:
    """A client of a cluster; a context, or ``close`` it.

    zk : its ZooKeeper, as host:port[,host:port]; HORN_ZK by default. key : the file of its key;
    HORN_KEY by default. May be used by several threads.

    Raises
    ------
    Unreachable, AccessDenied : at the first use.
    """

    def __init__(self, zk: str | None = None, key: str | os.PathLike[str] | None = None) -> None:
        if running.get():  # else a worker would submit the job that it runs
            raise JobError(
                "horn.Cluster was opened in a statement that is run again, since a neuron or "
                "callback needs what it defines; define that in a statement of its own, and "
                "submit in another"
            )
        self.zk = zk or os.environ.get("HORN_ZK", "")
        if not isinstance(self.zk, str):
            raise JobError(f'zk is a text, as in horn.Cluster("host:port"); got {zk!r}')
        if not self.zk:
            raise JobError(
                'no cluster is named: write horn.Cluster("host:port"), or set HORN_ZK. A cluster '
                "on this machine alone is started with  horn up"
            )
        own = Key.from_environment() if key is None else Key.from_file(_path("key", key))
        self.client = ReconnectingClient(self.zk, own)

    @teaches
    def submit(
        self,
        job: Job | str | os.PathLike[str],
        *,
        groups: int = 1,
        tasks: int = 1,
        servers: int | None = None,
        strategy: str | Strategy = defaults.STRATEGY,
        barrier: str = defaults.BARRIER,
        transport: str = defaults.TRANSPORT,
        backend: str = defaults.BACKEND,
        pins: Mapping[str, str] | None = None,
        seed: int | None = None,
        threads: int | None = None,
        timeout: float | None = None,
        superstep_timeout: float = defaults.SUPERSTEP_TIMEOUT_S,
        start_timeout: float = defaults.START_TIMEOUT_S,
        checkpoint_every: int | None = None,
        checkpoint_seconds: float | None = None,
        max_restarts: int = defaults.MAX_RESTARTS,
        trace: bool = False,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        working_dir: str | os.PathLike[str] | None = None,
    ) -> SubmittedJob:
        """Submit a job, which goes on whatever becomes of this process.

        job : a ``horn.Job`` (its neurons and callbacks go as source, its data with it, 64 MiB in
        all), or what ``horn submit`` takes: file.py, file.py:name. Of these ``arguments`` are its
        sys.argv, ``settings`` as of --set, and ``working_dir`` is what is sent. name : the first
        part of the job's id. trace : keep what every task did when. The rest is as for
        ``horn.train``.

        Raises
        ------
        JobError : it cannot travel, or be run there. ClusterError : no worker takes it.
        """
        _check_words(settings, arguments, name)
        pairs = [(str(key), str(value)) for key, value in (settings or {}).items()]
        kind = strategy
        if isinstance(kind, str):
            kind, _ = settings_.strategy(kind, [f"{key}={value}" for key, value in pairs])
        asked = RunSettings(
            groups=groups, tasks=tasks, servers=servers, strategy=kind, backend=backend, seed=seed,
            threads=threads, timeout=timeout, barrier=barrier, transport=transport, pins=pins,
            superstep_timeout=superstep_timeout, start_timeout=start_timeout,
            checkpoint_every=checkpoint_every, checkpoint_seconds=checkpoint_seconds,
            max_restarts=max_restarts,
        )  # fmt: skip
        backends.load(backend)
        if seed is not None:
            check_whole("seed", seed, 0, bits=64)
        if not isinstance(strategy, str):
            pairs = [*(dict(_settings(kind)) | dict(pairs)).items()]
        package, stem = _packed(job, kind, working_dir)
        wanted = Submission(
            job="new",
            name=name or stem,
            target=package.target,
            package=package.digest,
            arguments=tuple(str(argument) for argument in arguments),
            groups=groups,
            tasks=tasks,
            servers=asked.n_servers,
            strategy=strategy if isinstance(strategy, str) else _named(kind),
            settings=tuple(pairs),
            seed=seed,
            checkpoint_every=checkpoint_every,
            checkpoint_s=checkpoint_seconds,
            max_restarts=max_restarts,
            timeout_s=asked.timeout,
            options=_options(asked, trace),
            user=user(),
        )
        return SubmittedJob(self, self.client.once(lambda client: submit(client, wanted, package)))

    def job(self, word: str = "@last") -> SubmittedJob:
        """The handle of a job: by its id, the beginning of one, or your last. Raises NotFound."""
        if not isinstance(word, str):
            raise JobError(
                f'job is named by its id, as in cluster.job("digits-7f3a"); got {word!r}'
            )
        return SubmittedJob(self, self.retry(lambda client: client.find(word)))

    def jobs(self) -> list[SubmittedJob]:
        """The handles of all jobs, newest first."""
        found = self.retry(lambda client: client.reader.listed())
        return [SubmittedJob(self, listed.job) for listed in found]

    def retry(self, action: Callable[[ClusterClient], T]) -> T:
        """Run an action that may be repeated; in a new session when one is lost."""
        return self.client.retry(action)

    def close(self) -> None:
        """End the session with the cluster; jobs go on."""
        self.client.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cluster {self.zk}>"


class SubmittedJob:
    """A job of a cluster. ``await`` gives its result; an await that is cancelled leaves it running.

    id : as ``horn status`` and ``horn logs`` have it.
    """

    def __init__(self, cluster: Cluster, id: str) -> None:
        self.cluster, self.id = cluster, id

    @property
    def state(self) -> str:
        """The state: PENDING RUNNING RESTARTING STOPPING SUCCEEDED FAILED STOPPED."""
        return self.cluster.retry(lambda client: client.jobs.state(self.id)).value

    @property
    def status(self) -> JobStatus:
        """The status of the job, with all that ZooKeeper has of it."""
        return self.cluster.retry(lambda client: client.status(self.id))

    @property
    def is_over(self) -> bool:
        return self.cluster.retry(lambda client: client.jobs.state(self.id)).is_over

    @property
    def progress(self) -> Mapping[str, Any]:
        """The progress: epoch, iteration, n_epochs, n_iterations, loss and other known figures."""
        return self.status.reached

    @property
    def history(self) -> History:
        """The history of the epochs so far."""
        from horn.training.history import History

        return History(self.cluster.retry(lambda client: remote_files.history(client, self.id)))

    def wait(self, timeout: float | None = None) -> str:
        """Wait until the job is over; its state. timeout : seconds. That no worker is up for it is
        logged as a warning. Raises horn's Timeout.
        """
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
            raise JobError(f"timeout is a number of seconds, as 300 for 5 minutes; got {timeout!r}")
        ends = None if timeout is None else time.monotonic() + timeout
        look = _Look(self)
        while not look.is_over():
            if ends is not None and time.monotonic() > ends:
                status = self.status
                why = f": it {status.reason}" if status.reason else ""
                raise Timeout(f"job {self.id} is {status.state.value} after {timeout:g} s{why}")
            time.sleep(LOOK_S)
        return self.state

    def result(self, timeout: float | None = None) -> Run:
        """Wait for the job, and return its run, as ``horn.train`` returns one.

        Raises
        ------
        JobFailed, Diverged : what its workers say, with the model from before where they keep one.
        Stopped : somebody stopped it. Timeout : it is not over yet.
        """
        self.wait(timeout)
        return self._result()

    def _result(self) -> Run:
        from horn.run_result import Run
        from horn.training.history import History

        status = self.status
        result, state = status.result, status.state
        if state is JobState.STOPPED:
            at = int(result.get("checkpoint", -1))
            saved = f"a checkpoint of it; horn resume {self.id} goes on from there"
            last = int(status.reached.get("iteration") or 0)
            error = Stopped(at, saved) if at > 0 else Stopped(last, "")
            if "cause" in result:  # where its model is kept
                error.add_note(str(result["cause"]))
            raise error
        if state is not JobState.SUCCEEDED:
            cause = str(result.get("cause", "the reason is not known"))
            kind = Diverged if result.get("code") == 7 else JobFailed
            failed = kind(f"job {self.id} {state.value}: {cause}\nFull log: horn logs {self.id}")
            if "kept" in result:
                failed.iteration = int(result["kept"])
                with contextlib.suppress(ClusterError, NotFound):  # its worker is down
                    failed.model = self._model()
            raise failed
        model = self._model()
        return Run(
            model,
            History(result.get("history") or []),
            state.value,
            float(result.get("seconds") or 0.0),
            int(result.get("epochs") or 0),
            int(result.get("iterations") or 0),
            bool(result.get("stopped_early")),
            result.get("best_epoch"),
            (result.get("metrics") or {}).get("test"),
            dict(result.get("metrics") or {}),
            list(result.get("counters") or []),
            {int(late): n for late, n in (result.get("staleness") or {}).items()},
        )

    def _model(self) -> Model:
        from horn.model import Model

        with tempfile.TemporaryDirectory(prefix="horn-result-") as folder:
            path = Path(folder) / "model.horn"
            self.fetch(path)
            return Model.load(path)

    def fetch(self, path: str | os.PathLike[str]) -> None:
        """Write the model of the job, once it has SUCCEEDED, to a file."""
        file = Path(_path("path", path))
        self.cluster.retry(lambda client: remote_files.fetch_model(client, self.id, file))

    def fetch_all(self, folder: str | os.PathLike[str]) -> Path:
        """Write the files of the job, in any state, into a folder, made if missing: model.horn,
        history.csv, result.json, trace.json, logs, and in files those that callbacks wrote under
        relative paths. What does not come is warned of. Raises JobError: a file cannot be written
        here. NotFound: it has SUCCEEDED, but no worker that is up has its model; all else is there.
        """
        place, notes = Path(_path("folder", folder)), list[str]()
        try:
            self.cluster.retry(
                lambda client: fetching.fetch_all(client, self.id, place, notes.append)
            )
        finally:
            for note in dict.fromkeys(notes):  # once, however many sessions it took
                warnings.warn(note, stacklevel=2)
        return place

    def cancel(self, now: bool = False) -> bool:
        """Stop the job at the next iteration, with a checkpoint, or ``now`` without; False if it is
        over already. ``horn resume`` goes on with it.
        """
        try:
            self.cluster.retry(lambda client: client.stop(self.id, now))
        except Conflict:
            return False
        return True

    def logs(self) -> dict[str, str]:
        """The output of the job's processes, by their names, and of an attempt before, on another
        host, by name.host. Workers of it that are down are warned of.
        """

        def read(client: ClusterClient) -> tuple[dict[str, str], str]:
            files, found = client.files(self.id), {}
            for log in remote_files.logs(client, self.id, files):
                content = remote_files.read_all(client, self.id, log.host, log.name)
                found[log.title] = content.decode(errors="replace")
            return found, client.down(self.id, files)

        found, down = self.cluster.retry(read)
        if down:
            warnings.warn(f"{down}: logs that are only there are left out", stacklevel=2)
        return found

    def __await__(self) -> Generator[Any, None, Run]:
        return self._awaited().__await__()

    async def _awaited(self) -> Run:
        look = _Look(self)
        while not await asyncio.to_thread(look.is_over):
            await asyncio.sleep(LOOK_S)
        return await asyncio.to_thread(self._result)

    def __repr__(self) -> str:
        return f"<SubmittedJob {self.id}>"


class _Look:
    """Looks whether a job is over, and warns that it stands still: once each time it begins to."""

    def __init__(self, job: SubmittedJob) -> None:
        self.job, self.told = job, ""

    def is_over(self) -> bool:
        def look(client: ClusterClient) -> tuple[bool, str]:
            is_over = client.jobs.state(self.job.id).is_over
            return is_over, "" if is_over else client.standstill()

        before = self.told
        is_over, self.told = self.job.cluster.retry(look)
        if self.told and not before:
            logger.warning("job %s %s", self.job.id, self.told)
        return is_over


def _check_words(settings: Any, arguments: Any, name: Any) -> None:
    """Check what ``submit`` takes beside the keywords of ``horn.train``. Raises JobError."""
    if not isinstance(settings, Mapping | None):
        raise JobError(f"submit: settings are a dict, as {{'epochs': 5}}; got {settings!r}")
    if isinstance(arguments, str):
        raise JobError(f"submit: arguments are a list, as {arguments.split()}; got one text")
    if not isinstance(name, str | None):
        raise JobError(f"submit: name is a text, the first part of the job's id; got {name!r}")
    if name and not plain_name(name):
        raise JobError(
            f"submit: name is {name!r}, but a job's id has letters and digits of ASCII, _ . -; "
            f"give it a name with one of them, or none: then it is that of the job or its file"
        )


def _options(asked: RunSettings, trace: bool) -> dict[str, Any]:
    """The settings of a run that have no field of their own in a submission."""
    found: dict[str, Any] = {k: str(v) for k, v in versions().items()}
    found |= {
        "backend": asked.backend, "barrier": asked.barrier, "transport": asked.transport,
        "superstep_timeout_s": asked.superstep_timeout, "start_timeout_s": asked.start_timeout,
        **{f"pin.{layer}": where for layer, where in (asked.pins or {}).items()},
    }  # fmt: skip
    has = {"threads": asked.threads, "trace": trace, "guests": asked.has_guests}
    return found | {key: value for key, value in has.items() if value}


def _packed(
    job: Any, strategy: Strategy, working_dir: str | os.PathLike[str] | None
) -> tuple[PackedJob, str]:
    """The package of a job, and the stem of its name."""
    from horn.job import Job

    if working_dir is not None:
        working_dir = _path("working_dir", working_dir)
    if isinstance(job, Job):
        _check_size(job, sum(array.nbytes for array in _arrays(job).values()))
        with tempfile.TemporaryDirectory(prefix="horn-job-") as folder:
            job_files.save(job, Path(folder), strategy)
            _check_size(job, sum(file.stat().st_size for file in Path(folder).iterdir()))
            return packing.pack(job_files.NAME, folder), job.name or "job"
    if not isinstance(job, (str, os.PathLike)):
        raise JobError(f"submit takes a horn.Job, or the path of a file that has one; got {job!r}")
    package = packing.pack(os.fspath(job), working_dir)
    return package, packing.stem(package.target)


def _arrays(job: Job) -> dict[str, Any]:
    """The arrays of a job's data, by words for them."""
    given = {"data": job.data, "validation": job.validation, "test": job.test}
    return {
        f"{name} of {what}": array
        for what, data in given.items()
        for name in ("x", "y", "weight", "lengths")
        if data is not None and (array := getattr(data, name, None)) is not None
    }


def _check_size(job: Job, n_bytes: int) -> None:
    """Check that a job of ``n_bytes``, which has no folder to leave files out of, is sent. Raises
    JobError.
    """
    if n_bytes <= MAX_BYTES:
        return
    found = {f"{name} ({array.dtype})": array.nbytes for name, array in _arrays(job).items()}
    found["the weights"] = memory_bytes(job)["parameters"]
    listed = ", ".join(f"{name} {quantities.size(n)}" for name, n in found.items())
    raise JobError(
        f"this job is {quantities.size(n_bytes)}, and at most {MAX_BYTES >> 20} MiB are sent: "
        f"{listed}. Give pictures as bytes: uint8, each worth 1/255, is a quarter of float32. Or "
        f"submit a file, file.py, whose job() reads what every worker has, as "
        f'horn.data.load("/data/x.npy,/data/y.npy")'
    )


def _path(what: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise JobError(f"{what} is a path, as a text; got {value!r}")
    return os.fspath(value)


def _named(strategy: Strategy) -> str:
    """The name by which a worker finds a strategy."""
    kind = type(strategy)
    if kind.name in strategies.names() and strategies.load(kind.name) is kind:
        return kind.name
    raise JobError(
        f"{kind.__name__} is a strategy of yours, which workers find by its file: submit a file, "
        f"with strategy='module:{kind.__name__}'"
    )


def _settings(strategy: Strategy) -> list[tuple[str, str]]:
    """The settings of a strategy that are not its defaults, in the form of --set."""
    found = []
    for field in dataclasses.fields(strategy):
        value = getattr(strategy, field.name)
        if value == field.default:
            continue
        if not isinstance(value, (bool, int, float, str)):
            raise JobError(
                f"strategy {strategy.name}: {field.name} is {value!r}; a cluster is told numbers "
                f"and texts"
            )
        found.append((f"strategy.{field.name}", str(value)))
    return found
