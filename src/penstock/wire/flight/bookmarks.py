"""Places in the log as people write them: `<origin>|<lsn>|`, EPOCH, NOW, an ISO time, a list of them, a range `[a:b)`.

Owns the spelling alone; which LSN a time or NOW is at this moment is the server's to say.  A bookmark names a message:
reading from it starts with the next one.  A list stands for the oldest of its places.  A range says with its brackets
whether its ends belong to it; each of its ends may be a list.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

from penstock.errors import InvalidArgument
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.dataclass import dataclass
from penstock.units import epoch_micros

_BOOKMARK = re.compile(r"([0-9]{1,20})\|([0-9]{1,16})\|?\Z")
_WORDS: dict[str, str] = {
    **dict.fromkeys(("EPOCH", "EARLIEST", "0"), "epoch"),
    **dict.fromkeys(("NOW", "LATEST", "0|1|", "0|1"), "now"),
}

LISTED_MOST = 1000
"""Places in one list."""


@dataclass(frozen=True, slots=True)
class Point:
    """One place: `lsn` with its `origin`, or `time` in microseconds, or one of the words, or the oldest of `points`."""

    kind: Literal["epoch", "now", "lsn", "time", "list"]
    origin: int = 0
    lsn: int = 0
    time: int = 0
    points: tuple[Point, ...] = ()

    def parts(self) -> tuple[Point, ...]:
        """The places of a list, or itself."""
        return self.points or (self,)


@dataclass(frozen=True, slots=True)
class Span:
    """From where to where; `end` None: to what is durable when the reading starts."""

    start: Point
    end: Point | None = None
    with_start: bool = False
    with_end: bool = False


def format_bookmark(origin: int, lsn: int) -> str:
    """The text of a message's place."""
    return f"{origin}|{lsn}|"


Recent = Callable[[], Point]
"""What MOST_RECENT is for the stream or subscription that asks."""


def parse_point(text: str, recent: Recent | None = None) -> Point:
    """One place, or a list with commas.  `recent` None: MOST_RECENT is refused.

    Raises InvalidArgument with the forms there are.
    """
    return _parse_point(text, recent, "or a list of them with commas")


def _parse_point(text: str, recent: Recent | None, more: str) -> Point:
    if "," in text:
        parts = text.split(",")
        if len(parts) > LISTED_MOST:
            raise InvalidArgument(f"a list of {len(parts)} bookmarks; {LISTED_MOST} are allowed")
        return Point("list", points=tuple([_parse_one(part, recent, more) for part in parts]))
    return _parse_one(text, recent, more)


def _parse_one(text: str, recent: Recent | None, more: str) -> Point:
    """more: which other forms may stand where it does."""
    text = text.strip()
    word = _WORDS.get(text.upper())
    if word == "epoch":
        return Point("epoch")
    if word == "now":
        return Point("now")
    if text.upper() == "MOST_RECENT":
        if recent is None:
            raise InvalidArgument("MOST_RECENT needs the name of a stream or subscription, and there is none here")
        return recent()
    match = _BOOKMARK.match(text)
    if match is not None:
        return Point("lsn", origin=int(match[1]), lsn=int(match[2]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{text[:60]!r} is no bookmark: write <origin>|<lsn>|, EPOCH (earliest), NOW (latest), an ISO time, {more}"
        ) from None
    return Point("time", time=epoch_micros(moment))


def parse_span(text: str, recent: Recent | None = None) -> Span:
    """One place to read from, or a range of two.  Raises InvalidArgument."""
    text = text.strip()
    if not text or text[0] not in "[(":
        return Span(_parse_point(text, recent, "a list of them with commas, or a range [a:b)"))
    if text[-1] not in "])":
        raise InvalidArgument(f"the range {text[:60]!r} does not end with ] or )")
    start, end = _halves(text[1:-1], recent)
    return Span(start, end, text[0] == "[", text[-1] == "]")


def resumed(text: str, last: str) -> str:
    """What to read that has been read up to a bookmark, which is behind where it began: a range keeps its end.

    Raises InvalidArgument.
    """
    text = text.strip()
    if not text or text[0] not in "[(":
        return last
    place, _, _ = _colon(text[1:-1], lambda: Point("epoch"))
    return f"({last}:{text[place + 2 : -1]}{text[-1]}"


def _halves(inner: str, recent: Recent | None) -> tuple[Point, Point]:
    """Both ends of a range."""
    _, start, end = _colon(inner, recent)
    return start, end


def _colon(inner: str, recent: Recent | None) -> tuple[int, Point, Point]:
    """Where the colon between both ends of a range is, which has a place on either side, other than those in times."""
    for place, letter in enumerate(inner):
        if letter == ":":
            try:
                return place, parse_point(inner[:place], recent), parse_point(inner[place + 1 :], recent)
            except InvalidArgument:
                continue
    raise InvalidArgument(f"the range [{inner[:60]}] is not two places with a colon between them")


def parse_mark(text: str, or_else: str = "") -> Point:
    """The bookmark of one message.  Raises InvalidArgument; or_else: what else could have been written."""
    match = _BOOKMARK.match(text.strip())
    if match is None or text.strip() in _WORDS or not int(match[2]):
        raise InvalidArgument(f"{text[:60]!r} names no message: write its bookmark <origin>|<lsn>|{or_else}")
    return Point("lsn", origin=int(match[1]), lsn=int(match[2]))


MARKS_MOST = 100_000
"""Bookmarks in one command."""


def read_marks(texts: Sequence[str]) -> dict[int, Chunk]:
    """Bookmarks `<origin>|<lsn>|` as ascending LSNs by origin.  Raises InvalidArgument for what names no message."""
    if len(texts) > MARKS_MOST:
        raise InvalidArgument(f"{len(texts)} bookmarks at once; {MARKS_MOST} are allowed")
    by_origin: dict[int, set[int]] = {}
    for text in texts:
        point = parse_mark(text)
        by_origin.setdefault(point.origin, set()).add(point.lsn)
    return {origin: as_chunk(array("q", sorted(lsns))) for origin, lsns in by_origin.items()}
