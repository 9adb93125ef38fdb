"""Byte strings as `str`: UTF-8 where they are, and escaped byte by byte where they are not."""

from __future__ import annotations


def from_bytes(data: bytes) -> str:
    """A byte string in its one form."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(value: str) -> bytes:
    """The bytes of a byte string; a lone surrogate that is no escaped byte keeps its three-byte form."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
