"""Pictures: a folder of PNG or JPEG files for each class, or one file, read with Pillow.

All pictures become bytes (height, width, channels): one channel if all of them are grey, else red,
green and blue. Transparency is left out. A picture that its camera says to turn is turned (EXIF).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from horn.data.conversion import as_dataset
from horn.data.dataset import Dataset
from horn.errors import DataError, ModelError, NotFound, is_whole
from horn.mistakes import shown

ENDINGS = (".png", ".jpg", ".jpeg")
GREY = ("1", "L", "LA")
COLOURED = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
ID_NAME = "file"


def images(
    folder: str | Path, *, size: int | tuple[int, int] | None = None, labels: bool = True
) -> Dataset:
    """The dataset of a folder's pictures, those of each class in a folder with its name.

    x (n, height * width * channels) uint8, of shape (height, width, channels); y (n,) int64, the
    classes in the order of their names; ids the files. size : (height, width) to which all
    pictures are scaled, a number for both; without it they must be of one size. Without ``labels``
    y is None, and pictures may lie in the folder itself. ``folder`` may be one picture: a sample
    without a label.

    Raises
    ------
    NotFound : there is no such folder or file. ModelError : Pillow is not installed.
    DataError : a file is damaged, is no picture, or is of another size; names the file. Or
    ``size`` is none.
    """
    scaled = None if size is None else _pair(size)
    if not isinstance(folder, (str, os.PathLike)):
        raise DataError(
            f"images takes the path of a folder of pictures, or of one; got {shown(folder)}"
        )
    where = Path(os.path.expanduser(folder))
    if not where.exists():
        raise NotFound(f"{where}: no such folder or file; check the name")
    files = found(where)
    if where.is_file():
        files, where, labels = [where], where.parent, False
    if not files:
        raise DataError(
            f"{where}: has no PNG or JPEG files; put those of each class in a folder of its own, "
            f"as {where / 'cat' / '1.png'}"
        )
    loose = [path for path in files if path.parent == where]
    if loose and labels:
        raise DataError(
            f"{loose[0]}: lies in no folder of a class; move it to one, as "
            f"{where / 'cat' / loose[0].name}, or read without labels (labels=False)"
        )
    arrays = [_read(path, scaled) for path in files]
    height, width = arrays[0].shape[:2]
    for path, array in zip(files, arrays, strict=True):
        if array.shape[:2] != (height, width):
            raise DataError(
                f"{path}: is {array.shape[0]} x {array.shape[1]} pixels (height x width), but "
                f"{files[0]} is {height} x {width}; scale all of them to one size: "
                f"horn.data.images({str(folder)!r}, size=({height}, {width}))"
            )
    channels = max(array.shape[2] for array in arrays)
    x = np.empty((len(arrays), height, width, channels), np.uint8)
    for k, array in enumerate(arrays):
        x[k] = array  # a grey one among coloured ones: the same in all three
    y = None
    if labels:
        y = np.array([path.relative_to(where).parts[0] for path in files])
    data = as_dataset((x, y), str(folder))
    ids = np.array([str(path.relative_to(where)) for path in files])
    return data.with_fields(ids=ids, id_name=ID_NAME)


def in_colours(data: Any, shape: tuple[int, ...]) -> Any:
    """Grey pictures of ``images`` as those of the input ``shape`` that has three channels: as they
    are read beside coloured ones. Anything else unchanged.
    """
    if not isinstance(data, Dataset) or data.id_name != ID_NAME or len(data.shape) != 3:
        return data
    if (*data.shape[:2], 3) != shape or data.shape[2] != 1:
        return data
    return data.with_fields(x=np.repeat(data.x, 3, axis=1), shape=shape)


def _pair(size: Any) -> tuple[int, int]:
    """(height, width). Raises DataError."""
    pair = size if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2 or not all(is_whole(n, 1) for n in pair):
        raise DataError(
            f"images: size is (height, width) in pixels, as size=(32, 32), or one number for both, "
            f"got {shown(size)}"
        )
    return int(pair[0]), int(pair[1])


def found(folder: Path) -> list[Path]:
    """The files of a folder and its subfolders, by name; hidden ones are left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part[0] == "." for part in path.relative_to(folder).parts)
    )


def has_pictures(folder: Path) -> bool:
    """Whether there is a picture in a folder, or in one of its folders."""
    return any(
        path.suffix.lower() in ENDINGS for pattern in ("*", "*/*") for path in folder.glob(pattern)
    )


def _read(path: Path, size: tuple[int, int] | None) -> np.ndarray:
    """Read one picture, (height, width, 1 or 3) bytes."""
    try:
        from PIL import Image, ImageOps  # an extra
    except ImportError:
        raise ModelError(
            "pictures are read with Pillow, which is not installed; pip install 'horn-bsp[images]'"
        ) from None
    if path.suffix.lower() not in ENDINGS:
        raise DataError(
            f"{path}: is no PNG or JPEG file; move it out of the folder, or save it as one"
        )
    try:
        with Image.open(path) as picture:
            if picture.mode not in (*GREY, *COLOURED):
                raise DataError(
                    f"{path}: its pixels are of the kind {picture.mode!r}, but bytes of grey or of "
                    f"red, green and blue are expected; save it as such"
                )
            is_grey = picture.mode in GREY or _has_grey_palette(picture)
            turned: Any = ImageOps.exif_transpose(picture)  # as it is shown
            read: Any = turned.convert("L" if is_grey else "RGB")
    except DataError:
        raise
    except Exception as error:  # any error of the decoder for a damaged file
        raise DataError(
            f"{path}: is damaged or no picture ({type(error).__name__}: {error}); replace or "
            f"remove it"
        ) from error
    if size is not None:
        read = read.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    array = np.asarray(read)
    return array[..., None] if array.ndim == 2 else array


def _has_grey_palette(picture: Any) -> bool:
    """Whether all colours of the palette that a picture has are grey."""
    if picture.mode not in ("P", "PA"):
        return False
    colours = np.asarray(picture.getpalette("RGB")).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())
