"""What gathers in an AMQP door for the core: frames in order, and open columns of rows of many clients at their end.

Nothing of one client changes places.  Acks go before messages, as in `gathering`: those of clients that have messages
in the same columns go behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.server.amqp import way

if TYPE_CHECKING:
    from penstock.wire.amqp.events import AckRun

MOST = 1 << 20
"""Bytes beyond which whoever brings more is not read."""


class Bringer(Protocol):
    """One client."""

    number: int
    gathered: int
    """The last columns that have messages of it."""
    acked: int
    """The last columns that have acks of it behind these."""


class Gathered:
    """What one door has for the core."""

    def __init__(self) -> None:
        self._round = 1  # number of the open columns
        self._out = list[bytes]()  # closed frames
        self._size = 0  # bytes of them
        self._before, self._behind, self._messages = way.Acks(), way.Acks(), way.Messages()

    @property
    def full(self) -> bool:
        """Whether more gathers than should."""
        return self._size + self._messages.size > MOST

    def message(self, one: Bringer, place: int, header: bytes, body: bytes) -> None:
        """A message among those of others; place: the number of its target."""
        if one.acked == self._round or len(self._messages) >= way.ROWS_MOST or self._messages.size > MOST:
            self.close()
        self._messages.add(one.number, place, header, body)
        one.gathered = self._round

    def acks(self, one: Bringer, run: AckRun) -> None:
        """Acks among those of others."""
        if one.gathered == self._round:
            one.acked = self._round
            self._behind.add(one.number, run.channel, run.spans)
        else:
            self._before.add(one.number, run.channel, run.spans)

    def add(self, pieces: Sequence[bytes]) -> None:
        """A frame, behind all that came before."""
        self.close()
        self.put(pieces)

    def put(self, pieces: Sequence[bytes]) -> None:
        """The same before the open columns: a name for what is yet to come."""
        self._out += pieces
        self._size += sum(map(len, pieces))

    def close(self) -> None:
        """What comes next comes behind the open columns."""
        if self._messages or self._before or self._behind:
            for columns in (self._before, self._messages, self._behind):
                if len(columns):
                    self.put(columns.pieces())
            self._before, self._behind, self._messages = way.Acks(), way.Acks(), way.Messages()
            self._round += 1

    def take(self) -> list[bytes]:
        """All that has gathered, which begins anew."""
        self.close()
        out, self._out, self._size = self._out, [], 0
        return out
