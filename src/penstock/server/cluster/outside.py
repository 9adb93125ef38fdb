"""What a member is told of itself, and what it asks for of the world around it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.replication.insync import Times
from penstock.replication.register import ClusterState


class Terms(NamedTuple):
    """How this member takes part."""

    name: str
    address: str  # where others reach its stream
    min_in_sync: int
    times: Times
    process: str = ""  # an id of this process
    local: bool = False  # a confirm waits for the leader's disk alone
    manual: bool = False  # each member has a copy of the register, and a person says who leads
    others: tuple[str, ...] = ()  # with that: where one that has no copy yet, or an old one, asks besides


class Outside(Protocol):
    """What a member asks for.  Nothing of it may call back before it returns, and nothing of it waits."""

    def now(self) -> int:
        """Microseconds on a clock that counts on while the machine is suspended."""
        ...

    def read(self) -> None:
        """Look at the register: `register_read` or nothing follows."""
        ...

    def swap(self, version: int, value: ClusterState, *, own: bool) -> None:
        """`swapped` follows with the same `own`."""
        ...

    def connect(self, address: str) -> None:
        """`connected` or `lost` follows."""
        ...

    def call(self, address: str) -> None:
        """Where each has a copy of the register, to tell it: `called` follows."""
        ...

    def lead(self, term: int, start: int, before: int) -> None:
        """Have the server open the log, which this has let go, for a term of ours."""
        ...

    def committed(self, lsn: int) -> None:
        """Every disk that counts has all up to here."""
        ...

    def kept(self, number: int) -> None:
        """Every disk that counts has the files beside the log up to this number."""
        ...

    def may_lead(self, until: int) -> None:
        """The server may go on until then, by `now`'s clock; it hears more in time."""
        ...

    def end(self, why: str) -> None:
        """The process is over: nothing that was decided and not sent may leave."""
        ...
