"""Texts of errors as they can be sent: any text a user's code makes, within a field's limit."""

from __future__ import annotations


def wire_text(text: str, most: int) -> str:
    """The first ``most`` characters of a text. Bytes of a file's name that are no UTF-8, which
    Python has as lone surrogates, are spelled out, as Python prints them: \\udcff.
    """
    return text[:most].encode(errors="backslashreplace").decode()[:most]
