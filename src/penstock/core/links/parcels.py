"""What goes over a link at once: what one batch of the sender's log says to another site.

The head is JSON, the messages are columns.  A message keeps the LSN that it has at its origin, and its times, which are
absolute: it is as old everywhere.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.core.links.ownership import WHYS, Claim, Span, Why
from penstock.records.chunks import LSN_LIMIT, merged_spans
from penstock.records.schema import CARRIED
from penstock.units import LATEST

TWINS = "twins"
"""Stands where a claim stands in what was told."""


class Piece(NamedTuple):
    """Adjacent rows that have come the same way, to one exchange.

    path      the origins that they have passed, the first is where they were published, the last who sends them
    blind     further routing keys, which nobody is shown
    at        where the first one stands in the log of who sends them; queues that begin there part pieces; 0: not told
    letters   a site wrote them as dead letters, no publisher did: what their headers say of deaths is so
    into      the one queue that took them, for they were moved to it; empty: their topic says who takes them
    """

    path: tuple[int, ...]
    vhost: str
    exchange: str
    blind: tuple[str, ...]
    rows: int
    at: int = 0
    letters: bool = False
    into: str = ""


class Told(NamedTuple):
    """What happened to messages of a shared queue.

    spans     by origin: LSNs [a, b) there
    claim     their owner changed; None: they are settled
    twins     these went because others are the same messages (`core.links.twins`)
    """

    vhost: str
    queue: str
    spans: tuple[tuple[int, int, int], ...]
    claim: Claim | None = None
    twins: bool = False


class Numbers(NamedTuple):
    """Messages that a publisher numbered: at their origin they stand from `lsn` on, with adjacent sequences."""

    publisher: str
    origin: int
    sequence: int
    lsn: int
    size: int


class Parcel(NamedTuple):
    """Messages first, then what happened, in the order of the log.

    upto      with this parcel all is told up to this LSN of the sender
    offers    of queues that begin there, told before the messages that follow them (`core.links.sharing`)
    """

    upto: int
    pieces: tuple[Piece, ...] = ()
    rows: pa.RecordBatch | None = None
    told: tuple[Told, ...] = ()
    numbers: tuple[Numbers, ...] = ()
    offers: tuple[Mapping[str, object], ...] = ()

    @property
    def head(self) -> bytes:
        """All but the rows, as bytes."""
        table: dict[str, object] = {"upto": self.upto}
        if self.pieces:
            table["pieces"] = [list(piece[: 7 if piece.letters else 6]) for piece in self.pieces]
            if any(piece.into for piece in self.pieces):
                table["into"] = {str(at): piece.into for at, piece in enumerate(self.pieces) if piece.into}
        if self.told:
            table["told"] = [_plain(one) for one in self.told]
        if self.numbers:
            table["numbers"] = [list(one) for one in self.numbers]
        if self.offers:
            table["offers"] = self.offers
        return orjson.dumps(table)


def _plain(told: Told) -> list[object]:
    claim: tuple[object, ...] = told.claim or ((TWINS,) if told.twins else ())
    return [told.vhost, told.queue, [number for span in told.spans for number in span], *claim]


SPANS_MOST = 2_000
PIECES_MOST = 2_000
OFFERS_MOST = 200
BLIND_MOST = 256
BLIND_BYTES = 255
PATH_MOST = 64
NAME_MOST = 1024
SHOWN_MOST = 200
BYTES_MOST = 8 << 20
"""What one parcel has at most: so that its head and its rows are small for whoever takes them.

