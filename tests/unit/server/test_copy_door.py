"""The door of a follower, and the places of those who read there."""

from __future__ import annotations

import time

import orjson
import pytest

from bulk_lab import Writer
from penstock.errors import NotLeading, Unavailable
from penstock.history.copied import Copy
from penstock.log.disk import OsDisk
from penstock.server.access import Who
from penstock.server.flight.calls import Caller
from penstock.server.flight.copy_door import STREAMS, CopyDoor
from penstock.server.user_shares import Shares

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
