"""Where a follower's copy stands in the leader's files, and what it gets next.

One path for one that is level and for one that catches up: bytes of the leader's files in the order in which it wrote
them, a file to its end and then the next.  A commit's bytes may be sent when all of it is written, synced or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.replication.messages import PIECE_MOST, SegmentFile


class Place(NamedTuple):
    """In a file of the log."""

    segment: int  # its first LSN
    offset: int
    identity: int = 0  # of the file, where some of it is there


class Piece(NamedTuple):
    """Bytes to send."""

    segment: int
    identity: int  # of the file that they are read from; another one there means: look again
    offset: int
    size: int


class Gone(Exception):
    """What comes next is no longer there as it was written: the follower must be seeded."""


def next_piece(place: Place, files: Sequence[SegmentFile]) -> Piece | None:
    """What comes next; None: nothing yet.

    files: the leader's, in their order, each with the bytes of it that may be sent.
    Gone for a file that was dropped, or replaced by a rewritten one that the follower has not begun.
    """
    at = next((n for n, one in enumerate(files) if one.first == place.segment), None)
    if at is None:
        raise Gone(f"the file that begins at LSN {place.segment} is no longer kept")
    file = files[at]
    if place.offset and place.identity != file.identity:
        raise Gone(f"the file that begins at LSN {place.segment} was written anew")
    if place.offset > file.bytes:
        raise Gone(f"the follower has {place.offset} bytes of {place.segment}, which has {file.bytes}")
    if place.offset < file.bytes:
        return Piece(file.first, file.identity, place.offset, min(PIECE_MOST, file.bytes - place.offset))
    if at + 1 == len(files):
        return None
    following = files[at + 1]
    return Piece(following.first, following.identity, 0, min(PIECE_MOST, following.bytes)) if following.bytes else None


def after(piece: Piece) -> Place:
    """Where a follower stands that has got it."""
    return Place(piece.segment, piece.offset + piece.size, piece.identity)
