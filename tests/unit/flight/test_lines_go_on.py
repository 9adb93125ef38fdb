"""A call that is refused gives its line back by itself: the next call has it, and none waits to be collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_house import FlightHouse, house_with_a_queue
from penstock.server.flight.remote_call import Call

SCHEMA = pa.schema([("body", pa.binary())])
COMMAND = flight.FlightDescriptor.for_command(b'{"none": {}}')


def put(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    writer, _ = client.do_put(COMMAND, SCHEMA, options)
    writer.close()


def exchange(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    writer, reader = client.do_exchange(COMMAND, options)
    writer.begin(SCHEMA)
    writer.done_writing()
    reader.read_all()


REFUSED: dict[str, Callable[[flight.FlightClient, flight.FlightCallOptions], object]] = {
    "get": lambda client, options: client.do_get(flight.Ticket(b'{"log": {"columns": ["none"]}}'), options).read_all(),
    "action": lambda client, options: list(client.do_action(flight.Action("purge", b'{"queue": "none"}'), options)),
    "listing": lambda client, options: list(client.list_flights(cast("Any", b"none"), options)),
    "info": lambda client, options: client.get_flight_info(COMMAND, options),
    "schema": lambda client, options: client.get_schema(COMMAND, options),
    "put": put,
    "exchange": exchange,
}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with house_with_a_queue(tmp_path) as house:
        yield house


@pytest.mark.parametrize("kind", REFUSED)
def test_who_is_refused_leaves_no_line_behind(house: FlightHouse, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    left, collected = list[str](), Call.__del__

    def late(call: Any) -> None:
        if not call._closed:
            left.append(kind)
        collected(call)

    with flight.FlightClient(f"grpc://127.0.0.1:{house.port}") as client:
        token = client.authenticate_basic_token("guest", "guest")
        options = flight.FlightCallOptions(headers=[token])
        monkeypatch.setattr(Call, "__del__", late)
        for _ in range(5):
            with pytest.raises(pa.ArrowException):
                REFUSED[kind](client, options)
    assert left == []
