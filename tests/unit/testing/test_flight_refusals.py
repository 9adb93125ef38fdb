"""What a Flight call is refused with: a status, our code and a sentence, and nothing of our own code's whereabouts."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import pytest
from pyarrow import flight

from penstock.errors import AccessRefused, NotFound, PenstockError
from penstock.testing import Broker
from penstock.wire.flight.failures import decode_error

Call = Callable[[flight.FlightClient, flight.FlightDescriptor, flight.FlightCallOptions], object]


def put(client: flight.FlightClient, descriptor: flight.FlightDescriptor, options: flight.FlightCallOptions) -> object:
    schema = client.get_schema(descriptor, login("guest")).schema
    writer, reader = client.do_put(descriptor, schema, options)
    writer.done_writing()
    reader.read()
    return writer.close()


CALLS: dict[str, Call] = {
    "GetSchema": lambda client, descriptor, options: client.get_schema(descriptor, options),
    "GetFlightInfo": lambda client, descriptor, options: client.get_flight_info(descriptor, options),
    "ListFlights": lambda client, descriptor, options: list(client.list_flights(b"", options)),
    "ListActions": lambda client, descriptor, options: list(client.list_actions(options)),
    "DoGet": lambda client, descriptor, options: client.do_get(flight.Ticket(descriptor.command), options).read_all(),
    "DoAction": lambda client, descriptor, options: list(client.do_action(flight.Action("health", b"{}"), options)),
    "DoPut": put,
}


def login(password: str, user: str = "guest") -> flight.FlightCallOptions:
    basic = base64.b64encode(f"{user}:{password}".encode())
    return flight.FlightCallOptions(headers=[(b"authorization", b"Basic " + basic)])


def about(name: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(b'{"queue": {"name": "%s"}}' % name.encode())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"queue": [{"name": "q"}]}) as one:
        yield one


@pytest.fixture
def client(broker: Broker) -> Iterator[flight.FlightClient]:
    with flight.connect("grpc://" + broker.flight_url.rpartition("@")[2]) as one:
        yield one


def refused(call: Callable[[], object]) -> tuple[PenstockError, str]:
    """Our error again, and the text as another client has it."""
    with pytest.raises(Exception, match="PS") as caught:
        call()
    text = str(caught.value)
    error = decode_error(text, getattr(caught.value, "extra_info", None))
    assert error is not None
    assert "Traceback" not in text
    assert ".py" not in text
    return error, text


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_password_is_unauthenticated_in_every_call(client: flight.FlightClient, name: str) -> None:
    error, text = refused(lambda: CALLS[name](client, about("q"), login("wrong")))
    assert isinstance(error, AccessRefused)
    assert "Detail: Unauthenticated" in text


@pytest.mark.parametrize("name", ["GetSchema", "GetFlightInfo", "DoGet"])
def test_what_is_not_there_is_told_by_its_code(client: flight.FlightClient, name: str) -> None:
    error, _ = refused(lambda: CALLS[name](client, about("nope"), login("guest")))
    assert isinstance(error, NotFound)
    assert "no queue 'nope'" in str(error)