Further routing keys of a message say where its dead letter goes, too: so many of no more bytes are told.
"""


def split(parcel: Parcel, told: Iterable[Told], before: int) -> Iterator[Parcel]:
    """The same, and what happened, in parcels that are not too large: made as they are taken, however much happened.

    All but the last tell nothing up to any LSN but `before`.
    """
    last: Parcel | None = None
    for one in _parts(parcel, told):
        if last is not None:
            yield last._replace(upto=before)
        last = one
    if last is not None:
        yield last._replace(upto=parcel.upto)


def _parts(parcel: Parcel, told: Iterable[Told]) -> Iterator[Parcel]:
    for at in range(0, len(parcel.offers), OFFERS_MOST):
        yield Parcel(0, offers=parcel.offers[at : at + OFFERS_MOST])
    rows = _with_rows(parcel)
    held = next(rows, None)
    for one in rows:
        if held is not None:
            yield held
        held = one
    portions = _told_portions(told)
    some = list(islice(portions, 2))
    if held is not None:
        if len(some) == 1 and len(held.pieces) + sum(len(one.spans) for one in some[0]) <= PIECES_MOST:
            held = held._replace(told=tuple(some.pop()))
        yield held
    for portion in chain(some, portions):
        yield Parcel(0, told=tuple(portion))


def _with_rows(parcel: Parcel) -> Iterator[Parcel]:
    if parcel.rows is not None:
        for pieces, rows in _portions(parcel.pieces, parcel.rows):
            first, last = _ends(rows) if parcel.numbers else (0, 0)
            mine = [one for one in parcel.numbers if one.lsn <= last and one.lsn + one.size > first]
            yield Parcel(0, tuple(pieces), rows, numbers=tuple(mine))


def _told_portions(told: Iterable[Told]) -> Iterator[list[Told]]:
    """What happened, in portions of `SPANS_MOST` spans at most; one with more is cut."""
    some, count = list[Told](), 0
    for one in told:
        for at in range(0, len(one.spans), SPANS_MOST):
            spans = one.spans[at : at + SPANS_MOST]
            if some and count + len(spans) > SPANS_MOST:
                yield some
                some, count = [], 0
            some.append(one._replace(spans=spans))
            count += len(spans)
    if some:
        yield some


def _ends(rows: pa.RecordBatch) -> tuple[int, int]:
    lsns = rows.column("lsn").to_numpy()
    return int(lsns.min()), int(lsns.max())


def _portions(pieces: Sequence[Piece], rows: pa.RecordBatch) -> Iterator[tuple[list[Piece], pa.RecordBatch]]:
    """Rows and their pieces in portions."""
    small = rows.get_total_buffer_size() <= BYTES_MOST or rows.nbytes <= BYTES_MOST  # the first is told at once
    if small and sum(map(_weight, pieces)) <= PIECES_MOST:
        yield list(pieces), rows
        return
    each = max(rows.num_rows * BYTES_MOST // rows.nbytes, 1)
    start, at, some, weight = 0, 0, list[Piece](), 0
    for piece in pieces:
        left = piece.rows
        while left:
            weight += _weight(piece)
            count = min(left, start + each - at)
            some.append(piece._replace(rows=count))
            at, left = at + count, left - count
            if at - start == each or weight >= PIECES_MOST:
                yield some, rows.slice(start, at - start)
                start, some, weight = at, [], 0
    if some:
        yield some, rows.slice(start)


def _weight(piece: Piece) -> int:
    """What it takes of a head, as pieces without further keys count 1."""
    return 1 + sum(map(len, piece.blind)) // 100


def told_blind(keys: Sequence[str]) -> tuple[str, ...]:
    """Those further routing keys of a message that are told."""
    return tuple([key for key in keys if len(key.encode()) <= BLIND_BYTES][:BLIND_MOST])


def read(head: bytes, rows: pa.RecordBatch | None, *, judged: bool = False) -> Parcel:
    """The inverse of `Parcel.head`.  ValueError for what is no parcel.

    judged: the rows have the columns of `CARRIED`, and each value was found whole and in its bounds.
    """
    try:
        table = cast("Mapping[str, Any]", orjson.loads(head))
        pieces = _into([_piece(*row) for row in table.get("pieces", ())], table.get("into", {}))
        told = tuple(_told(*row) for row in table.get("told", ()))
        numbers = tuple(_numbers(*row) for row in table.get("numbers", ()))
        offers: list[Any] = table.get("offers", [])
        if type(offers) is not list or len(offers) > OFFERS_MOST:
            raise TypeError(f"{_shown(offers)} is no list of up to {OFFERS_MOST} queues")
        parcel = Parcel(_number(table["upto"]), pieces, rows, told, numbers, tuple(offers))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"a parcel of a link cannot be read: {str(error)[:SHOWN_MOST]}") from error
    if sum(piece.rows for piece in pieces) != (0 if rows is None else rows.num_rows):
        raise ValueError("a parcel of a link has other rows than its head says")
    if rows is not None:
        if not judged:
            _check(rows)
        _check_order(rows, pieces)
    return parcel


def _check(rows: pa.RecordBatch) -> None:
    """ValueError unless these are messages as a log has them."""
    if rows.schema.names != CARRIED.names or rows.schema.types != CARRIED.types:
        raise ValueError(f"a parcel of a link has the columns {rows.schema}, not {CARRIED}")
    rows.validate(full=True)
    for name in ("lsn", "name", "time", "properties", "body"):
        if rows.column(name).null_count:
            raise ValueError(f"a parcel of a link has nulls in the column {name}")
    for name in ("time", "expires_at", "not_before"):
        times = cast("Any", rows.column(name))
        if times.null_count < len(times):
            numbers = times.view(pa.int64()).drop_null().to_numpy()
            for end in (int(numbers.min()), int(numbers.max())):
                if not 0 <= end <= LATEST:
                    wrong = f"{name} is {end} us since 1970, not in the years 1970 to 9999"
                    raise ValueError(f"a parcel of a link cannot be read: {wrong}")


def _check_order(rows: pa.RecordBatch, pieces: Sequence[Piece]) -> None:
    """ValueError unless the messages of each piece ascend."""
    lsns, at = rows.column("lsn").to_numpy(), 0
    for piece in pieces:
        mine = lsns[at : at + piece.rows]
        if mine[0] < 1 or mine[-1] >= LSN_LIMIT or (mine[1:] <= mine[:-1]).any():
            raise ValueError("a parcel of a link has LSNs that do not ascend")
        at += piece.rows


def _shown(value: object) -> str:
    return repr(value)[:SHOWN_MOST]


def _number(value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < LSN_LIMIT:
        raise ValueError(f"{_shown(value)} is no number from {least} to 2^53")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value.encode()) > NAME_MOST:
        raise TypeError(f"{_shown(value)} is no text of up to {NAME_MOST} bytes")
    return value


def _origin(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{_shown(value)} is no origin")
    return value


def _piece(
    path: Sequence[object], vhost: str, exchange: str, blind: Sequence[str], rows: int, at: int = 0,
    letters: object = False,
) -> Piece:  # fmt: skip
    origins = tuple(map(_origin, path)) if isinstance(path, list) else ()
    if not 0 < len(origins) <= PATH_MOST or len(set(origins)) != len(origins):
        raise ValueError(f"{_shown(path)} is no path of up to {PATH_MOST} origins, each once")
    if not isinstance(blind, list):
        raise TypeError(f"{_shown(blind)} is no list of routing keys")
    keys = tuple(map(_text, blind))
    if told_blind(keys) != keys:
        raise ValueError(f"a message has {len(keys)} further routing keys: {BLIND_MOST} of {BLIND_BYTES} bytes may be")
    if not isinstance(letters, bool):
        raise TypeError(f"{_shown(letters)} does not say whether they are dead letters")
    return Piece(origins, _text(vhost), _text(exchange), keys, _number(rows, 1), _number(at), letters)


def _into(pieces: list[Piece], said: object) -> tuple[Piece, ...]:
    """Pieces with the queue of each that was moved to one.  An older version passes over that."""
    queues = cast("dict[str, object]", said) if type(said) is dict else {"": said}
    if not all(at.isdecimal() and int(at) < len(pieces) for at in queues):
        raise TypeError(f"{_shown(said)} does not say which pieces go into which queues")
    for at, queue in queues.items():
        pieces[int(at)] = pieces[int(at)]._replace(into=_text(queue))
    return tuple(pieces)


def _numbers(publisher: str, origin: object, sequence: int, lsn: int, count: int) -> Numbers:
    return Numbers(_text(publisher), _origin(origin), _number(sequence, 1), _number(lsn, 1), _number(count, 1))


def _told(vhost: str, queue: str, numbers: Sequence[object], *claim: object) -> Told:
    if not isinstance(numbers, list) or len(numbers) % 3:
        raise ValueError("spans are an origin and two LSNs each")
    spans = tuple(_span(*numbers[i : i + 3]) for i in range(0, len(numbers), 3))
    if claim == (TWINS,):
        return Told(_text(vhost), _text(queue), spans, twins=True)
    return Told(_text(vhost), _text(queue), spans, _claim(*claim) if claim else None)


def _span(origin: object, first: object, stop: object) -> tuple[int, int, int]:
    if _number(first, 1) >= _number(stop):
        raise ValueError(f"[{_shown(first)}, {_shown(stop)}) is no span")
    return _origin(origin), cast("int", first), cast("int", stop)


def _claim(owner: object, serial: object, why: object) -> Claim:
    """Who owns a message first follows from the queue and from where it was published; it is told as an answer."""
    return Claim(_text(owner), *_came(serial, why))


def _came(serial: object, why: object) -> tuple[int, Why]:
    """How often a message was given to another owner, and why it was the last time."""
    if not isinstance(why, str) or why not in WHYS:
        raise ValueError(f"{_shown(why)} is no reason of a claim")
    if (serial == 0) != (why == "first"):
        raise ValueError(f"{_shown(serial)} is no number of transfers of a claim whose reason is {why}")
    return _number(serial), why


def joined(spans: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The same messages of their origins, each once: what a site tells may overlap, thousands of times."""
    by_origin = dict[int, list[Span]]()
    for origin, *span in spans:
        by_origin.setdefault(origin, []).append((span[0], span[1]))
    return [(origin, *span) for origin, some in sorted(by_origin.items()) for span in merged_spans(some)]


