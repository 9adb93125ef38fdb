"""Queues and topics as flights: their columns, the ticket that reads them, and what is declared of their bodies."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Container, Mapping

from pyarrow import flight

from penstock.wire.flight.schemas import (
    CONTENT_DEFAULT,
    MESSAGES,
    RECORDS,
    RECORDS_DEFAULT,
    REPLAY_DEFAULT,
    select,
)
from penstock.wire.flight.tickets import command


def parted(declared: Container[tuple[str, str, str]], vhost: str, name: str) -> tuple[str, str]:
    """Exchange and key of a topic as people write it, `K` or `E/K`; a declared one may have a slash in its key."""
    exchange, slash, key = name.partition("/")
    return ("", name) if not slash or (vhost, "", name) in declared else (exchange, key)


def topic_info(told: Mapping[str, object], vhost: str, exchange: str, name: str) -> flight.FlightInfo:
    """What the action `topic` told, as a flight: a topic's messages, or the rows of a view."""
    if told["kind"] == "topic":
        schema, ticket = select(MESSAGES, REPLAY_DEFAULT), command("replay", topic=name, exchange=exchange, vhost=vhost)
    else:
        schema, ticket = select(RECORDS, RECORDS_DEFAULT), command("sow", topic=name, vhost=vhost)
    if isinstance(ddl := told.get("schema"), str):
        schema = schema.with_metadata({"penstock.schema": ddl})
    path = flight.FlightDescriptor.for_path(vhost, "topic", f"{exchange}/{name}" if exchange else name)
    return flight.FlightInfo(schema, path, [flight.FlightEndpoint(flight.Ticket(ticket), [])], -1, -1)


def queue_info(counts: dict[str, object]) -> flight.FlightInfo:
    """A queue as a flight: its ready messages."""
    name, vhost = str(counts["queue"]), str(counts["vhost"])
    ticket = flight.Ticket(command("queue", name=name, vhost=vhost))
    descriptor = flight.FlightDescriptor.for_path(vhost, "queue", name)
    ready = counts["ready"]
    return flight.FlightInfo(
        select(MESSAGES, CONTENT_DEFAULT),
        descriptor,
        [flight.FlightEndpoint(ticket, [])],
        ready if isinstance(ready, int) else -1,
        -1,
    )
