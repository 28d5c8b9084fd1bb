"""The identity of a job: what must be the same to resume from a checkpoint.

The rule: a resumed run gives what this job would have given from its beginning. So all fields of
all objects of a job are described (training/describe_job.py), new ones without being named, but
for those in ``LEFT_OUT`` there. The user's code is compared as text without comments, docstrings
and layout, with all that it calls in the user's own files and the values that it reads; horn's own
by name; data by their ``digest``. A field that an earlier horn did not have had its default. How a
job is run (groups where the strategy allows it, tasks, backend, threads, transport) does not count,
but for what servers were told (training/journals.py).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from horn import summary
from horn.description import shapes
from horn.errors import CheckpointError
from horn.job import Job
from horn.training.describe_job import JobDescriber, default_of, is_left_out

logger = logging.getLogger(__name__)

_WITH_ITS_MODEL = "Job(model.network, ..., initial=model)"
MAX_SAID = 5  # differences that are named in one message
SHORT = 100  # letters of a value in a message
# What is said in short of a job, and the part of "job" that says it in full.
HEADLINES = {
    "layers": "network.layers",
    "shapes": "network.layers",
    "seed": "network.seed",
    "optimizer": "optimizer",
    "batch_size": "batch_size",
    "samples": "data",
    "dtype": "dtype",
    "strategy": "strategy",
}
NAMES = {
    "batch_size": "batch size",
    "samples": "number of samples",
    "servers": "number of servers",
    "tasks": "number of tasks",
}


def identity(job: Job, strategy: str, settings: Any = None) -> dict[str, Any]:
    """Describe a job in plain values, for a manifest. strategy : its part that must be the same, in
    words; settings : the strategy itself.
    """
    network = job.network
    describer = JobDescriber()
    described = describer.describe(job)
    described["strategy"] = describer.describe(settings)
    return {
        "layers": [
            {"name": layer.name, "size": layer.size, "neuron": layer.neuron.__name__,
             "activation": layer.activation_name}
            for layer in network.layers
        ],
        "shapes": {name: list(shape) for (_, name), shape in shapes(network).items()},
        "seed": network.seed,
        "optimizer": summary.in_words(job.optimizer),
        "batch_size": job.batch_size,
        "samples": len(job.data),
        "dtype": job.dtype,
        "strategy": strategy,
        "job": described,
        "sources": describer.sources(),
    }  # fmt: skip


def uncompared(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """The parts that cannot be compared, as nobody can read them, in words."""
    return sorted({*_unknown(mine["job"], ""), *_unknown(theirs["job"], "")})


def differences(
    theirs: Mapping[str, Any], mine: Mapping[str, Any], but: Collection[str] = ()
) -> list[str]:
    """The differences, a sentence each. Empty for the same job. but : parts that are left out; of
    data only what is in them, not their number.
    """
    rest = [*_compare(theirs["job"], mine["job"], ""), *_sources(theirs, mine)]
    rest = [each for each in rest if not any(_is_in(each[0], part) for part in but)]
    found, covered = [], []
    for key, part in HEADLINES.items():
        was, is_ = theirs[key], mine[key]
        if was == is_ or part in covered:
            continue
        is_said = any(_is_in(path, part) for path, _ in rest)
        if key not in ("strategy", "samples") and not is_said:
            continue  # the same in other words
        covered.append(part)
        if key == "layers":
            found.append(f"its layers are {_layers(was)}, here {_layers(is_)}")
        elif key == "shapes":
            name = next(n for n in sorted({*was, *is_}) if was.get(n) != is_.get(n))
            found.append(f"its {name} has shape {was.get(name)}, here {is_.get(name)}")
        else:
            found.append(f"its {NAMES.get(key, key)} is {was}, here {is_}")
    for key in sorted({*theirs, *mine} - {*HEADLINES, "job", "sources", "scales"}):
        if theirs.get(key) != mine.get(key):
            found.append(f"its {NAMES.get(key, key)} is {theirs.get(key)}, here {mine.get(key)}")
    found += [said for path, said in rest if not any(_is_in(path, part) for part in covered)]
    return found


def check_same(
    place: str,
    theirs: Mapping[str, Any],
    mine: Mapping[str, Any],
    is_changed: bool,
    changeable: Collection[str] | None = None,
) -> None:
    """Check that the job of a checkpoint at a place is this one. Raises CheckpointError with the
    differences; if ``is_changed`` only logs them, but for arrays of other shapes or synapses. Parts
    that cannot be compared are logged. changeable : of servers, the only parts for which
    ``is_changed`` counts; None : all.
    """
    try:
        found, unknown = differences(theirs, mine), uncompared(theirs, mine)
        fixed = [] if changeable is None else differences(theirs, mine, changeable)
        # A part of the old arrays would fit a smaller layer, but of unknown neurons.
        resized = [
            f"{name} was {tuple(was)}, is {tuple(now)}"
            for name, now in mine["shapes"].items()
            if (was := theirs["shapes"].get(name, now)) != now
        ]
        if theirs["dtype"] != mine["dtype"]:
            resized.append(f"all numbers were {theirs['dtype']}, are {mine['dtype']}")
        was = _synapses(theirs)
        rewired = [name for name, now in _synapses(mine).items() if was.get(name, now) != now]
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # nothing that horn wrote
        what = f"says of its job what this horn does not write ({type(error).__name__}: {error})"
        raise CheckpointError(place, f"{what[:300]}; use an older checkpoint") from error
    if fixed:
        said = in_words(fixed if is_changed else found)
        also = '; --changed (resume="changed") cannot help' if is_changed else ""
        what = f"is of another job: {said}. What its servers were told does not fit this one{also}"
        remedy = (
            "Resume with the job that wrote it (its epochs may be others), or begin in another "
        )
        remedy += "folder with the model that it ends with, as Job(initial=...)"
        raise CheckpointError(place, f"{what}. {remedy}")
    if found and not is_changed:
        remedy = 'or go on knowingly with --changed (in horn.train: resume="changed")'
        if resized:
            remedy = "or begin with what it learned: Job(initial=...)"
        elif rewired:
            remedy = f"or begin with what it learned: {_WITH_ITS_MODEL}"
        what = f"is of another job: {in_words(found)}. Resume with the job that wrote it, {remedy}"
        raise CheckpointError(place, what)
    if resized:
        what = f"has other arrays: {in_words(resized)}. Resume with those of before, or begin with"
        remedy = "Job(initial=...), where a layer of another size needs another name"
        raise CheckpointError(place, f"{what} {remedy}")
    if rewired:
        seed = theirs["seed"]
        by_seed = f" (it has horn.Network(seed={seed}))" if seed != mine["seed"] else ""
        what = f"has weights of other synapses than this job: {in_words(rewired)}"
        remedy = f"Resume with the connections of before{by_seed}, or begin with {_WITH_ITS_MODEL}"
        raise CheckpointError(place, f"{what}. {remedy}")
    if found:
        logger.warning("going on with a changed job: %s: %s", place, in_words(found))
    if unknown:
        logger.warning("%s: not compared with this job: %s", place, "; ".join(unknown))


def _synapses(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What says of which synapse each number of a weight array is, by the array's name. Weights
    that synapses share are of none of them.
    """
    found = {}
    for layer in identity["job"]["network"]["layers"].values():
        for link in layer["links"]:
            edges = link["edges"]
            if edges is not None and "indptr" in edges and edges["weight"] is None:
                found[link["weight"]] = edges["indptr"], edges["indices"]
    return found


