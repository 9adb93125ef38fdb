"""Every method of AMQP 0-9-1 that a RabbitMQ client may send or receive, as typed values, with one codec for all.

A class below is the whole description of its method: the decorator gives the class and method number, the fields their
wire types in order.  `Method.encode` and `decode_method` walk that table.  Knows no frames, channels or meaning.

    payload  u16 class | u16 method | fields in order; adjacent bits share octets, lowest bit first
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar, cast, dataclass_transform

from penstock.errors import InvalidArgument, ProtocolError
from penstock.records.tables import (
    FRAME_ERROR,
    SYNTAX_ERROR,
    FieldValue,
    encode_short_string,
    encode_table,
    read_table,
)
from penstock.wire.amqp.replies import COMMAND_INVALID

Octet: TypeAlias = int
Short: TypeAlias = int
Long: TypeAlias = int
LongLong: TypeAlias = int
Bit: TypeAlias = bool
ShortText: TypeAlias = str
LongBytes: TypeAlias = bytes
FieldTable: TypeAlias = "dict[str, FieldValue]"

_KINDS = {
    "Octet": "B",
    "Short": "H",
    "Long": "I",
    "LongLong": "Q",
    "Bit": "bit",
    "ShortText": "short",
    "LongBytes": "long",
    "FieldTable": "table",
}
"""The wire kind of a field by the name of its type, which annotations carry as text."""

_NUMBERS = {kind: struct.Struct(">" + kind) for kind in "BHIQ"}


def no_fields() -> dict[str, FieldValue]:
    """An empty table."""
    return {}


class Method:
    """What all methods share.  `ID` is class << 16 | method, as it stands in the payload."""

    __slots__ = ()
    ID: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    FROM_CLIENT: ClassVar[bool] = False
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = ()

    def encode(self) -> bytes:
        """The payload of the method frame.  InvalidArgument when a value does not fit its field."""
        out = [self.ID.to_bytes(4, "big")]
        bits = 0
        weight = 1
        for name, kind in self.FIELDS:
            value: object = getattr(self, name)
            if kind == "bit":
                if weight == 256:
                    out.append(bytes((bits,)))
                    bits, weight = 0, 1
                if value:
                    bits |= weight
                weight <<= 1
                continue
            if weight > 1:
                out.append(bytes((bits,)))
                bits, weight = 0, 1
            out.append(_encode_field(kind, value, f"{name} of {self.NAME}"))
        if weight > 1:
            out.append(bytes((bits,)))
        return b"".join(out)


def _encode_field(kind: str, value: Any, what: str) -> bytes:
    if kind == "short":
        return encode_short_string(value, what)
    if kind == "long":
        return len(value).to_bytes(4, "big") + cast("bytes", value)
    if kind == "table":
        return encode_table(value)
    try:
        return _NUMBERS[kind].pack(value)
    except struct.error as error:
        raise InvalidArgument(f"{what} cannot be {value!r}") from error


METHODS: dict[int, type[Method]] = {}
"""Every method by its `ID`."""

_M = TypeVar("_M", bound=Method)


@dataclass_transform(field_specifiers=(field,))
def _method(class_id: int, method_id: int, *, client: bool = False) -> Callable[[type[_M]], type[_M]]:
    """Make a slots dataclass of a class, read its wire types and enter it in `METHODS`."""

    def enter(plain: type[_M]) -> type[_M]:
        made = dataclass(slots=True)(plain)
        first, *rest = re.findall(r"[A-Z][a-z]*", plain.__name__)
        made.ID = class_id << 16 | method_id
        made.NAME = f"{first}.{'-'.join(rest)}".lower()
        made.FROM_CLIENT = client
        made.FIELDS = tuple((name, _KINDS[kind]) for name, kind in plain.__annotations__.items())
        METHODS[made.ID] = made
        return made

    return enter


def decode_method(payload: bytes) -> Method:
    """The method in the payload of a method frame.

    Errors: ProtocolError with reply code 501 when the fields do not fill the payload exactly, 502 for a malformed
    field, 503 for a method that does not exist.
    """
    if len(payload) < 4:
        raise ProtocolError("a method frame without a method", reply_code=FRAME_ERROR)
    made = METHODS.get(int.from_bytes(payload[:4], "big"))
    if made is None:
        numbers = f"{payload[0] << 8 | payload[1]}, {payload[2] << 8 | payload[3]}"
        raise ProtocolError(f"unknown method ({numbers})", reply_code=COMMAND_INVALID)
    values: list[Any] = []
    pos, bits, weight = 4, 0, 256
    try:
        for _, kind in made.FIELDS:
            if kind == "bit":
                if weight == 256:
                    bits, weight = payload[pos], 1
                    pos += 1
                values.append(bits & weight != 0)
                weight <<= 1
                continue
            weight = 256
            if kind == "short":
                end = pos + 1 + payload[pos]
                values.append(payload[pos + 1 : end].decode())
                pos = end
            elif kind == "table":
                table, pos = read_table(payload, pos)
                values.append(table)
            elif kind == "long":
                end = pos + 4 + int.from_bytes(payload[pos : pos + 4], "big")
                values.append(payload[pos + 4 : end])
                pos = end
            else:
                shape = _NUMBERS[kind]
                values.append(shape.unpack_from(payload, pos)[0])
                pos += shape.size
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text of {made.NAME} is not UTF-8", reply_code=SYNTAX_ERROR) from error
    except (IndexError, struct.error) as error:
        raise ProtocolError(f"the arguments of {made.NAME} are cut short", reply_code=FRAME_ERROR) from error
    if pos != len(payload):
        raise ProtocolError(f"the arguments of {made.NAME} do not fill their frame", reply_code=FRAME_ERROR)
    return made(*values)


# connection


@_method(10, 10)
class ConnectionStart(Method):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: FieldTable = field(default_factory=no_fields)
    mechanisms: LongBytes = b"PLAIN AMQPLAIN"
    locales: LongBytes = b"en_US"


@_method(10, 11, client=True)
class ConnectionStartOk(Method):
    client_properties: FieldTable = field(default_factory=no_fields)
    mechanism: ShortText = "PLAIN"
    response: LongBytes = b""
    locale: ShortText = "en_US"


@_method(10, 20)
class ConnectionSecure(Method):
    challenge: LongBytes = b""


@_method(10, 21, client=True)
class ConnectionSecureOk(Method):
    response: LongBytes = b""


@_method(10, 30)
class ConnectionTune(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0  # seconds


@_method(10, 31, client=True)
class ConnectionTuneOk(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0  # seconds


@_method(10, 40, client=True)
class ConnectionOpen(Method):
    virtual_host: ShortText = "/"
    capabilities: ShortText = ""
    insist: Bit = False


@_method(10, 41)
class ConnectionOpenOk(Method):
    known_hosts: ShortText = ""


@_method(10, 50, client=True)
class ConnectionClose(Method):
    reply_code: Short = 200
    reply_text: ShortText = ""
    class_id: Short = 0
    method_id: Short = 0


@_method(10, 51, client=True)
class ConnectionCloseOk(Method):
    pass


@_method(10, 60)
class ConnectionBlocked(Method):
    reason: ShortText = ""


@_method(10, 61)
class ConnectionUnblocked(Method):
    pass


@_method(10, 70, client=True)
class ConnectionUpdateSecret(Method):
    new_secret: LongBytes = b""
    reason: ShortText = ""


@_method(10, 71)
class ConnectionUpdateSecretOk(Method):
    pass


# channel


@_method(20, 10, client=True)
class ChannelOpen(Method):
    out_of_band: ShortText = ""


@_method(20, 11)
class ChannelOpenOk(Method):
    channel_id: LongBytes = b""


@_method(20, 20, client=True)
class ChannelFlow(Method):
    active: Bit = True


@_method(20, 21, client=True)
class ChannelFlowOk(Method):
    active: Bit = True


@_method(20, 40, client=True)
class ChannelClose(Method):
    reply_code: Short = 200
    reply_text: ShortText = ""
    class_id: Short = 0
    method_id: Short = 0


@_method(20, 41, client=True)
class ChannelCloseOk(Method):
    pass


# exchange


@_method(40, 10, client=True)
class ExchangeDeclare(Method):
    ticket: Short = 0
    exchange: ShortText = ""
    type: ShortText = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@_method(40, 11)
class ExchangeDeclareOk(Method):
    pass


@_method(40, 20, client=True)
class ExchangeDelete(Method):
    ticket: Short = 0
    exchange: ShortText = ""
    if_unused: Bit = False
    nowait: Bit = False


@_method(40, 21)
class ExchangeDeleteOk(Method):
    pass


@_method(40, 30, client=True)
class ExchangeBind(Method):
    ticket: Short = 0
    destination: ShortText = ""
    source: ShortText = ""
    routing_key: ShortText = ""
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@_method(40, 31)
class ExchangeBindOk(Method):
    pass


@_method(40, 40, client=True)
class ExchangeUnbind(Method):
    ticket: Short = 0
    destination: ShortText = ""
    source: ShortText = ""
    routing_key: ShortText = ""
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@_method(40, 51)  # 51, not 41: RabbitMQ's number, which every client uses
class ExchangeUnbindOk(Method):
    pass


# queue


@_method(50, 10, client=True)
class QueueDeclare(Method):
    ticket: Short = 0
    queue: ShortText = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@_method(50, 11)
class QueueDeclareOk(Method):
    queue: ShortText = ""
    message_count: Long = 0
    consumer_count: Long = 0


@_method(50, 20, client=True)
class QueueBind(Method):
    ticket: Short = 0
    queue: ShortText = ""
    exchange: ShortText = ""
    routing_key: ShortText = ""
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@_method(50, 21)
class QueueBindOk(Method):
    pass


@_method(50, 30, client=True)
class QueuePurge(Method):
    ticket: Short = 0
    queue: ShortText = ""
    nowait: Bit = False


@_method(50, 31)
class QueuePurgeOk(Method):
    message_count: Long = 0


@_method(50, 40, client=True)
class QueueDelete(Method):
    ticket: Short = 0
    queue: ShortText = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


@_method(50, 41)
class QueueDeleteOk(Method):
    message_count: Long = 0


@_method(50, 50, client=True)
class QueueUnbind(Method):
    ticket: Short = 0
    queue: ShortText = ""
    exchange: ShortText = ""
    routing_key: ShortText = ""
    arguments: FieldTable = field(default_factory=no_fields)


@_method(50, 51)
class QueueUnbindOk(Method):
    pass


# basic


@_method(60, 10, client=True)
class BasicQos(Method):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_qos: Bit = False


@_method(60, 11)
class BasicQosOk(Method):
    pass


@_method(60, 20, client=True)
class BasicConsume(Method):
    ticket: Short = 0
    queue: ShortText = ""
    consumer_tag: ShortText = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@_method(60, 21)
class BasicConsumeOk(Method):
    consumer_tag: ShortText = ""


@_method(60, 30, client=True)
class BasicCancel(Method):
    consumer_tag: ShortText = ""
    nowait: Bit = False


@_method(60, 31, client=True)
class BasicCancelOk(Method):
    consumer_tag: ShortText = ""


@_method(60, 40, client=True)
class BasicPublish(Method):
    ticket: Short = 0
    exchange: ShortText = ""
    routing_key: ShortText = ""
    mandatory: Bit = False
    immediate: Bit = False


@_method(60, 50)
class BasicReturn(Method):
    reply_code: Short = 0
    reply_text: ShortText = ""
    exchange: ShortText = ""
    routing_key: ShortText = ""


@_method(60, 60)
class BasicDeliver(Method):
    consumer_tag: ShortText = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortText = ""
    routing_key: ShortText = ""


@_method(60, 70, client=True)
class BasicGet(Method):
    ticket: Short = 0
    queue: ShortText = ""
    no_ack: Bit = False


@_method(60, 71)
class BasicGetOk(Method):
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortText = ""
    routing_key: ShortText = ""
    message_count: Long = 0


@_method(60, 72)
class BasicGetEmpty(Method):
    cluster_id: ShortText = ""


@_method(60, 80, client=True)
class BasicAck(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@_method(60, 90, client=True)
class BasicReject(Method):
    delivery_tag: LongLong = 0
    requeue: Bit = True


@_method(60, 100, client=True)
class BasicRecoverAsync(Method):
    requeue: Bit = False


@_method(60, 110, client=True)
class BasicRecover(Method):
    requeue: Bit = False


@_method(60, 111)
class BasicRecoverOk(Method):
    pass


@_method(60, 120, client=True)
class BasicNack(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


# confirm and tx


@_method(85, 10, client=True)
class ConfirmSelect(Method):
    nowait: Bit = False


@_method(85, 11)
class ConfirmSelectOk(Method):
    pass


@_method(90, 10, client=True)
class TxSelect(Method):
    pass


@_method(90, 11)
class TxSelectOk(Method):
    pass


@_method(90, 20, client=True)
class TxCommit(Method):
    pass


@_method(90, 21)
class TxCommitOk(Method):
    pass


@_method(90, 30, client=True)
class TxRollback(Method):
    pass


@_method(90, 31)
class TxRollbackOk(Method):
    pass
