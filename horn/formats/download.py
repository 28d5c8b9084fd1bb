"""Fetch the MNIST files, and keep those with the right checksum. Imported by downloads only, since
it imports modules of the network.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import logging
import tempfile
import time
import urllib.request
import zlib
from pathlib import Path

from horn.errors import NotFound

logger = logging.getLogger(__name__)

MNIST_SITES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)

# sha256 of the files after gunzip: the wrapping differs from site to site, the content does not.
MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

TIMEOUT_S = 30  # without any byte
WHOLE_S = 600  # for a file of 10 MB: a server that sends some bytes now and then is left
PIECE_BYTES = 64 * 1024

# No network, no such page, an answer cut short, damaged gzip data.
UNFETCHED = (OSError, http.client.HTTPException, EOFError, zlib.error)


def fetch(name: str, folder: Path) -> Path:
    """Download ``name``.gz into ``folder`` and return its path.

    The file appears under its name only when it is whole and its checksum is right.

    NotFound : no site had it whole, or the folder cannot be made; nothing is left behind.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder)
    except OSError as error:
        raise NotFound(
            f"{folder} cannot be written ({error.strerror}); set HORN_DATA to a folder of yours"
        ) from error
    problems = []
    with scratch:
        packed = Path(scratch.name) / f"{name}.gz"
        for site in MNIST_SITES:
            logger.info("download begun file=%s site=%s", packed.name, site)
            try:
                got = _fetch(f"{site}{packed.name}", packed)
            except UNFETCHED as error:
                problems.append(f"{site}: {error}")
                continue
            if got == MNIST_SHA256[name]:
                return packed.replace(folder / packed.name)
            expected = MNIST_SHA256[name]
            problems.append(f"{site}: its sha256 is {got[:16]}..., expected {expected[:16]}...")
    raise NotFound(
        f"{name}.gz could not be fetched ({'; '.join(problems)}). Nothing was kept; put the file "
        f"into {folder} by hand"
    )


def _fetch(address: str, packed: Path) -> str:
    """Copy an address to a file in pieces, and return the sha256 of its unpacked content. Raises
    one of UNFETCHED, TimeoutError if it is not whole after ``WHOLE_S``.
    """
    ends = time.monotonic() + WHOLE_S
    with (
        urllib.request.urlopen(address, timeout=TIMEOUT_S) as response,
        open(packed, "wb") as out,
    ):
        while data := response.read1(PIECE_BYTES):  # what is there, else all of it is waited for
            out.write(data)
            if time.monotonic() > ends:
                raise TimeoutError(f"{out.tell():,} bytes came in {WHOLE_S:g} s, not all of it")
    with gzip.open(packed, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
