"""Counters since the start of the process.  Sessions add to them a run at a time; the metrics read them."""

from __future__ import annotations

from penstock.records.dataclass import dataclass


@dataclass(slots=True)
class Counters:
    """What happened so far, in messages unless the name says otherwise."""

    connections_opened: int = 0  # connections
    connections_closed: int = 0
    channels_opened: int = 0  # channels
    channels_closed: int = 0
    published: int = 0
    published_confirm: int = 0
    confirmed: int = 0
    routed: int = 0
    unroutable_dropped: int = 0
    unroutable_returned: int = 0
    refused: int = 0
    delivered_consume_auto_ack: int = 0
    delivered_consume_manual_ack: int = 0
    delivered_get_auto_ack: int = 0
    delivered_get_manual_ack: int = 0
    get_empty: int = 0  # answers
    redelivered: int = 0
    acknowledged: int = 0

    @property
    def delivered(self) -> int:
        """To consumers and by get."""
        return (
            self.delivered_consume_auto_ack
            + self.delivered_consume_manual_ack
            + self.delivered_get_auto_ack
            + self.delivered_get_manual_ack
        )
