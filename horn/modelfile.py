"""The model file: safetensors arrays, and a manifest in JSON in the file's own header.

Reading runs nothing. The header holds the manifest as text with its sha256, the manifest the sha256
of the arrays. Arrays are made contiguous before they are written: safetensors 0.8.0 writes a view's
memory, not its values. Reading a manifest needs no NumPy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horn import formats
from horn.atomic_write import atomic_write
from horn.errors import HornError, ModelError
from horn.formats.files import missing
from horn.formats.header import DTYPES, MAX_HEADER_BYTES

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

# A horn refuses numbers above its own: raise it with what an older horn would not notice.
# 1, 2 and 3 were written by turns for the same keys, and are read.
FORMAT = 4
PROGRAMS = (".py", ".ipynb")  # no result may replace a program
PIECE_BYTES = 1 << 20  # of a file that are read at once
# Limits of Linux (255, 4,095), less the affixes of the temporary file's name.
MAX_NAME_BYTES, MAX_PATH_BYTES = 240, 4080


def write(
    path: str | os.PathLike[str],
    manifest: Mapping[str, Any],
    arrays: Mapping[str, Array],
    keeps: bool = True,
) -> None:
    """Write a whole model file or none. After a failure the model is kept in the temporary folder,
    or in the current one, unless ``keeps`` is False, of who tries again.

    Raises
    ------
    ModelError : the file is not written; names the cause, and the path where the model is kept.
    """
    import numpy as np

    check_path(path)
    solid = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    whole = {**manifest, "format": FORMAT, "arrays_sha256": digest(solid)}
    # A name of a file that is no UTF-8, or that LC_ALL=C misreads, has half characters.
    whole = json.loads(json.dumps(whole, ensure_ascii=False).encode(errors="replace"))
    text = json.dumps(whole, separators=(",", ":"))
    header = {"horn": text, "horn_sha256": hashlib.sha256(text.encode()).hexdigest()}
    try:
        check_writable(path)
        _write(Path(path), solid, header)
    except ModelError as error:
        place = f"; {_kept(Path(path).name, solid, header)}" if keeps else ""
        raise ModelError(f"{error}{place}") from error.__cause__


def _write(target: Path, solid: Mapping[str, Array], header: Mapping[str, str]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        with atomic_write(target) as file:
            save_file(dict(solid), file.name, metadata=dict(header))
    except (OSError, SafetensorError) as error:  # safetensors' own on a full disk
        why = (isinstance(error, OSError) and error.strerror) or error
        raise ModelError(f"{target}: cannot be written ({why})") from error


def _kept(name: str, solid: Mapping[str, Array], header: Mapping[str, str]) -> str:
    """Write the model where there is room, under a new name; returns the sentence that names it."""
    import tempfile

    if len(os.fsencode(name)) > MAX_NAME_BYTES:  # a long name may be the cause
        name = "model.horn"
    for folder in (tempfile.gettempdir(), os.curdir):  # the current folder may have been removed
        try:
            own = tempfile.mkdtemp(prefix="horn-kept-", dir=folder)
        except OSError:
            continue
        try:
            _write(Path(own) / name, solid, header)
        except ModelError:
            os.rmdir(own)
            continue
        return f"the model is kept in {Path(own) / name}: move it from there"
    return "choose another place"


def place_of(path: str | os.PathLike[str]) -> Path:
    """The path that a file is written to: the target of a link, so that the link stays."""
    check_path(path)
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def check_path(path: Any) -> None:
    """Raise ModelError unless it names a file."""
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"a model file has a path, as 'model.horn'; got {path!r}")


def _is_kept_for_others(target: Path, folder: Path) -> bool:
    """Whether a file that is there is another user's, in a folder such as /tmp (sticky)."""
    if not target.exists() or not folder.stat().st_mode & stat.S_ISVTX:
        return False
    return os.geteuid() not in (0, folder.stat().st_uid, target.stat().st_uid)