def in_words(found: list[str]) -> str:
    """Differences, or the first of many, as a part of a sentence."""
    more = len(found) - MAX_SAID
    return "; ".join(found[:MAX_SAID]) + (f"; and {more} more" if more > 0 else "")


def _compare(was: Any, is_: Any, path: str) -> list[tuple[str, str]]:
    """The differences, as (path, sentence)."""
    if was == is_:
        return []
    both = isinstance(was, Mapping) and isinstance(is_, Mapping)
    if both and was.get("class") == is_.get("class") and was.get("code") == is_.get("code"):
        found = []
        for key in sorted({*was, *is_}):
            if not is_left_out(is_, key):
                below = f"{path}.{key}" if path else key
                old = was[key] if key in was else default_of(is_, key)
                found += _compare(old, is_.get(key), below)
        return found
    if isinstance(was, list) and isinstance(is_, list) and len(was) == len(is_):
        found = []
        for k, (old, new) in enumerate(zip(was, is_, strict=True)):
            found += _compare(old, new, f"{path}[{k}]")
        return found
    return [(path, f"its {_place(path)} is {_value(was)}, here {_value(is_)}")]


def _sources(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The differences of code; those of a module on one side only show where it is used."""
    found = []
    old, new = theirs["sources"], mine["sources"]
    for module in sorted({*old} & {*new}):
        was, is_ = old[module], new[module]
        for name in sorted({*was["texts"]} | {*is_["texts"]}):
            texts = [one["texts"].get(name, "") for one in (was, is_)]
            if texts[0] != texts[1]:
                first, second = _first_lines(*texts)
                found.append(f"its source of {name} ({module}) has {first}, here {second}")
        for name in sorted({*was["values"]} | {*is_["values"]}):
            values = [one["values"].get(name) for one in (was, is_)]
            if values[0] != values[1]:
                said = " is {}, here {}".format(*map(_value, values))
                found.append(f"its {name} ({module}){said}")
    if not found and old.keys() != new.keys():
        files = [", ".join(sorted(one)) or "no file" for one in (old, new)]
        found.append("its source is in {}, here in {}".format(*files))
    return [("sources", said) for said in found]


def _first_lines(was: str, is_: str) -> tuple[str, str]:
    old, new = was.splitlines(), is_.splitlines()
    n = next((k for k, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
    if n is None:
        n = min(len(old), len(new))
    first, second = ((lines[n].strip() if n < len(lines) else "no more") for lines in (old, new))
    return _cut(f"{first!r}"), _cut(f"{second!r}")


def _is_in(path: str, part: str) -> bool:
    return path == part or path.startswith((f"{part}.", f"{part}["))


def _place(path: str) -> str:
    return path.removeprefix("network.layers.").removeprefix("network.")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        name = value.get("class") or value.get("code")
        if isinstance(name, Mapping):
            name = name.get("code")
        name = str(name or "").rpartition(":")[2]
        rest = {k: v for k, v in value.items() if k not in ("class", "code", "set", "free")}
        inside = ", ".join(f"{k}={_value(v)}" for k, v in rest.items())
        return _cut(f"{name}({inside})" if inside or "class" in value else name)
    if value is None:
        return "None"
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def _layers(found: Any) -> str:
    """The layers in words: 784 InputNeuron, 500 Standard relu, ..."""
    return ", ".join(f"{x['size']} {x['neuron']} {x['activation']}" for x in found)


def _unknown(found: Any, path: str) -> list[str]:
    if isinstance(found, Mapping):
        if found.get("unknown") is True:
            return [_place(path)]
        return [x for k, v in found.items() for x in _unknown(v, f"{path}.{k}" if path else k)]
    if isinstance(found, list):
        return [x for k, v in enumerate(found) for x in _unknown(v, f"{path}[{k}]")]
    return []