class Heard(NamedTuple):
    """What became of a parcel.

    upto      to acknowledge ...
    lsn       ... as soon as the log here is durable up to this LSN
    faults    what of it has no place here, and why; the rest is here
    """

    upto: int
    lsn: int
    faults: tuple[str, ...] = ()


class Asked(NamedTuple):
    """What a site asks an owner for.

    owner    of the messages
    ask      as bytes, for `answer` there
    to       who is given it: the owner, or where no link leads to that one a site that hands it on
    """

    owner: str
    ask: bytes
    to: str


ASKED_MOST = 10_000
"""Messages that one ask is for at most, however much room consumers have."""

HANDED_ON_MOST = 8
"""Sites that an ask may have passed."""


class Ask(NamedTuple):
    """An ask for messages that their origins call so.

    path     who asks, and who handed it on; empty: it is of who gives it, and for messages of who is asked
    besides  what would do as well, where those are not to be had: as many in all as the spans name
    """

    vhost: str
    queue: str
    spans: tuple[tuple[int, int, int], ...]
    path: tuple[str, ...] = ()
    besides: tuple[tuple[int, int, int], ...] = ()

    @property
    def words(self) -> bytes:
        """A list as bytes of JSON, without what is empty at its end."""
        return orjson.dumps(self[:] if self.besides else self[:4] if self.path else self[:3])


