"""Recovery points as people write them: from where a queue takes what the log has already.

`now` means from now on, `creation` from the queue's own declare on, `epoch` from the beginning of the log; a bookmark
`<origin>|<lsn>|` means that message and what follows it, a timestamp what was published at that moment or later.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal

from penstock.records.dataclass import dataclass

_BOOKMARK = re.compile(r"(\d{1,20})\|(\d{1,16})\|?\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """One point.  `lsn` with its `origin`, or `time` in microseconds since the epoch, or one of the words."""

    kind: Literal["epoch", "now", "creation", "lsn", "time"]
    origin: int = 0
    lsn: int = 0
    time: int = 0


_WORDS = {
    "epoch": RecoveryPoint("epoch"), "now": RecoveryPoint("now"), "creation": RecoveryPoint("creation"),
}  # fmt: skip


def parse_recovery_point(text: str) -> RecoveryPoint:
    """Raises ValueError with the forms there are."""
    if (word := _WORDS.get(text)) is not None:
        return word
    match = _BOOKMARK.match(text)
    if match is not None:
        return RecoveryPoint("lsn", origin=int(match[1]), lsn=int(match[2]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text[:60]!r} is not one of epoch, now, creation, a bookmark <origin>|<lsn>|, "
            "a timestamp such as 20260131T235959Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    return RecoveryPoint("time", time=(since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
