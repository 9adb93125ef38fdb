"""What a member does while it leads: who copies from it, and what its own server tells it of the log.

It decides nothing: whose ack a confirm waits for is `replication.insync`'s, what one follower gets `log_sending`'s.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from penstock.errors import ProtocolError
from penstock.replication.election import Election, Role
from penstock.replication.messages import Ack, Begin, Bye, Hello, Here, Look, Message, Refusal
from penstock.replication.register import ClusterState
from penstock.server.cluster import folder
from penstock.server.cluster.log_sending import AckTimes, Link, Sending, refused
from penstock.server.cluster.membership import Outside, Terms, listing
from penstock.server.cluster.side_sending import Files
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.ports import Disk
    from penstock.server.cluster.talking import Talks

ANEW = "it is to copy everything anew, once it is dropped"
"""A leader's last word to one whose disk counts still."""

WAITS = "confirms wait for "

CHECKPOINT_WAIT = 500_000
"""Microseconds that a hand-over waits for what lies beside the log to be at the next leader."""


class Followers(ABC):
    """A member's side while it leads: whose disks count, how far each has the log, and what is committed by that."""

    talks: Talks | None = None

    def __init__(self, disk: Disk, known: folder.Known, terms: Terms, outside: Outside, election: Election) -> None:
        self.known = known
        self.terms = terms
        self.disk = disk
        self.election = election
        self.state: ClusterState | None = None  # of the register, as last seen or swapped in
        self.sendings = dict[Link, Sending]()
        self.files = Files(disk)
        self.ack_times = AckTimes()
        self.committed = self.kept = 0
        self.trouble = ""  # why it cannot take part, or could not the last time
        self._out = outside
        self._version = 0
        self._registering = False
        self._strangers = set[Link]()  # who have not said hello
        self._next = ""  # who is to lead, once it has what lies beside the log, or after this time
        self._next_by = 0

    @abstractmethod
    def lost(self, link: Link | None) -> None:
        """A link has ended; None: the leader could not be reached."""

    @abstractmethod
    def _do(self) -> None:
        """Carry out what the rules ask for."""

    def now(self) -> int:
        """Microseconds, on the clock of its times."""
        return self._out.now()

    @property
    def role(self) -> Role:
        return self.election.role

    @property
    def me(self) -> str:
        return self.known.member

    @property
    def intact(self) -> bool:
        """Whether its disk has all that it ever acked."""
        return self.known.intact

    @property
    def leads(self) -> bool:
        """Whether the log is this member's to write."""
        return self.role in (Role.TAKING_OVER, Role.LEADING)

    def _own_swap(self, value: ClusterState) -> None:
        """One that the rules of elections do not ask for."""
        if not self._registering:
            self._registering = True
            self._out.swap(self._version, value, own=True)

    # who copies from it

    def _hello(self, link: Link, message: Message) -> None:
        state, term = self.state, self.known.highest_term
        if isinstance(message, Look):
            link.send(Here(self.me, self.role.value, __version__, time.time_ns() // 1000))
        elif not isinstance(message, Hello):
            raise ProtocolError("a follower begins with hello")
        elif not self.leads or state is None:
            who = "nobody" if state is None or state.leader is None else f"{state.leader} at {state.address}"
            link.send(Refusal(term, f"this member does not lead; {who} does"))
        elif not self.files.log.segment:
            link.send(Refusal(term, "the leader takes over; its log is not open yet"))
        else:
            why = self._list(message, state) if self.talks is not None else ""
            refusal = Refusal(term, why) if why else refused(message, state, term, self.me, self._is_here)
            if self.talks is not None:
                self.talks.tell(link)
            if message.member not in state.members and self.talks is None:
                self._out.read()  # it calls again: the register lists it since, and a beat may be long away
            if refusal is None:
                self._strangers.discard(link)
                self.sendings[link] = sending = Sending(link, message, self.files, state, self.ack_times)
                sending.heard_at = self._out.now()
                if self.election.in_sync is not None and not message.intact:
                    self.election.in_sync.declines(message.member)  # it is no candidate: nothing waits for it
                    self._do()
                self._look_at(sending)
                return
            link.send(refusal)
        self._strangers.discard(link)
        link.close()

    def _is_here(self, member: str) -> bool:
        """Whether a follower's stream is here; one that has said nothing for a while makes room."""
        for link, sending in list(self.sendings.items()):
            if sending.member == member:
                if self._out.now() - sending.heard_at < self.terms.times.ack_timeout:
                    return True
                self.lost(link)
        return False

    def _heard_of_follower(self, sending: Sending, message: Message) -> None:
        now, in_sync = self._out.now(), self.election.in_sync
        sending.heard_at = now
        self.election.hears(sending.member, now)
        match message:
            case Begin():
                sending.begin(message)
            case Ack():
                sending.ack(message)
                if message.synced >= self.files.log.last:
                    sending.level_at = now
                if in_sync is not None:
                    if self.talks is not None and not message.intact:
                        in_sync.declines(sending.member)
                    in_sync.keeps(sending.member, sending.kept)
                    last, newest = self.files.log.last, self.files.beside.newest
                    level = sending.level and message.intact
                    in_sync.acked(sending.member, message.synced, last, now, level=level, newest=newest)
                    self._tell()  # first: clients wait for it
                    self._do()
            case Bye():
                raise ProtocolError(f"{sending.member} says: {message.why}")
            case _:
                raise ProtocolError(f"a follower does not say {type(message).__name__.lower()}")
        self._pump(sending)
        self._name_next()

    def _pump(self, sending: Sending) -> None:
        sending.pump()
        self._look_at(sending)

    def _look_at(self, sending: Sending) -> None:
        """One that has to begin with nothing may do so when it is dropped: until then its disk counts."""
        in_sync = self.election.in_sync
        if not sending.seeds or in_sync is None:
            return
        if sending.member not in in_sync.counted:
            sending.seed()
            return
        sending.link.send(Bye(ANEW))
        sending.link.close()
        self.lost(sending.link)

    def writable(self, link: Link) -> None:
        """A link takes more again."""
        if (sending := self.sendings.get(link)) is not None:
            self._pump(sending)

    def _list(self, hello: Hello, state: ClusterState) -> str:
        """Have a copy of the register tell of a follower.  Why it has to come again; empty: it is there."""
        why, wanted = listing(hello, state, {self.me, *(one.member for one in self.sendings.values())})
        if wanted is not None:
            self._own_swap(wanted)
        return why

    def _say_who_is_waited_for(self) -> None:
        in_sync, state = self.election.in_sync, self.state
        if not self.leads or in_sync is None or state is None:
            return
        away = in_sync.waited_for(self._out.now())
        if names := ", ".join(sorted(state.members[one].name for one in away if one in state.members)):
            self.trouble = (
                f"{WAITS}{names}: in sync, and may be told to lead; to go on without, promote {self.terms.name} itself"
            )
        elif self.trouble.startswith(WAITS):
            self.trouble = ""

    # its own server, while it leads

    def log_at(self, segment: int, end: int, last: int) -> None:
        """The server's log is written up to here."""
        before = self.files.log
        if (segment, end) > (before.segment, before.end):
            self.files.told(before._replace(segment=segment, end=end, last=last))
        for sending in list(self.sendings.values()):
            self._pump(sending)

    def keep(self, name: str, number: int) -> None:
        """A file beside the log has changed, and who may take over must have it."""
        self.files.beside.keep(name, number)
        for sending in list(self.sendings.values()):
            self._pump(sending)
        self._tell()

    def forget(self, name: str) -> None:
        """A file beside the log counts no longer."""
        self.files.beside.forget(name)

    def log_synced(self, lsn: int) -> None:
        """The server's disk has all up to here."""
        if self.election.in_sync is not None:
            self.election.in_sync.synced(lsn)
            self._tell()

    def moves(self, next_lsn: int, floor: int) -> None:
        """The server's loop turns, and its commits move or there are none.  floor: the first LSN that it keeps."""
        if self.leads:
            self.election.progress(next_lsn, self._out.now())
            if floor != self.files.log.floor:
                self.files.told(self.files.log._replace(floor=floor, base=self.files.log.last))
                self.files.look()

    def booted(self, next_lsn: int) -> None:
        """The boot record of our term is committed."""
        self.election.booted(next_lsn, self._out.now())
        self._do()

    def hand_over(self, to: str) -> None:
        """The server has closed its doors, and `to` has acked its last record.

        With the newest checkpoint it need not fold what came since the one before: it is sent first.
        """
        self._next, self._next_by = to, self._out.now() + CHECKPOINT_WAIT
        self._name_next()

    def _name_next(self) -> None:
        """Let it take over, when it is time."""
        to, now = self._next, self._out.now()
        if not to:
            return
        there = [sending.finish() for sending in self.sendings.values() if sending.member == to]
        if all(there) or now >= self._next_by:
            self._next = ""
            self.election.hand_over(to, now)
            self._do()

    @property
    def relief(self) -> str:
        """Who could lead in the place of this leader, were its disk full; empty: nobody could, and confirm."""
        in_sync = self.election.in_sync
        if self.role is not Role.LEADING or in_sync is None:
            return ""
        able = in_sync.relief({one.member for one in self.sendings.values() if not one.full})
        level = {one.member for one in self.sendings.values() if one.level}
        return min(able & level, default="")

    def broken(self, why: str) -> None:
        """The server's log takes no more."""
        self.election.broken(why)
        self._do()

    def _tell(self) -> None:
        in_sync = self.election.in_sync
        if in_sync is not None and in_sync.committed > self.committed and self.leads:
            self.committed = in_sync.committed
            self._out.committed(self.committed)
        if in_sync is not None and self.leads:
            kept = in_sync.kept_by_all(self.files.beside.newest)
            if kept > self.kept:
                self.kept = kept
                self._out.kept(kept)
