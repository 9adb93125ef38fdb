"""A follower's end of the stream: what the leader says goes into its copy of the log, and what is synced is said.

It acks what its disk has and nothing else, and no term lower than the highest it has heard of, which is in its folder
before its first ack.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from penstock.errors import ProtocolError
from penstock.log import checkpoints
from penstock.ports import File as OpenFile
from penstock.records.kinds import FORMAT
from penstock.replication.messages import (
    SIDE_FILE,
    STAGE,
    STAGES_MOST,
    Ack,
    Beat,
    Begin,
    Bye,
    Bytes,
    File,
    Hello,
    Keep,
    Message,
    Refusal,
    Retire,
    Welcome,
)
from penstock.replication.register import Member as Listed
from penstock.replication.terms import Written
from penstock.server.cluster.troubles import Apart

if TYPE_CHECKING:
    from penstock.log.replica import Replica
    from penstock.server.cluster.log_sending import Link

PART = "side.part"
CHECKPOINTS_KEPT = 2

RaiseTerm = Callable[[int], bool]
"""Keeps a term that is followed, synced; False: the register is of another one."""


class _Part(NamedTuple):
    """A file beside the log of which some has come."""

    file: OpenFile
    name: str
    size: int
    has: int = 0  # bytes
    crc: int = 0  # of these


class Mine(NamedTuple):
    """What a stream says of its member."""

    member: str
    cluster: str
    intact: bool  # its log has all that it ever acked
    terms: Sequence[Written]  # what the register says of its log, or the log itself does
    about: Listed | None = None  # what the register is to say of it, and the term of its copy, where it has one
    term: int = 0
    maker: str = ""  # process that made it
    numbers: int = 0  # the highest one of a member that it has heard of


class Following:
    """One stream from one leader.  After an OSError never again."""

    def __init__(
        self, link: Link, replica: Replica, mine: Mine, raise_term: RaiseTerm, set_intact: Callable[[bool], bool]
    ) -> None:
        """set_intact: keeps, synced, whether the log has all that was acked: before it lacks any, or tells so.

        False: it cannot say so yet
        """
        self.link = link
        self.term = 0  # 0: it was not welcomed yet
        self.beat = 0
        self.leader_last = 0  # LSN of the leader's log, and the committed one
        self.leader_committed = 0
        self.clock = Apart()  # the leader's
        self.refusal = ""
        self._replica = replica
        self._raise_term, self._set_intact = raise_term, set_intact
        self._intact = mine.intact
        self._received = 0
        self._told = 0  # of these, what is acked or will be with the sync that runs
        self._dirty = False  # something came that is to be synced and acked
        self._part: _Part | None = None
        self._files = 0
        self._whole = False  # it has all files beside the log that the leader counts
        self._retire: Retire | None = None
        hello = Hello(mine.cluster, replica.origin, mine.member, FORMAT, mine.intact, tuple(mine.terms), mine.term)
        if (about := mine.about) is not None:
            hello = hello._replace(name=about.name, address=about.address, starts=about.starts, process=about.process)
            hello = hello._replace(numbers=mine.numbers, maker=mine.maker)
        link.send(hello)

    @property
    def level(self) -> bool:
        """Whether this disk has all that the leader had when it last said so."""
        return 0 < self.leader_last <= self._replica.synced

    def heard(self, message: Message) -> None:
        """Take one message.  ProtocolError ends the stream."""
        match message:
            case Bytes():
                self._check(message.term)
                self._replica.write(message.segment, message.offset, message.data)
                self._received += len(message.data)
                self._dirty |= self._replica.worth_a_sync
            case Beat():
                self._check(message.term)
                self.beat = max(self.beat, message.beat)
                self.leader_last, self.leader_committed = message.appended, message.committed
                self.clock.hear(message.wall, time.time_ns() // 1000, time.monotonic_ns() // 1000)
                self._dirty = True
            case Welcome():
                self._welcome(message)
            case File():
                self._check(message.term)
                self._take_file(message)
            case Keep():
                self._check(message.term)
                self._keep(message.stages)
                self._whole = self._dirty = True
            case Retire():
                self._check(message.term)
                if message.floor > message.base + 1:  # before any record the floor is 1
                    raise ProtocolError(f"LSN {message.base} does not stand for all below LSN {message.floor}")
                self._retire = message
            case Refusal() | Bye():
                self.refusal = message.why
                raise ProtocolError(f"the leader says: {message.why}")
            case _:
                raise ProtocolError(f"a leader does not say {type(message).__name__.lower()}")

    def _check(self, term: int) -> None:
        if not self.term or term != self.term:
            raise ProtocolError(f"a message of term {term} came in a stream of term {self.term}")

    def _welcome(self, message: Welcome) -> None:
        if message.format > FORMAT:
            raise ProtocolError(f"the leader writes format {message.format}, and this member reads {FORMAT}")
        if not self._raise_term(message.term):
            raise ProtocolError(f"the leader says that it is of term {message.term}, and the register does not")
        self.term = message.term
        replica = self._replica
        if message.seed:
            self.leader_last = 0  # what it said so far was said of a log that we had a part of
            self._intact = False
            self._set_intact(False)
            replica.empty()
        else:
            replica.cut(message.cut)
        stages = replica.disk.list(STAGE.rstrip("/"))
        names = [f"{STAGE}{name}" for name in stages if SIDE_FILE.fullmatch(f"{STAGE}{name}")]
        self.link.send(Begin(self.term, *replica.place, tuple(names[:STAGES_MOST]), replica.identity))

    def gathered(self) -> None:
        """All that has come was heard: sync it, and say so, later where it is much.

        OSError: the disk is not to be trusted any more.
        """
        if not self._dirty or not self.term or self._replica.syncing:
            return
        self._dirty, self._told = False, self._received
        if not self._replica.begin_sync():
            self._replica.sync()
            self._ack()

    def synced(self) -> None:
        """A sync has ended that was begun: say so, and begin with what came meanwhile."""
        if self.term:
            self._ack()
            self.gathered()

    def _ack(self) -> None:
        synced = self._replica.synced
        if not self._intact and self.level and self._whole:
            self._intact = self._set_intact(True)
        full = self._replica.full
        self.link.send(Ack(self.term, synced, self._told, self._files, self._intact, full))
        retire = self._retire
        if retire is not None and synced >= retire.base:
            self._retire = None
            self._replica.retire(retire.floor)

    def decline(self) -> None:
        """Be no candidate from now on, and say so: the leader need not wait for this one then."""
        self._intact = False
        self._set_intact(False)
        self.link.send(Ack(self.term, self._replica.synced, self._told, self._files, intact=False))

    def _take_file(self, message: File) -> None:
        disk = self._replica.disk
        if not message.offset:
            self._drop_part()
            if PART in disk.list():
                disk.remove(PART)
            self._part = _Part(disk.open(PART, create=True), message.name, message.size)
        part = self._part
        if part is None or part[1:4] != (message.name, message.size, message.offset):
            self._drop_part()
            raise ProtocolError(f"byte {message.offset} of {message.name} came out of turn")
        part.file.pwrite(message.data, message.offset)
        part = self._part = part._replace(has=part.has + len(message.data), crc=crc32c(message.data, part.crc))
        if part.crc != message.crc:
            self._drop_part()
            raise ProtocolError(f"{message.name} is not what was sent")
        if part.has == part.size:
            part.file.sync()
            self._drop_part()
            if message.lsn <= self._replica.synced:  # else it would be ahead of the log
                self._put(message.name)
            self._files += 1
            self._dirty = True

    def _put(self, name: str) -> None:
        """Give what has come whole its name."""
        disk, folder = self._replica.disk, name.rpartition("/")[0]
        if folder:
            disk.mkdir(folder)
        disk.rename(PART, name)
        disk.sync_folder(folder)
        disk.sync_folder()
        for old in checkpoints.lsns(disk)[:-CHECKPOINTS_KEPT]:
            disk.remove(checkpoints.name_of(old))

    def _keep(self, stages: Sequence[str]) -> None:
        """Remove stages that do not count: their rows are in the log, or never will be."""
        disk = self._replica.disk
        for name in disk.list(STAGE.rstrip("/")):
            if f"{STAGE}{name}" not in stages:
                disk.remove(f"{STAGE}{name}")

    def _drop_part(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.file.close()

    def close(self) -> None:
        """The stream ends; what has come of a batch that is not whole is forgotten."""
        self.link.close()
        self._drop_part()
        self._replica.drop_part()