def check_not_read(path: str | os.PathLike[str], sources: Iterable[str]) -> None:
    """Raise ModelError for a result that would replace a file that it is made of. sources : files,
    and data as ``horn.data.load`` takes them: "x.npy,y.npy", "rows.npz:test", a folder of shards.
    """
    for source in sources:
        for name in (source, source.rpartition(":")[0], *source.split(",")):
            with contextlib.suppress(OSError, ValueError):  # no file of that name
                for read in _files(os.path.expanduser(name.strip())):
                    if os.path.samefile(path, read):
                        raise ModelError(
                            f"{os.fspath(path)}: is read here, and would be replaced; name "
                            "another file"
                        )


def _files(name: str) -> list[str]:
    """The file, or the shards in the folder."""
    if not os.path.isdir(name):
        return [name]
    return [os.path.join(name, each) for each in os.listdir(name) if formats.is_shard(each)]


def data_of(job: Any) -> list[str]:
    """The names of a job's data: those of files, as they were given."""
    found = (job.data, job.validation, job.test)
    return [str(data.name) for data in found if data is not None]


def check_writable(path: str | os.PathLike[str], size_bytes: int = 0) -> None:
    """Raise ModelError now rather than after an hour of training: for a folder, a device or a pipe
    of that name, and a place without write access or without ``size_bytes`` of free space.
    """
    import tempfile

    target = place_of(path)
    if len(os.fsencode(target.name)) > MAX_NAME_BYTES or len(os.fsencode(target)) > MAX_PATH_BYTES:
        raise ModelError(f"{path}: the name is too long for a file; name another")
    if target.is_dir():
        raise ModelError(f"{path}: is a folder; name a file, such as {target / 'model.horn'}")
    if target.exists() and not target.is_file():
        raise ModelError(f"{path}: is a device or a pipe, and would be replaced; name a file")
    if target.suffix in PROGRAMS and target.exists():
        raise ModelError(f"{path}: is a program, and would be replaced; name another file")
    folder = target.parent
    if not folder.is_dir():
        raise ModelError(f"{path}: the folder {folder} does not exist; make it first")
    if _is_kept_for_others(target, folder):
        raise ModelError(
            f"{path}: is another user's, and in {folder} only they may replace it; name another"
        )
    try:  # the mode alone does not tell: file systems are read-only, or full
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise ModelError(
            f"{path}: the folder {folder} cannot be written to ({error.strerror}); choose another"
        ) from error
    try:
        room = os.fstatvfs(handle)
        free_bytes = room.f_bavail * room.f_frsize
    finally:
        os.close(handle)
        os.unlink(name)
    if room.f_blocks and free_bytes < size_bytes:
        raise ModelError(
            f"{path}: the disk has {free_bytes:,} bytes left, and the model takes about "
            f"{size_bytes:,}; make room, or choose another place"
        )


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest; runs nothing, reads no arrays. Raises NotFound or ModelError."""
    with understood(path):
        return _manifest(Path(path))


@contextlib.contextmanager
def understood(path: str | os.PathLike[str]) -> Iterator[None]:
    """Report errors in using a description, which may be forged, as errors of the file."""
    try:
        yield
    except ModelError as error:
        if len(text := str(error)) <= 1000:
            raise
        raise ModelError(f"{text[:900]} ... {text[-90:]}") from error  # it quotes the file
    except (
        KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError,
        RecursionError, MemoryError,
    ) as error:  # fmt: skip
        if isinstance(error, HornError):
            raise
        said = f"{type(error).__name__}: {error}"[:200]
        raise ModelError(
            f"{path}: its description is not one that this horn writes ({said}); the file is "
            f"damaged, or from another horn; copy or train it again"
        ) from error


def _manifest(file: Path) -> dict[str, Any]:
    header = _header(file)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or "horn" not in metadata:
        raise ModelError(f"{file}: is a safetensors file, but not one that horn wrote")
    text = str(metadata["horn"])
    if hashlib.sha256(text.encode()).hexdigest() != metadata.get("horn_sha256"):
        raise ModelError(
            f"{file}: is damaged (its description has changed); copy or train it again"
        )
    manifest: dict[str, Any] = json.loads(text)
    if "\\ud" in text.lower():  # a lone surrogate has no bytes, and cannot be printed
        json.dumps(manifest, ensure_ascii=False).encode()
    if (form := manifest.get("format")) not in range(1, FORMAT + 1):
        raise ModelError(
            f"{file}: is of format {form}, this horn reads formats 1 to {FORMAT}; read it with the "
            f"horn that wrote it (version {manifest.get('horn', '?')}) or a newer one: install "
            f"that here, or train again"
        )
    return manifest


def shapes(path: str | os.PathLike[str]) -> dict[str, list[int]]:
    """The shape of every array by name, from the header alone. Raises as ``read_manifest``."""
    with understood(path):
        header = _header(Path(path))
        arrays = {name: found for name, found in header.items() if name != "__metadata__"}
        return {name: [int(n) for n in found["shape"]] for name, found in arrays.items()}


def _no_wait(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe; an ``opener``."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _header(file: Path) -> dict[str, Any]:
    try:
        with open(file, "rb", opener=_no_wait) as stream:
            facts = os.fstat(stream.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise ModelError(f"{file}: is a pipe or a device, not a model file")
            size = facts.st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length < 2 or length > MAX_HEADER_BYTES:
                remedy = f"; horn submit {file} trains one" if file.suffix == ".py" else ""
                if file.suffix in (".npy", ".npz", ".csv"):
                    remedy = "; the model comes first, then data: horn predict MODEL DATA"
                raise ModelError(
                    f"{file}: is no model file (horn models are safetensors files){remedy}"
                )
            if 8 + length > size:
                raise ModelError(
                    f"{file}: is cut short or no model file ({size:,} bytes, its header alone "
                    f"would take {8 + length:,}); copy or train it again"
                )
            header = json.loads(stream.read(length))
        ends = [int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"]
    except FileNotFoundError:
        raise missing(file) from None
    except IsADirectoryError:
        raise ModelError(f"{file}: is a folder, not a model file") from None
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise ModelError(f"{file}: is damaged or no model file; copy or train it again") from None
    expected = 8 + length + max(ends, default=0)
    if expected != size:
        what = "is cut short" if size < expected else "has bytes too many"
        raise ModelError(
            f"{file}: {what} ({size:,} bytes, expected {expected:,}); copy or train it again"
        )
    return dict(header)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """The manifest and the arrays of a model file, verified. Raises as ``read_manifest``."""
    check_path(path)
    manifest = read_manifest(path)
    import safetensors
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        said = str(error)[:200]  # it may quote the file
        raise ModelError(f"{path}: is damaged ({said}); copy or train it again") from None
    _compare(path, digest(arrays), manifest)
    return manifest, arrays


def check_arrays(path: str | os.PathLike[str]) -> None:
    """Compare the arrays with the manifest, without NumPy. Raises as ``read``."""
    file = Path(path)
    with understood(path):
        manifest, header = _manifest(file), _header(file)
        arrays = {name: found for name, found in header.items() if name != "__metadata__"}
        ends = {name: tuple(map(int, found["data_offsets"])) for name, found in arrays.items()}
        n_bytes = max((last for _, last in ends.values()), default=0)
        if sum(last - first for first, last in ends.values()) != n_bytes:
            raise ValueError("arrays overlap")  # so that each byte is read once
        found = hashlib.sha256()
        with open(file, "rb") as stream:
            start = stream.seek(0, os.SEEK_END) - n_bytes
            for name in sorted(arrays):
                kind, shape = DTYPES[arrays[name]["dtype"]], tuple(arrays[name]["shape"])
                found.update(f"{name}|{kind}|{shape}|".encode())
                first, last = ends[name]
                stream.seek(start + first)
                for begin in range(first, last, PIECE_BYTES):
                    found.update(stream.read(min(PIECE_BYTES, last - begin)))
        _compare(path, found.hexdigest(), manifest)


def _compare(path: str | os.PathLike[str], found: str, manifest: Mapping[str, Any]) -> None:
    if found != manifest.get("arrays_sha256"):
        raise ModelError(
            f"{path}: is damaged (its numbers are not those that were saved); copy or train again"
        )


def digest(arrays: Mapping[str, Array]) -> str:
    import numpy as np

    found = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        found.update(np.ascontiguousarray(array).view(np.uint8).data)
    return found.hexdigest()
