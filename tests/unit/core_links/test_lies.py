"""A site that lies: each field of what it says is something else, and nothing else is touched by it.

What it says is refused whole, or is something that a site may say; no other error comes of it, it takes no time and no
memory that somebody would miss, the log folds to the state, and who is told by the one that it lied to can hear that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.core.links import parcels
from penstock.core.links.carried import Carries
from penstock.core.links.ownership import Claim
from penstock.core.links.parcels import Ask, Numbers, Parcel, Piece, Told
from penstock.core.links.sharing import OFFERED_MOST
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.errors import PenstockError
from penstock.records.chunks import LSN_LIMIT
from penstock.records.schema import CARRIED
from penstock.units import LATEST
from unit.core.world import DURABLE, START
from unit.core_links.test_linking import Linked

TEN_YEARS = 315_360_000_000_000
"""The longest that a queue's setting may be, in microseconds."""

OTHERS: tuple[object, ...] = (
    None, True, -1, 0, 1, 2**31, LSN_LIMIT - 1, LSN_LIMIT, 2**63, 2**64 - 1, 1.5, 1e300, "", "q", "a", "é" * 40_000, [],
    [[]], [0], [None] * 3, list(range(1, 1000)), {}, {"a": 1},
)  # fmt: skip
"""What stands instead of a field."""

SPEED_S = 0.5
"""One lie takes less."""


