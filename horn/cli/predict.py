"""horn predict: what a model says about samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

import click

from horn import defaults, registry


@click.command(short_help="What a model says about samples.")
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="DATA")
@click.option("-o", "--output", type=click.Path(dir_okay=False, readable=False),
              metavar="FILE",
              help="Write to this .npy, .npz or .csv file instead of stdout.")  # fmt: skip
@click.option("--labels", "--classes", "labels", is_flag=True,
              help="The class of the largest output, its name or number.")  # fmt: skip
@click.option("--ids", metavar="COLUMN",
              help="Column of a .csv with the samples' names, kept in the output (in .npz as ids): "
              "a name of the header or a number from 1. By default the first, if it is "
              "text.")  # fmt: skip
@click.option("--label", metavar="COLUMN",
              help="Column of a .csv that is no feature. By default the last, if it is "
              "text.")  # fmt: skip
@click.option(
    "--backend",
    default=defaults.BACKEND,
    show_default=True,
    help=f"One of {', '.join(registry.names('horn.backends'))}, or module:Class of yours.",
)
@click.option("--stream", is_flag=True,
              help="The lines of DATA are the steps of one sequence, of any length; of standard "
              "input each is answered when it comes.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(model: str, data: str, output: str | None, labels: bool, ids: str | None,
            label: str | None, backend: str, stream: bool, as_json: bool,
            verbose: bool) -> None:  # fmt: skip
    """Print what the output neurons of MODEL send for each sample of DATA, one line per sample.

    DATA is as for horn evaluate; labels in it are not looked at. A .csv file has features only,
    besides columns of text at its ends; - is standard input. Numbers are printed with 6 digits;
    files of -o, and --json, have all.
    """
    import numpy as np

    from horn import modelfile, terminal
    from horn.cli._samples import samples_of
    from horn.errors import JobError
    from horn.model import Model

    if output is not None:
        if not output.endswith((".npy", ".npz", ".csv")):
            raise JobError(
                f"-o {output}: predictions are written as .npy, .npz or .csv; name such a file"
            )
        modelfile.check_writable(output)
        modelfile.check_not_read(output, (model, data))
    modelfile.read_manifest(model)
    if stream and data == "-":
        if output is not None or as_json or ids is not None or label is not None:
            raise click.UsageError(
                "--stream of standard input prints an answer per line, as it comes: leave out "
                "--output, --json, --ids and --label."
            )
        _answer_lines(Model.load(model, backend=backend), labels)
        return
    trained = Model.load(model, backend=backend)
    samples = samples_of(data, trained, whole=stream, labels=False, label=label, ids=ids)
    if stream:
        found = trained.stream()(samples)
        found = trained.labels_of(found) if labels else found
    else:
        found = trained.predict(samples, labels=labels)
        if trained.is_one_sequence(samples):  # which is one sample
            if isinstance(found, dict):
                found = {name: np.asarray(a)[None] for name, a in found.items()}
            elif not trained.network.last.each_step:
                found = np.asarray(found)[None]
    if isinstance(found, dict):
        by_step = [] if stream else [x.name for x in trained.network.outputs if x.each_step]
        _tell_each(found, output, samples, as_json, {"model": model, "data": data}, by_step)
        return
    if output is not None and output.endswith(".csv") and np.ndim(found[0]) > 1 - labels:
        raise JobError(
            f"-o {output}: each of {trained.network.steps} steps is answered, which a table has no "
            "columns for; write .npz"
        )
    is_ragged = isinstance(found, list)  # sequences that end early, of which each step is answered
    if output is not None and is_ragged and output.endswith(".npy"):
        raise JobError(
            f"-o {output}: the sequences are of different lengths, which one array does not tell; "
            "write .npz, with an array of the lengths, too"
        )
    names = None if samples.ids is None or len(found) != len(samples) else samples.ids.tolist()
    if output is not None and output.endswith(".npy") and ids is not None and names is not None:
        raise JobError(
            f"-o {output}: one array has no place for the names of samples, --ids {ids}; write "
            ".npz, with an array of them, too, or .csv"
        )
    if output is not None and output.endswith(".npz"):
        _savez(output, {"y": found}, names)
    elif output is not None:
        _write(output, found, _header(trained, found, samples.id_name), names)
        terminal.say(f"Wrote {output}: {' × '.join(f'{n:,}' for n in found.shape)} {found.dtype}.")
    if as_json:
        each = [_text(row) for row in map(np.asarray, found)]
        shown = {} if output else {"outputs": [row.tolist() for row in each]}
        if names is not None and not output:
            shown["ids"] = names
        head = {"schema": "horn.predict/1", "model": model, "data": data, "output": output}
        shape = [len(found), None, *found[0].shape[1:]] if is_ragged else list(found.shape)
        terminal.print_json({**head, "shape": shape, **shown})
    elif output is None:
        for k, row in enumerate(np.asarray(row).tolist() for row in found):
            text = _line(row) if isinstance(row, list) else row
            click.echo(text if names is None else f"{names[k]} {text}")


def _tell_each(
    found: dict[str, Any], output: str | None, samples: Any, as_json: bool, head: dict[str, str],
    by_step: list[str],
) -> None:  # fmt: skip
    """Print or write the predictions of several outputs, by name. by_step : the outputs with a
    prediction for each step of a sequence.
    """
    import numpy as np

    from horn import terminal
    from horn.errors import JobError

    n = len(next(iter(found.values())))
    names = None if samples.ids is None or n != len(samples) else samples.ids.tolist()
    if output is not None and output.endswith(".csv") and by_step:
        raise JobError(
            f"-o {output}: each step is answered by {by_step[0]!r}, which a table has no columns "
            "for; write .npz"
        )
    plain = {name: _text(a) for name, a in found.items()}
    if output is not None and output.endswith(".npy"):
        raise JobError(
            f"-o {output}: the outputs {', '.join(found)} are several arrays; write .npz or .csv"
        )
    if output is not None and output.endswith(".npz"):
        _savez(output, plain, names)
    elif output is not None:
        columns = {
            name if a.ndim == 1 else f"{name}.{k}": a if a.ndim == 1 else a[:, k]
            for name, a in plain.items()
            for k in range(1 if a.ndim == 1 else a.shape[1])
        }
        table = [_cells(column) for column in columns.values()]
        table = table if names is None else [names, *table]
        header = [*columns] if names is None else [samples.id_name, *columns]
        _replace(output, lambda file: _write_rows(file, [header, *zip(*table, strict=True)]))
        _say(output, plain)
    if as_json:
        lists = {name: [row.tolist() for row in a] for name, a in plain.items()}
        shown = {} if output else {"outputs": lists}
        if names is not None and not output:
            shown["ids"] = names
        shapes = {
            name: [len(a), None, *a[0].shape[1:]] if isinstance(a, list) else list(a.shape)
            for name, a in plain.items()
        }
        terminal.print_json(
            {"schema": "horn.predict/1", **head, "output": output, "shape": shapes, **shown}
        )
    elif output is None:
        for k in range(n):
            text = "  ".join(f"{name} {_line(np.atleast_1d(a[k]).tolist())}"
                             for name, a in plain.items())  # fmt: skip
            click.echo(text if names is None else f"{names[k]} {text}")


def _savez(path: str, found: dict[str, Any], names: list[str] | None) -> None:
    """Write arrays by name, and ``ids``, the names of the samples, if they have some. Sequences of
    different lengths are filled up with their last steps; then there is an array of their
    ``lengths``, too. Raises JobError: an output is called as one of these.
    """
    import numpy as np

    from horn.errors import JobError

    more = {} if names is None else {"ids": np.array(names, str)}
    if ragged := [each for each in found.values() if isinstance(each, list)]:
        more["lengths"] = lengths = np.array([len(one) for one in ragged[0]])
        steps = np.arange(lengths.max())
    if taken := [name for name in found if name in more]:
        raise JobError(
            f"-o {path}: an output of this model is called {taken[0]!r}, as an array that is "
            "written beside the outputs; give the output another name"
        )
    arrays = {}
    for name, each in found.items():
        if isinstance(each, list):
            each = np.array([one[np.minimum(steps, len(one) - 1)] for one in each])
        arrays[name] = _text(each)
    arrays |= more
    _replace(path, lambda file: np.savez(file, **arrays))
    _say(path, arrays)


def _say(path: str, arrays: dict[str, Any]) -> None:
    from horn import terminal

    said = ", ".join(f"{name} {' × '.join(map(str, a.shape))}" for name, a in arrays.items())
    terminal.say(f"Wrote {path}: {said}.")


def _text(found: Any) -> Any:
    """An array, or a list of them, as a file or JSON can have: texts instead of objects."""
    if isinstance(found, list):
        return [_text(one) for one in found]
    return found.astype(str) if found.dtype == object else found


def _line(row: list[Any]) -> str:
    """The outputs or labels of one sample; of sequences, step after step."""
    if row and isinstance(row[0], list):
        return " | ".join(map(_line, row))
    return " ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in row)


def _answer_lines(trained: Any, labels: bool) -> None:
    """Read a step per line, as of a .csv file or with spaces between, and answer it at once."""
    import sys

    import numpy as np

    from horn.data import Dataset, check_names
    from horn.errors import DataError
    from horn.formats.csv import STDIN, CsvReader

    stream, reader = trained.stream(), CsvReader(STDIN, has_labels=False, is_live=True)
    for chunk in reader:
        names = reader.columns.feature_names
        step = Dataset(chunk.x, None, name="standard input", feature_names=names)
        check_names(step, trained.feature_names, "this model")
        try:
            found = stream(chunk.x[0])
        except DataError as error:
            raise DataError(f"standard input, line {chunk.lines[0][0]}: {error}") from None
        found = trained.labels_of(found) if labels else found
        if isinstance(found, dict):
            parts = (f"{name} {_line(np.atleast_1d(a).tolist())}" for name, a in found.items())
            text = "  ".join(parts)
        else:
            text = _line(np.atleast_1d(found).tolist())
        click.echo(" ".join([*chunk.ids, text]))
        sys.stdout.flush()


def _header(model: Any, found: Any, id_name: str) -> list[Any]:
    """The header of a table with the names of its samples."""
    if found.ndim == 1:
        return [id_name, "label"]
    n = found.shape[1]
    is_named = model.classes is not None and len(model.classes) == n
    return [id_name, *(model.classes if is_named else range(n))]


def _write(path: str, found: Any, header: list[Any], names: list[str] | None) -> None:
    import numpy as np

    def fill(file: IO[bytes]) -> None:
        if path.endswith(".npy"):
            np.save(file, _text(found))
        else:
            cells = [[cell] if found.ndim == 1 else cell for cell in _cells(found)]
            if names is not None:
                pairs = zip(names, cells, strict=True)
                cells = [header, *([name, *row] for name, row in pairs)]
            _write_rows(file, cells)

    _replace(path, fill)


def _cells(found: Any) -> list[Any]:
    """The values of an array, nested alike, with the digits that give the same number when read."""
    if found.dtype.kind != "f":
        return list(found.tolist())
    if found.ndim > 1:
        return [_cells(row) for row in found]
    return [repr(v) if found.dtype.itemsize == 8 else f"{v:.9g}" for v in found.tolist()]


def _write_rows(file: IO[bytes], rows: list[Any]) -> None:
    import csv

    with open(
        file.fileno(), "w", encoding="utf-8", errors="backslashreplace", newline="", closefd=False
    ) as text:
        csv.writer(text, lineterminator="\n").writerows(rows)


def _replace(path: str, fill: Callable[[IO[bytes]], None]) -> None:
    """Write all of a file or nothing. Raises JobError: the disk is full, or its folder has gone."""
    from horn.atomic_write import atomic_write
    from horn.errors import JobError

    try:
        with atomic_write(path) as file:
            fill(file)
    except OSError as error:
        raise JobError(
            f"-o {path}: cannot be written ({error.strerror or error}); choose another place"
        ) from error
