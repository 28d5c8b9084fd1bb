"""--set key=value: one field of the job, of its optimizer or early stopping, or of a layer.

Keys are the fields of the frozen descriptions, joined by dots; values are typed by the field and
checked by the description itself. All settings are applied at once, and a key is given once.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from horn.errors import JobError, set_once

if TYPE_CHECKING:
    from horn.job import Job
    from horn.strategies import Strategy

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
NONE = ("none", "null")
JOB_KEYS = (
    "batch_size", "epochs", "iterations", "validation", "target", "dtype", "check", "keep_best",
    "name", "initial", "stateful", "truncate", "buckets", "recompute",
)  # fmt: skip
HINTS: dict[str, Any] = {"validation": float, "initial": str | None}  # narrowed for commands
OPTIONS = ("seed", "strategy", "groups", "tasks", "servers", "backend", "threads", "timeout")
LAYER_KEYS = {"size": int, "keep": float, "per": str}


def apply(job: Job, settings: Iterable[str]) -> Job:
    """The job with these settings. Raises JobError for an unknown key or a wrong type."""
    pairs = by_key(settings)
    if not pairs:
        return job
    changes: dict[str, Any] = {}
    layers: dict[str, dict[str, Any]] = {}
    optimizer = job.optimizer
    if "optimizer" in pairs:
        from horn.optimizers import named

        optimizer = named(pairs.pop("optimizer"))()
    keys = valid_keys(dataclasses.replace(job, optimizer=optimizer))
    nested: dict[str, dict[str, str]] = {"optimizer": {}, "early_stopping": {}}
    for key, text in pairs.items():
        if key not in keys and key in get_type_hints(type(job)):
            raise JobError(
                f"--set {key}: a field of the job that is not set by --set; write it in the file "
                f"of the job. Those that are: {', '.join(keys)}"
            )
        if key not in keys:
            raise _unknown(key, keys)
        head, _, rest = key.partition(".")
        if not rest:
            hint = HINTS.get(key) or get_type_hints(type(job))[key]
            changes[key] = _typed(key, text, hint)
        elif head in nested:
            nested[head][rest] = text
        else:
            kind = LAYER_KEYS[rest]
            layers.setdefault(head, {})[rest] = _typed(key, text, kind)
    if nested["optimizer"]:  # else the given one stays: an unchanged job is recognized by it
        optimizer = _changed(optimizer, nested["optimizer"], "optimizer")
    changes["optimizer"] = optimizer
    if nested["early_stopping"]:
        from horn.job import EarlyStopping

        stopping = job.early_stopping or EarlyStopping()
        changes["early_stopping"] = _changed(stopping, nested["early_stopping"], "early_stopping")
    if layers:
        changes["network"] = job.network.rebuilt(changes=layers)
    if "epochs" in changes and "iterations" not in changes:
        changes["iterations"] = None
    if "iterations" in changes and "epochs" not in changes:
        changes["epochs"] = None
    return job.with_settings(**changes)


def strategy(name: str, settings: Iterable[str]) -> tuple[Strategy, tuple[str, ...]]:
    """The strategy of this name with its settings (strategy.key=value), and the other settings."""
    from horn.strategies import load

    kind = load(name)
    settings = tuple(settings)
    others = tuple(text for text in settings if not text.startswith("strategy."))
    mine = by_key(text for text in settings if text.startswith("strategy."))
    own = {key.partition(".")[2]: value for key, value in mine.items()}
    made = kind()
    known = [field.name for field in dataclasses.fields(made)]
    if own and not known:
        raise JobError(
            f"--set strategy.{next(iter(own))}: unknown key; strategy {made.name} has no settings: "
            f"leave it out, or name the strategy that has it, as in --strategy downpour"
        )
    for key in own:
        if key not in known:
            raise _unknown(f"strategy.{key}", [f"strategy.{name}" for name in known])
    return _changed(made, own, "strategy"), others


def valid_keys(job: Job) -> list[str]:
    """The keys that --set accepts for this job."""
    from horn.job import EarlyStopping

    keys = [*JOB_KEYS, "optimizer", *_keys_of(job.optimizer, "optimizer")]
    keys += _keys_of(job.early_stopping or EarlyStopping(), "early_stopping")
    for layer in job.network.layers:
        fields = ("size", "keep", "per") if layer.kind == "input" else ("size",)
        keys += [f"{layer.name}.{name}" for name in fields]
    return keys


def key_like(option: str) -> str:
    """The key of what somebody took for an option of a command, such as --batch-size; or ""."""
    from horn.optimizers import of_this_file

    keys = {name: name for name in (*JOB_KEYS, "optimizer")}
    for kind in of_this_file().values():
        keys |= {field.name: f"optimizer.{field.name}" for field in dataclasses.fields(kind)}
    keys |= {"lr": keys["learning_rate"], "batch": "batch_size"}
    close = difflib.get_close_matches(option.lstrip("-").replace("-", "_"), keys, 1, 0.8)
    return keys[close[0]] if close else ""


def _keys_of(thing: Any, prefix: str) -> list[str]:
    keys = []
    for field in dataclasses.fields(thing):
        keys.append(f"{prefix}.{field.name}")
        value = getattr(thing, field.name)
        if dataclasses.is_dataclass(value):
            keys += _keys_of(value, f"{prefix}.{field.name}")
    return keys


def by_key(settings: Iterable[str]) -> dict[str, str]:
    """Texts key=value, by key. Raises JobError: a text is another, or a key is given twice."""
    found: dict[str, str] = {}
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise JobError(f"--set {text}: write --set key=value, as in --set batch_size=50")
        set_once(found, key, value, f"--set {key}")
    return found


def _unknown(key: str, keys: list[str]) -> JobError:
    head, _, rest = key.partition(".")
    if head in OPTIONS and not any(each.startswith(f"{head}.") for each in keys):
        return JobError(f"--set {key}: no field of the job; horn submit has  --{head} VALUE")
    same = key_like(rest or head)  # learning_rate, lr, optimizer.lr
    parts = [each for each in keys if "." in each] if rest else keys
    near = [same] if same in keys else difflib.get_close_matches(key, parts, 1, 0.5)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"a parameter of the job's function goes after --:  -- --{key} VALUE."
    )
    return JobError(f"--set {key}: unknown key; {hint} Valid keys: {', '.join(keys)}")


def _changed(thing: Any, changes: Mapping[str, str], prefix: str) -> Any:
    """A frozen description with some fields replaced, nested ones too."""
    hints = get_type_hints(type(thing))
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, str]] = {}
    for key, text in changes.items():
        head, _, rest = key.partition(".")
        if rest:
            inner.setdefault(head, {})[rest] = text
        else:
            own[head] = _typed(f"{prefix}.{key}", text, hints[head])
    for head, below in inner.items():
        own[head] = _changed(own.get(head, getattr(thing, head)), below, f"{prefix}.{head}")
    return dataclasses.replace(thing, **own)


def _typed(key: str, text: str, hint: Any) -> Any:
    """Text as the type of a field: whole number, number, true or false, text, none."""
    union = get_origin(hint) in (Union, types.UnionType)
    kinds = get_args(hint) if union else (hint,)
    lower = text.lower()
    if type(None) in kinds and lower in NONE:
        return None
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                pass
    if bool in kinds and lower in TRUE + FALSE:
        return lower in TRUE
    if str in kinds:
        return text
    names = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
    wanted = " or ".join(names[kind] for kind in kinds if kind in names)
    raise JobError(f"--set {key}={text}: {key} is {wanted}, got {text!r}")
