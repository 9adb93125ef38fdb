"""Messages of a log published again over AMQP, under numbers that the server remembers: whatever is run a second time
brings none of them twice.

They go in transactions, of which all is stored or nothing: so no number is used up by a message behind one that was
refused.  It knows which header goes out, and not why a message is published again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.cli.amqp_link import Broker, Link, broker_at, door_of
from penstock.errors import InvalidArgument, NotFound, ProtocolError, Refused, Unavailable
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.wire.amqp import methods as m

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.records.field_tables import FieldValue

PATIENCE_S = 60.0
BATCH_MESSAGES, BATCH_BYTES = 1000, 4 << 20
"""Of one transaction at most; a larger message goes alone."""


Place: TypeAlias = tuple[str, str, Sequence[str]]
"""Vhost, exchange, and further keys that nobody is told of."""


@dataclass(slots=True)
class Message:
    """One that is to be published again."""

    lsn: int
    sequence: int  # its number
    key: str
    properties: bytes | None
    body: bytes
    expires_at: int = 0  # microseconds; 0: never
    not_before: int = 0
    priority: int | None = None  # where the header says none


class Done(NamedTuple):
    """What became of one transaction."""

    published: int
    unroutable: int  # that nobody takes


class Republisher:
    """Connections to one server, one for each vhost."""

    def __init__(self, client: Client, amqp: str | None) -> None:
        """amqp: where the server's AMQP is, if it cannot be asked.  Unavailable without such a door."""
        address = client.address
        if amqp is None:
            tls, host, port = door_of(client, "amqp", address.host)
            if port is None:
                raise Unavailable("the server has no AMQP door, or does not say where: name it with --amqp")
            self._broker = Broker(host, port, address.user, address.password, "/", tls)
        else:
            self._broker = broker_at(amqp, address.user, address.password)
        self._links: dict[str, Link] = {}

    def publish(self, publisher: str, messages: Iterable[tuple[Message, Place]]) -> Iterator[Done]:
        """Publish messages in order, their numbers rising.

        Refused names the first that the server does not take; those before it are stored, none behind it went out.
        """
        for batch in _batches(messages):
            try:
                yield self._commit(publisher, batch)
            except Refused:
                if len(batch) == 1:
                    raise
                yield from (self._commit(publisher, [one]) for one in batch)  # up to the one that it is about

    def _commit(self, publisher: str, batch: Sequence[tuple[Message, Place]]) -> Done:
        first, (vhost, exchange, _) = batch[0]
        link = self._links.get(vhost) or self._open(vhost)
        before = link.returned
        try:
            for one, place in batch:
                link.publish(place[1], one.key, _header(one, publisher, place[2]), one.body, mandatory=True)
            link.call(m.TxCommit(), m.TxCommitOk)
        except (ProtocolError, NotFound) as error:
            self._links.pop(vhost).close()
            raise Refused(f"LSN {first.lsn}, to {exchange}/{first.key}, is refused: {error}") from error
        unroutable = link.returned - before
        return Done(len(batch) - unroutable, unroutable)

    def _open(self, vhost: str) -> Link:
        link = self._links[vhost] = Link(self._broker.of(vhost), PATIENCE_S)
        link.call(m.TxSelect(), m.TxSelectOk)
        return link

    def close(self) -> None:
        """End the connections."""
        for link in self._links.values():
            link.close()


def _batches(messages: Iterable[tuple[Message, Place]]) -> Iterator[list[tuple[Message, Place]]]:
    """As many as go in one transaction, of one vhost each."""
    held, size = list[tuple[Message, Place]](), 0
    for one, place in messages:
        full = len(held) == BATCH_MESSAGES or size + len(one.body) > BATCH_BYTES
        if held and (full or place[0] != held[0][1][0]):
            yield held
            held, size = [], 0
        held.append((one, place))
        size += len(one.body)
    if held:
        yield held


def _header(message: Message, publisher: str, blind: Sequence[str]) -> bytes:
    """The header as it was, with a number, and with times that are left.

    InvalidArgument where it cannot be read.
    """
    try:
        header = header_codec.decode(message.properties or header_codec.EMPTY)
    except ProtocolError as error:
        raise InvalidArgument(f"the header of LSN {message.lsn} cannot be read: {error}") from error
    headers: dict[str, FieldValue] = dict(header.headers or {})
    if header.user_id is not None:
        headers.setdefault("x-original-user-id", header.user_id)
        header.user_id = None
    for name in ("x-delay", "_AMQ_SCHED_DELIVERY"):
        headers.pop(name, None)
    if message.not_before:
        headers["x-deliver-at"] = message.not_before // 1000
    if message.expires_at:
        header.expiration = str(max(1, (message.expires_at - time.time_ns() // 1000) // 1000))
    if header.priority is None:
        header.priority = message.priority
    if blind:
        headers["BCC"] = list(blind)
    numbered: Mapping[str, FieldValue] = {**headers, "x-publisher": publisher, "x-sequence": message.sequence}
    header.headers = numbered
    return header_codec.encode(header)
