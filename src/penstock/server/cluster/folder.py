"""What a member's folder says of the member, beside its log: who it is, its highest term, how often it was opened."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import orjson

from penstock.errors import InvalidArgument, LogDamaged
from penstock.ports import Disk
from penstock.wire.fields import Fields, read_json

NAME = "cluster.json"
_MOST = 4096


class Known(NamedTuple):
    """Synced, before anything is done that depends on it."""

    cluster: str  # empty: it has not joined one
    member: str  # its id, minted with the folder
    highest_term: int  # that it has heard of: it acks nothing of a lower one
    starts: int  # how often the folder was opened
    intact: bool = True  # its log has all that it ever acked; if not, it is no candidate before it was level again
    listed: bool = False  # the register had it as a member: one that is no longer there was removed


def read(disk: Disk) -> Known | None:
    """What the folder says; None: it is of no member yet.  LogDamaged for what we did not write."""
    if NAME not in disk.list():
        return None
    file = disk.open(NAME, readonly=True)
    try:
        fields = Fields(NAME, read_json(file.pread(_MOST, 0), NAME))
        found = Known(
            fields.optional_text("cluster") or "", fields.name("member"), fields.number("highest_term"),
            fields.number("starts"), fields.flag("intact", default=True), fields.flag("listed"),
        )  # fmt: skip
        fields.finish()
        return found
    except InvalidArgument as error:
        raise LogDamaged(f"{NAME} is not as a member writes it: {error}") from None
    finally:
        file.close()


def write(disk: Disk, known: Known) -> None:
    """Keep it.  OSError."""
    part = f"{NAME}.part"
    if part in disk.list():
        disk.remove(part)
    file = disk.open(part, create=True)
    file.pwrite(orjson.dumps(known._asdict()), 0)
    file.sync()
    file.close()
    disk.rename(part, NAME)
    disk.sync_folder()


def new_member() -> str:
    """An id that no other member has."""
    return f"m-{secrets.token_hex(6)}"


def opened(disk: Disk) -> Known:
    """The same at a start, with one start more, kept."""
    before = read(disk) or Known("", new_member(), 0, 0)
    now = before._replace(starts=before.starts + 1)
    write(disk, now)
    return now
