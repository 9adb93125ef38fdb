"""The start of a connection, as pure functions: what the server says of itself, credentials, and the tune negotiation.

Knows no users and checks no password; the machine drives the order of steps.
"""

from __future__ import annotations

import sys

from penstock.errors import ProtocolError
from penstock.records.field_tables import FieldValue, read_table
from penstock.wire.amqp.frames import FRAME_MAX_LEAST, Limits
from penstock.wire.amqp.methods import ConnectionStartOk, ConnectionTuneOk
from penstock.wire.amqp.replies import COMMAND_INVALID, NOT_ALLOWED, SYNTAX_ERROR

MECHANISMS = b"PLAIN AMQPLAIN"

EXTERNAL = "EXTERNAL"
"""The user is who the client's certificate says it is (RFC 4422, appendix A); for clients that showed one."""

TLS_BEGINS = b"\x16\x03"
"""The first bytes of a client that begins a TLS handshake: a record of that type, version 3.x (RFC 8446, 5.1)."""

SPEAKS_TLS = "it speaks TLS, and this port does not"

CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
"""What clients switch features on by; pika, for one, refuses confirms where they are not announced."""


def server_properties(version: str) -> dict[str, FieldValue]:
    """The table of connection.start."""
    return {
        "capabilities": dict[str, FieldValue].fromkeys(CAPABILITIES, True),
        "product": "Penstock",
        "version": version,
        "platform": f"Python {sys.version_info.major}.{sys.version_info.minor}",
        "information": "Apache License 2.0",
        "copyright": "The Penstock authors",
    }


def credentials(start: ConnectionStartOk, *, external: bool = False) -> tuple[str, str]:
    """User and password of start-ok, both empty for EXTERNAL, which must be offered.

    ProtocolError 503 for an unknown mechanism, 502 for a response without form.  What an EXTERNAL response says is not
    looked at, as by RabbitMQ: some clients send the user's name there, others nothing.
    """
    if external and start.mechanism == EXTERNAL:
        return "", ""
    if start.mechanism == "PLAIN":
        parts = start.response.split(b"\x00")  # RFC 4616: an identity to act as (not offered), user, password
        if len(parts) != 3 or parts[0]:
            raise ProtocolError("the PLAIN response is not NUL user NUL password", reply_code=SYNTAX_ERROR)
        try:
            return parts[1].decode(), parts[2].decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("user or password is not UTF-8", reply_code=SYNTAX_ERROR) from error
    if start.mechanism == "AMQPLAIN":  # a field table without its size
        table, _ = read_table(len(start.response).to_bytes(4, "big") + start.response)
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(user, str) or not isinstance(password, str):
            raise ProtocolError("the AMQPLAIN response has no LOGIN and PASSWORD", reply_code=SYNTAX_ERROR)
        return user, password
    raise ProtocolError(f"unknown authentication mechanism '{start.mechanism}'", reply_code=COMMAND_INVALID)


def client_capabilities(properties: dict[str, FieldValue]) -> frozenset[str]:
    """The capabilities a client announces as true."""
    table = properties.get("capabilities")
    if not isinstance(table, dict):
        return frozenset()
    return frozenset(name for name, value in table.items() if value is True)


def check_tune(tuned: ConnectionTuneOk, limits: Limits) -> None:
    """ProtocolError 530 when the client asks for more than was offered, or for frames below the protocol's least."""
    for name, asked, allowed in (
        ("frame_max", tuned.frame_max, limits.frame_max),
        ("channel_max", tuned.channel_max, limits.channel_max),
    ):
        if asked == 0 or asked > allowed:
            shown = "0 (no limit)" if asked == 0 else str(asked)
            raise ProtocolError(
                f"negotiated {name} = {shown} is higher than the maximum allowed value ({allowed})",
                reply_code=NOT_ALLOWED,
            )
    if tuned.frame_max < FRAME_MAX_LEAST:
        raise ProtocolError(
            f"negotiated frame_max = {tuned.frame_max} is lower than the minimum allowed value ({FRAME_MAX_LEAST})",
            reply_code=NOT_ALLOWED,
        )
