"""Every method of AMQP 0-9-1 that a RabbitMQ client may send or receive, as typed values.

A class below is the whole description of its method; `frames` encodes and decodes it.
"""

from __future__ import annotations

from dataclasses import field

from penstock.wire.amqp.frames import (
    METHODS,
    Bit,
    FieldTable,
    Long,
    LongBytes,
    LongLong,
    Method,
    Octet,
    Short,
    ShortText,
    decode_method,
    method,
    no_fields,
)

__all__ = ["METHODS", "Method", "decode_method"]

# connection


@method(10, 10)
class ConnectionStart(Method):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: FieldTable = field(default_factory=no_fields)
    mechanisms: LongBytes = b"PLAIN AMQPLAIN"
    locales: LongBytes = b"en_US"


@method(10, 11, client=True)
class ConnectionStartOk(Method):
    client_properties: FieldTable = field(default_factory=no_fields)
    mechanism: ShortText = "PLAIN"
    response: LongBytes = b""
    locale: ShortText = "en_US"


@method(10, 20)
class ConnectionSecure(Method):
    challenge: LongBytes = b""


@method(10, 21, client=True)
class ConnectionSecureOk(Method):
    response: LongBytes = b""


@method(10, 30)
class ConnectionTune(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0  # seconds


@method(10, 31, client=True)
class ConnectionTuneOk(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0  # seconds


@method(10, 40, client=True)
class ConnectionOpen(Method):
    virtual_host: ShortText = "/"
    capabilities: ShortText = ""
    insist: Bit = False


@method(10, 41)
class ConnectionOpenOk(Method):
    known_hosts: ShortText = ""


@method(10, 50, client=True)
class ConnectionClose(Method):
    reply_code: Short = 200
    reply_text: ShortText = ""
    class_id: Short = 0
    method_id: Short = 0


@method(10, 51, client=True)
class ConnectionCloseOk(Method): ...


@method(10, 60)
class ConnectionBlocked(Method):
    reason: ShortText = ""


@method(10, 61)
class ConnectionUnblocked(Method): ...


@method(10, 70, client=True)
class ConnectionUpdateSecret(Method):
    new_secret: LongBytes = b""
    reason: ShortText = ""


@method(10, 71)
class ConnectionUpdateSecretOk(Method): ...


# channel


@method(20, 10, client=True)
class ChannelOpen(Method):
    out_of_band: ShortText = ""


@method(20, 11)
class ChannelOpenOk(Method):
    channel_id: LongBytes = b""


@method(20, 20, client=True)
class ChannelFlow(Method):
    active: Bit = True


@method(20, 21, client=True)
class ChannelFlowOk(Method):
    active: Bit = True


@method(20, 40, client=True)
class ChannelClose(Method):
    reply_code: Short = 200
    reply_text: ShortText = ""
    class_id: Short = 0
    method_id: Short = 0


@method(20, 41, client=True)
class ChannelCloseOk(Method): ...


# exchange


@method(40, 10, client=True)
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


@method(40, 11)
class ExchangeDeclareOk(Method): ...


@method(40, 20, client=True)
class ExchangeDelete(Method):
    ticket: Short = 0
    exchange: ShortText = ""
    if_unused: Bit = False
    nowait: Bit = False


@method(40, 21)
class ExchangeDeleteOk(Method): ...


@method(40, 30, client=True)
class ExchangeBind(Method):
    ticket: Short = 0
    destination: ShortText = ""
    source: ShortText = ""
    routing_key: ShortText = ""
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@method(40, 31)
class ExchangeBindOk(Method): ...


@method(40, 40, client=True)
class ExchangeUnbind(Method):
    ticket: Short = 0
    destination: ShortText = ""
    source: ShortText = ""
    routing_key: ShortText = ""
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@method(40, 51)  # 51, not 41: RabbitMQ's number, which every client uses
class ExchangeUnbindOk(Method): ...


# queue


@method(50, 10, client=True)
class QueueDeclare(Method):
    ticket: Short = 0
    queue: ShortText = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@method(50, 11)
class QueueDeclareOk(Method):
    queue: ShortText = ""
    message_count: Long = 0
    consumer_count: Long = 0


@method(50, 20, client=True)
class QueueBind(Method):
    ticket: Short = 0
    queue: ShortText = ""
    exchange: ShortText = ""
    routing_key: ShortText = ""
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@method(50, 21)
class QueueBindOk(Method): ...


@method(50, 30, client=True)
class QueuePurge(Method):
    ticket: Short = 0
    queue: ShortText = ""
    nowait: Bit = False


@method(50, 31)
class QueuePurgeOk(Method):
    message_count: Long = 0


@method(50, 40, client=True)
class QueueDelete(Method):
    ticket: Short = 0
    queue: ShortText = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


@method(50, 41)
class QueueDeleteOk(Method):
    message_count: Long = 0


@method(50, 50, client=True)
class QueueUnbind(Method):
    ticket: Short = 0
    queue: ShortText = ""
    exchange: ShortText = ""
    routing_key: ShortText = ""
    arguments: FieldTable = field(default_factory=no_fields)


@method(50, 51)
class QueueUnbindOk(Method): ...


# basic


@method(60, 10, client=True)
class BasicQos(Method):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_qos: Bit = False


@method(60, 11)
class BasicQosOk(Method): ...


@method(60, 20, client=True)
class BasicConsume(Method):
    ticket: Short = 0
    queue: ShortText = ""
    consumer_tag: ShortText = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=no_fields)


@method(60, 21)
class BasicConsumeOk(Method):
    consumer_tag: ShortText = ""


@method(60, 30, client=True)
class BasicCancel(Method):
    consumer_tag: ShortText = ""
    nowait: Bit = False


@method(60, 31, client=True)
class BasicCancelOk(Method):
    consumer_tag: ShortText = ""


@method(60, 40, client=True)
class BasicPublish(Method):
    ticket: Short = 0
    exchange: ShortText = ""
    routing_key: ShortText = ""
    mandatory: Bit = False
    immediate: Bit = False


@method(60, 50)
class BasicReturn(Method):
    reply_code: Short = 0
    reply_text: ShortText = ""
    exchange: ShortText = ""
    routing_key: ShortText = ""


@method(60, 60)
class BasicDeliver(Method):
    consumer_tag: ShortText = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortText = ""
    routing_key: ShortText = ""


@method(60, 70, client=True)
class BasicGet(Method):
    ticket: Short = 0
    queue: ShortText = ""
    no_ack: Bit = False


@method(60, 71)
class BasicGetOk(Method):
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortText = ""
    routing_key: ShortText = ""
    message_count: Long = 0


@method(60, 72)
class BasicGetEmpty(Method):
    cluster_id: ShortText = ""


@method(60, 80, client=True)
class BasicAck(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@method(60, 90, client=True)
class BasicReject(Method):
    delivery_tag: LongLong = 0
    requeue: Bit = True


@method(60, 100, client=True)
class BasicRecoverAsync(Method):
    requeue: Bit = False


@method(60, 110, client=True)
class BasicRecover(Method):
    requeue: Bit = False


@method(60, 111)
class BasicRecoverOk(Method): ...


@method(60, 120, client=True)
class BasicNack(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


# confirm and tx


@method(85, 10, client=True)
class ConfirmSelect(Method):
    nowait: Bit = False


@method(85, 11)
class ConfirmSelectOk(Method): ...


@method(90, 10, client=True)
class TxSelect(Method): ...


@method(90, 11)
class TxSelectOk(Method): ...


@method(90, 20, client=True)
class TxCommit(Method): ...


@method(90, 21)
class TxCommitOk(Method): ...


@method(90, 30, client=True)
class TxRollback(Method): ...


@method(90, 31)
class TxRollbackOk(Method): ...
