"""Names of jobs, and of who submits them."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import unicodedata


def user() -> str:
    """The submitter's name, unproven; for people."""
    try:
        return getpass.getuser()[:100]
    except (KeyError, OSError):
        return str(os.getuid())


def plain_name(name: str) -> str:
    """A name in the letters of an id: Zähler/2 -> Zahler-2; "" if it has none of them."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return re.sub("[^A-Za-z0-9_.-]+", "-", bare).strip("-.")


def new_id(name: str) -> str:
    """Make a job id: <name>-<4 hex>"""
    return f"{plain_name(name)[:80] or 'job'}-{secrets.token_hex(2)}"
