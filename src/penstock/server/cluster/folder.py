"""What a member's folder says of the member, beside its log: who it is, its highest term, how often it was opened."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import orjson

from penstock.errors import InvalidArgument, LogDamaged, told_as
from penstock.ports import SMALL, Disk, read_whole, replace_whole
from penstock.replication.register import BYTES_MOST
from penstock.wire.fields import Fields, read_json

NAME = "cluster.json"
RIVAL = "cluster-rival.json"


class Known(NamedTuple):
    """Synced, before anything is done that depends on it."""

    cluster: str  # empty: it has not joined one
    member: str  # its id, minted with the folder
    highest_term: int  # that it has heard of: it acks nothing of a lower one
    starts: int  # how often the folder was opened
    intact: bool = True  # it has all that it ever acked; if not, it is no candidate before it was level again
    listed: bool = False  # the register had it as a member: one that is no longer there was removed
    numbers: int = 0  # where each has a copy of the register, the highest number of a member that was heard of


def read(disk: Disk) -> Known | None:
    """What the folder says; None: it is of no member yet.  LogDamaged for what we did not write."""
    if NAME not in disk.list():
        return None
    with told_as(LogDamaged, f"{NAME} is not as a member writes it: ", instead=InvalidArgument):
        fields = Fields(NAME, read_json(read_whole(disk, NAME, SMALL), NAME))
        found = Known(
            fields.optional_text("cluster") or "", fields.name("member"), fields.number("highest_term"),
            fields.number("starts"), fields.flag("intact", default=True), fields.flag("listed"),
            fields.count("numbers"),
        )  # fmt: skip
        fields.finish()
        return found


def write(disk: Disk, known: Known) -> None:
    """Keep such a copy, synced, instead of the one before.  OSError."""
    told = known._asdict()
    if not known.numbers:
        del told["numbers"]  # older versions know nothing of it
    replace_whole(disk, NAME, orjson.dumps(told))


def read_rival(disk: Disk) -> bytes | None:
    """A copy of the register that went on without this member's, as it was kept."""
    return read_whole(disk, RIVAL, BYTES_MOST) if RIVAL in disk.list() else None


def write_rival(disk: Disk, data: bytes) -> None:
    """Keep it.  OSError."""
    replace_whole(disk, RIVAL, data)


def new_member() -> str:
    """An id that no other member has."""
    return f"m-{secrets.token_hex(6)}"


def new_cluster() -> str:
    """An id that no other cluster has."""
    return f"c-{secrets.token_hex(6)}"


def opened(disk: Disk) -> Known:
    """The same at a start, with one start more, kept."""
    before = read(disk) or Known("", new_member(), 0, 0)
    now = before._replace(starts=before.starts + 1)
    write(disk, now)
    return now
