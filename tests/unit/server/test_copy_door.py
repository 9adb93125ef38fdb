"""The door of a follower, and the places of those who read there."""

from __future__ import annotations

import time

import orjson
import pytest

from bulk_lab import Writer
from penstock.errors import NotLeading, Unavailable
from penstock.history.copied import Copy
from penstock.log.disk import OsDisk
from penstock.server.flight.calls import Caller
from penstock.server.flight.copy_door import STREAMS, CopyDoor
from penstock.server.people.access import Shares, Who

BOB = Caller(Who("bob", ("administrator",)), "", lambda: False)
HIS = STREAMS + 8


def test_places_of_streams_that_stand_still_go_to_others(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.write(20)
    upto, shares = writer.log.durable, Shares()
    door = CopyDoor(OsDisk(writer.folder), lambda: Copy(upto), lambda: NotLeading("another leads"), ["/"], shares)
    ticket = orjson.dumps({"log": {"from": 1, "to": upto + 1}})
    still = [door.get(BOB, ticket) for _ in range(HIS)]
    with pytest.raises(Unavailable, match="allowed"):
        door.get(BOB, ticket)
    now = time.monotonic()
    monkeypatch.setattr("penstock.server.flight.calls.time.monotonic", lambda: now + 61)
    still.append(door.get(BOB, ticket))
    assert shares.of("flight_streams").of("bob") == 1
    door.close()
    assert shares.of("flight_streams").of("bob") == 0
    with pytest.raises(Unavailable, match="begins to lead"):
        list(still.pop()[1])
    with pytest.raises(NotLeading):
        door.get(BOB, ticket)


def test_a_range_that_ends_in_another_log_is_not_this_followers_to_give(writer: Writer) -> None:
    """Two were told to lead apart: what is asked for was written by the other one, in a term that is not known here."""
    writer.write(20)
    upto = writer.log.durable
    copy = Copy(upto, terms=[[1, 1, upto - 8], [129, upto - 3, None]])
    door = CopyDoor(OsDisk(writer.folder), lambda: copy, lambda: NotLeading("another leads"), ["/"], Shares())

    def asked(end: int) -> int:
        return sum(piece.num_rows for piece in door.get(BOB, orjson.dumps({"log": {"from": 1, "to": end}}))[1])

    with pytest.raises(NotLeading, match=f"went on without LSN {upto - 7}"):
        asked(upto - 6)
    assert asked(upto - 7) > 0, "the log went on from there"
    assert asked(upto + 1) > 0, "the term that runs"