def rows(*lsns: int, key: str = "q") -> pa.RecordBatch:
    count = len(lsns)
    columns = [pa.array(lsns, pa.int64()), pa.array([key] * count), pa.array([START] * count, CARRIED.field(2).type)]
    columns += [pa.nulls(count, CARRIED.field(place).type) for place in (3, 4, 5)]
    columns += [pa.array([DURABLE] * count, pa.binary()), pa.array([b"{}"] * count, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=CARRIED)


END: dict[str, object] = {"identity": ["/", "q", "distributed", ""], "since": 1, "until": 9}
OFFER: dict[str, object] = {
    "identity": ["/", "q", "distributed", ""], "topic": ["", "q"], "filter": None, "initial_owner": None,
    "logged": True, "sends": True, "barriers": None, "since": 1,
}  # fmt: skip


def parcel(
    at: int, here: int = 11, liar: int = 22, queue: str = "q", offer: dict[str, object] = OFFER, owner: str = "c"
) -> Parcel:
    """Everything that one may say, of two messages of the liar's and one that it hands on.

    here: origin of who is told.  owner: a site that it has met.
    """
    return Parcel(
        at + 9,
        (Piece((liar,), "/", "", (), 2, at), Piece((33, liar), "/", "", ("k",), 1, at + 2)),
        rows(at, at + 1, at, key=queue),
        (
            Told("/", queue, ((here, 1, 3), (33, at + 50, at + 51))),
            Told("/", queue, ((liar, at, at + 1), (33, at + 60, at + 70)), Claim(owner, 3, "transfer")),
            Told("/", queue, ((here, 3, 4),), twins=True),
        ),
        (Numbers("p", liar, at, at, 2), Numbers("p", 33, at, at, 1)),
        (offer,),
    )


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a value of JSON."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*path, key)
        yield from places(one, (*path, key))


def lies(honest: bytes) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """The same words with one thing in them that is another, is not there, or is there twice."""
    for path in places(orjson.loads(honest)):
        for other in (*OTHERS, "gone", "twice"):
            said = orjson.loads(honest)
            inside = said
            for key in path[:-1]:
                inside = inside[key]
            if other == "gone":
                del inside[path[-1]]
            elif other == "twice":
                if not isinstance(inside, list):
                    continue
                inside.insert(path[-1], inside[path[-1]])
            else:
                inside[path[-1]] = other
            yield path, orjson.dumps(said)


@pytest.fixture
def sites() -> Iterator[tuple[Linked, Linked, Linked]]:
    """The one that is lied to, who lies, and an honest one."""
    a, b, c = Linked("a"), Linked("b"), Linked("c")
    for site in (a, b, c):
        site.declare("q")
    for other in (b, c):
        a.core.carries(other.name, [Carries(".*")], ("east", "west", "south"))
        other.core.carries("a", [Carries(".*")])
    a.publish("q", *(b"{}" for _ in range(9)))
    for other in (b, c):
        assert a.link(other, pass_through=("east", "west", "south")) == other.link(a) == []
    yield a, b, c
    a.q().check()
    assert canonical(a.core.durable_state()) == canonical(a.folded())
    a.send(c)
    assert c.core.heard("a") == a.core.last_lsn or c.core.heard("a") > 0
    c.q().check()


def test_each_field_of_a_parcel_may_be_a_lie(sites: tuple[Linked, Linked, Linked]) -> None:
    a, _, _ = sites
    at, refused, said = 1000, 0, 0
    longest: tuple[float, object] = (0.0, None)
    honest = parcel(at)
    for path, head in lies(honest.head):
        before = canonical(a.core.durable_state()) if said % 20 == 0 else None
        began = time.process_time()
        try:
            a.core.hear(a.now, "b", head, honest.rows)
        except (ValueError, PenstockError):
            refused += 1
            if before is not None:
                a.turn()
                assert canonical(a.core.durable_state()) == before, (path, head)
        a.turn()
        longest = max(longest, (time.process_time() - began, path), key=lambda one: one[0])
        said += 1
        if a.core.heard("b") >= honest.upto:  # it was a parcel: the next one is told behind it
            at += 100
            honest = parcel(at)
    assert refused > 500, f"{refused} of {said}"
    assert longest[0] < SPEED_S, longest


@pytest.mark.parametrize("column", ["time", "expires_at", "not_before"])
def test_times_of_a_liar_that_are_no_dates_are_refused(sites: tuple[Linked, ...], column: str) -> None:
    """Of messages that expired before 1970 memory said something else of them than the log; what lies near 2^63 is no
    time that something can be counted from.
    """
    a, _, _ = sites
    a.core.alter_queue(a.now, a.q(), replace(a.q().settings, expiration=TEN_YEARS, message_ttl=TEN_YEARS))
    place = CARRIED.names.index(column)
    moments = (0, 1, 2**52, 2**53, LATEST, LATEST + 1, 2**61, 2**62, 2**63 - 1, -1, -(2**63))
    for at, moment in enumerate(moments, 10):
        times = pa.array([moment] * 2, CARRIED.field(place).type)
        batch = rows(at * 100, at * 100 + 1).set_column(place, CARRIED.field(place), times)
        said = Parcel(at * 100 + 9, (Piece((22,), "/", "", (), 2, at * 100),), batch)
        if not 0 <= moment <= LATEST:
            with pytest.raises(ValueError, match=rf"{column} is {moment} us since 1970, not in the years 1970 to 9999"):
                a.core.hear(a.now, "b", said.head, batch)
        else:
            a.core.hear(a.now, "b", said.head, batch)
        a.turn()
        a.advance(1)


def test_each_field_of_an_ask_and_an_offer_may_be_a_lie(sites: tuple[Linked, Linked, Linked]) -> None:
    a, _, _ = sites
    for _, words in lies(Ask("/", "q", ((11, 1, 3), (22, 5, 6)), ("c",)).words):
        try:
            a.core.answer(a.now, "b", words)
        except (ValueError, PenstockError):
            continue
        finally:
            a.turn()
        a.core.asks(a.now)
        a.turn()
    for number, (_, words) in enumerate(lies(orjson.dumps([OFFER, END]))):
        offers = orjson.loads(words)
        try:
            a.core.share("b", offers)
        except (ValueError, PenstockError):
            continue
        finally:
            a.turn()
        if number % 5:
            continue
        honest = parcel(a.core.heard("b") + 1000)
        a.core.hear(a.now, "b", honest.head, honest.rows)
        a.turn()


def test_what_is_told_thousands_of_times_over_takes_no_longer(sites: tuple[Linked, Linked, Linked]) -> None:
    a, _, _ = sites
    a.publish("q", *(b"{}" for _ in range(20_000)))
    spans = tuple((11, 1 + n % 7, LSN_LIMIT - 1) for n in range(parcels.SPANS_MOST))
    mine = tuple((33, 10 + n, 40_000 - n) for n in range(parcels.SPANS_MOST))
    for told in (
        Told("/", "q", mine, Claim("c", 5, "transfer")), Told("/", "q", spans, Claim("b", 5, "transfer")),
        Told("/", "q", spans, Claim("c", LSN_LIMIT - 1, "yielded")), Told("/", "q", spans, twins=True),
    ):  # fmt: skip
        began = time.process_time()
        a.core.hear(a.now, "b", Parcel(a.core.heard("b") + 1, told=(told,)).head)
        a.turn()
        assert time.process_time() - began < 4 * SPEED_S, told.claim
    assert a.q().available == 0


def test_a_serial_as_high_as_there_is_stays_a_claim_that_may_be_told(sites: tuple[Linked, Linked, Linked]) -> None:
    """The next one was beyond what any site reads: the link of two honest ones was cut off for ever."""
    a, _, c = sites
    high = Claim("a", LSN_LIMIT - 1, "yielded")
    a.core.hear(a.now, "b", Parcel(50, told=(Told("/", "q", ((11, 1, 100),), high),)).head)
    a.turn()
    queue: Queue = a.q()
    assert len(a.core.grant(a.now, queue, [(1, 100)], "c")) > 0
    a.send(c)
    assert c.core.heard("a") > 0


def test_who_has_a_message_first_is_nobodys_to_tell(sites: tuple[Linked, Linked, Linked]) -> None:
    """But as an answer to who has asked, and whoever has not takes nothing from it."""
    a, _, _ = sites
    for claim in (Claim("b", 1, "first"), Claim("b", 0, "transfer")):
        with pytest.raises(ValueError, match="parcel of a link"):
            a.core.hear(a.now, "b", Parcel(50, told=(Told("/", "q", ((11, 1, 100),), claim),)).head)
    ready = a.q().ready
    a.core.hear(a.now, "b", Parcel(50, told=(Told("/", "q", ((11, 1, 100),), Claim("b")),)).head)
    a.turn()
    assert (a.q().ready, a.q().foreign_count) == (ready, 0)


def test_what_is_remembered_of_a_site_is_bounded(sites: tuple[Linked, Linked, Linked]) -> None:
    a, _, _ = sites
    for first in range(0, OFFERED_MOST + 1000, parcels.OFFERS_MOST):
        some = tuple(
            {**OFFER, "identity": ["/", f"q{n}", "distributed", ""]} for n in range(first, first + parcels.OFFERS_MOST)
        )
        a.core.hear(a.now, "b", Parcel(a.core.heard("b") + 1, offers=some).head)
    a.turn()
    assert len(a.core.sharing.offered["b"]) == OFFERED_MOST
    assert a.core.differences("b") == [f"site 'b' has 1001 queues more than the {OFFERED_MOST} that its link may carry"]
    assert a.core.sharing.with_site(a.q().id, "b") is not None, "who was there before is still"
