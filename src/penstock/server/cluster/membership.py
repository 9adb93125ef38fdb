"""What a member of a cluster is told of itself, what it asks of the world around it, and what the register says of it.

Why it cannot be what the register says, or is to say, comes as sentences, empty where it can.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from penstock.errors import InvalidArgument
from penstock.records.kinds import FORMAT
from penstock.replication.insync import Times
from penstock.replication.messages import Hello
from penstock.replication.register import ClusterState, Member, decode
from penstock.server.cluster.folder import Known


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

    def swap(self, version: int, value: ClusterState, *, own: bool) -> None:
        """`swapped` follows with the same `own`."""

    def connect(self, address: str) -> None:
        """`connected` or `lost` follows."""

    def call(self, address: str) -> None:
        """Where each has a copy of the register, to tell it: `called` follows."""

    def lead(self, term: int, start: int, before: int) -> None:
        """Have the server open the log, which this has let go, for a term of ours."""

    def committed(self, lsn: int) -> None:
        """Every disk that counts has all up to here."""

    def kept(self, number: int) -> None:
        """Every disk that counts has the files beside the log up to this number."""

    def may_lead(self, until: int) -> None:
        """The server may go on until then, by `now`'s clock; it hears more in time."""

    def end(self, why: str) -> None:
        """The process is over: nothing that was decided and not sent may leave."""


def mine_of(known: Known, terms: Terms) -> Member:
    """What the register is to say of a member."""
    return Member(terms.name, terms.address, FORMAT, known.starts, terms.process)


def not_ours(known: Known, state: ClusterState, origin: int) -> str:
    """Why this folder is of another cluster.  origin: of its log; 0: it has none yet."""
    if known.cluster and state.cluster != known.cluster:
        it = f"the register is of cluster {state.cluster}, and this folder of {known.cluster}"
        return f"{it}: who is to join has another register, or an empty folder"
    if state.format > FORMAT:
        return f"the cluster's log is of format {state.format}, and this version reads formats up to {FORMAT}"
    if origin not in {0, state.origin}:
        it = f"the cluster's log is of origin {state.origin}, and this folder's of {origin}"
        return f"{it}: a member begins with an empty folder, or with what `penstock restore --as-follower` makes"
    return ""


def no_longer(known: Known, state: ClusterState, mine: Member, *, registered: bool) -> str:
    """Why this process cannot be what the register has under its id; empty: it can, or is to be listed.

    registered: the register had it as it is, so whoever it shows now came later
    """
    there = state.members.get(known.member)
    if there is None:
        removed = known.member in state.gone if state.manual else known.listed
        return f"member {known.member} was removed from the cluster" if removed else ""
    if there != mine.numbered(there.number) and (registered or there.starts >= mine.starts):
        return (
            f"the register knows of {there.starts} starts of member {known.member}, and this folder of "
            f"{mine.starts}: it is an older copy, or another process has it; a member with an empty folder joins anew"
        )
    return ""


def listing(hello: Hello, state: ClusterState, here: AbstractSet[str]) -> tuple[str, ClusterState | None]:
    """Why a follower that has a copy of the register has to come again, and what its leader is to keep first.

    here: members that follow, and the leader.  A new one is taken when all others are: so each number is given once
    """
    there = state.members.get(hello.member)
    says = Member(hello.name, hello.address, hello.reads, hello.starts, hello.process)
    known = state.numbering(hello.numbers)
    if hello.term != state.term:
        why = f"this is term {state.term}, and the follower's copy of the register is of term {hello.term}"
        return why, known if known != state else None
    if state.leader is not None and hello.maker != state.members[state.leader].process:
        return f"another process made term {state.term} too, from an older copy of the folder of its leader", None
    if there is not None and there == says.numbered(there.number):
        return "", None
    if hello.member in state.gone:
        return f"{hello.member} was removed from the cluster", None
    if there is not None and there.starts >= hello.starts:
        why = f"{there.name} was started {there.starts} times, and this folder {hello.starts}: it is an older copy"
        return why, None
    if there is None and (away := state.members.keys() - here):
        names = ", ".join(sorted(state.members[one].name for one in away))
        return f"a new member is taken when all others are here: {names} is away, or to be removed", None
    try:
        wanted = known.with_member(hello.member, says)
        decode(wanted.encode())  # what cannot be read back would end every member, this one first
    except InvalidArgument as error:
        return f"it cannot be listed: {error}", None
    return "it is being listed", wanted