def read_ask(ask: bytes) -> Ask:
    """The inverse of `Ask.words`.  ValueError for what is no ask."""
    none = list[Any]()
    try:
        vhost, queue, spans, *more = cast("list[Any]", orjson.loads(ask))
        path, besides = more if len(more) == 2 else [*more, none] if more else [none, none]
        asked, others = tuple(_span(*span) for span in spans), tuple(_span(*span) for span in besides)
        found = Ask(_text(vhost), _text(queue), asked, tuple(map(_text, path)), others)
        if not isinstance(path, list) or len(set(path)) != len(path) or len(path) > HANDED_ON_MOST:
            raise ValueError(f"{_shown(path)} is no path of up to {HANDED_ON_MOST} sites, each once")
        if (count := sum(stop - first for _, first, stop in (*asked, *others))) > ASKED_MOST:
            raise ValueError(f"it is for {count} messages; one is for {ASKED_MOST} at most")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"an ask of a link cannot be read: {str(error)[:SHOWN_MOST]}") from error
    return found


ENQUIRED_MOST = 1_000
"""Spans of which one enquiry is."""


class Enquiry(NamedTuple):
    """What became of messages that a site found in its log: it takes them for messages of who is asked, by this claim.

    Whoever is asked says what of them is done, whose the rest is, or that it is the asker's.
    declared   or it asks which queues were there before one was heard of that the asker has declared there
    """

    vhost: str
    queue: str
    spans: tuple[tuple[int, int, int], ...]
    serial: int = 0
    why: Why = "first"
    declared: int = 0

    @property
    def words(self) -> bytes:
        """A list as bytes of JSON."""
        return orjson.dumps(self[:])


def read_enquiry(enquiry: bytes) -> Enquiry:
    """The inverse of `Enquiry.words`.  ValueError for what is no enquiry."""
    try:
        vhost, queue, spans, serial, why, declared = cast("list[Any]", orjson.loads(enquiry))
        if len(spans) > ENQUIRED_MOST:
            raise ValueError(f"it is of {len(spans)} spans; one is of {ENQUIRED_MOST} at most")
        asked = tuple(_span(*span) for span in spans)
        if _number(declared) and [span[1:] for span in asked] != [(declared, declared + 1)]:
            raise ValueError(f"it is of a queue declared at {declared}, and its span is not that LSN alone")
        return Enquiry(_text(vhost), _text(queue), asked, *_came(serial, why), declared)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"an enquiry of a link cannot be read: {str(error)[:SHOWN_MOST]}") from error


def parted(rows: pa.RecordBatch, bounds: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Messages, ascending, parted at these LSNs of theirs."""
    lsns = rows.column("lsn").to_numpy()
    cuts = [bound for bound in bounds if lsns[0] < bound <= lsns[-1]]
    if not cuts:
        yield rows
        return
    for low, high in pairwise(sorted({0, len(lsns), *np.searchsorted(lsns, cuts).tolist()})):
        yield rows.slice(low, high - low)
