"""The server's side of its member: it starts that process, waits until it is to lead, and then says what its log does.

    wait -> the folder is ours -> log opened: `attach` -> boot record committed: `booted` -> ... -> it ends, or we do

What the log has written and synced is told in packets, each of which says all that the ones before it said: one that
finds no room is told again later.  What is committed comes back, and is durable from then on.  When the member is over
the process ends at once: memory that believed in leading is not trusted, and nothing that it decided may leave.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import orjson

from penstock.core.state.durable import Reign
from penstock.errors import NotLeading, PreconditionFailed
from penstock.history.copied import Copy
from penstock.replication.messages import ARCHIVE, SIDE_FILE, STAGE
from penstock.replication.register import ClusterState, decode
from penstock.server import saying
from penstock.server.alarms import SETTINGS, not_in_force
from penstock.server.base.loading import SPARING, begun, end_children, ended, environment
from penstock.server.cluster.log_sending import Hold
from penstock.server.cluster.packets import LOST, ONE, THREE, TWO, boottime, packets
from penstock.server.cluster.registers import MANUAL, changed, register_at
from penstock.server.cluster.troubles import FullDisk, Troubles, news, out_of_sync, way_out
from penstock.server.doors.door_process import begin_no_more
from penstock.server.people.accounts import FILE as ACCOUNTS

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.catalog import SegmentInfo
    from penstock.log.log import Log
    from penstock.server.cluster.shared_archive import SharedArchive
    from penstock.server.engine import Engine

BEAT_S = 0.1
LOOK_S = 0.05
HAND_OVER_S = 3.0
OPENING_S = 60.0
"""A log that is being opened may stand so long: a step of that is larger than any commit, and the disk may be slow."""
LOCAL = (
    "warning: cluster.confirm = 'local': a confirm means this disk alone; when another member takes over, what it had "
    "not copied yet is lost, and kept in cut/ of this folder"
)


class Turn(NamedTuple):
    """This server is to lead."""

    reign: Reign
    start: int  # its first LSN


class Cluster:
    """A server's membership.  All belongs to the loop's thread, but `_written`."""

    lost = LOST

    def __init__(self, settings: Settings, say: Callable[[str], object], share: Callable[[], float]) -> None:
        """share: how much of the opening of the log is done."""
        assert settings.cluster is not None
        self.settings = settings.cluster
        self.known: dict[str, Any] = {"role": "joining"}  # what the member says of itself and of others
        self.turn: Turn | None = None
        self.until = 0  # by `boottime`: nothing may leave later
        self._name, self._data = settings.server.name, str(Path(settings.server.data).absolute())
        self._say = say
        self._late = dict[bytes, bytes]()
        self._lock = threading.Lock()
        self._sock: socket.socket
        self._process: subprocess.Popen[bytes] | None = None
        self._called: asyncio.Future[Turn]
        self._log: Log | None = None
        self._engine: Engine | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._share, self._opened, self._opened_at = share, -1.0, 0.0  # how far the opening was, and when it came there
        self._leaving = False
        self._next = ""  # who is to lead now
        self.switched = ""  # whom an operator wants to lead
        self.on_switch: Callable[[], object] = int  # told when there is one: the server closes its doors and hands over
        self.on_word: Callable[[], object] = int  # told, while this server follows, that its member has said something
        self.kept_stages: Sequence[str] = ()  # of what was decided before this server led
        self._numbers = 0
        self._stages = set[str]()  # that others were told to have: a stage never changes
        self._in_order = deque[bytes]()  # packets of which each says something of its own
        self._waiting = deque[tuple[int, Callable[[], object]]]()  # who waits for files to be everywhere
        self._handed = asyncio.Event()  # the register names it, or it leads already
        self._role = ""
        self._troubles = Troubles()
        self.left_out: Sequence[str] = ()  # of the settings file, were this follower to take over
        self.low: Mapping[str, str] = {}  # of this follower's disk: alarms by name, with the reason
        self._full = FullDisk(settings.cluster.stall)
        self._hold = Hold(settings.cluster.hold.bytes, settings.cluster.hold.age)

    # its start

    async def lead(self) -> Turn:
        """Start the member, and return when this server is to lead; until then the folder is the member's."""
        loop = asyncio.get_running_loop()
        self._called = loop.create_future()
        self._start()
        self._sock.setblocking(False)
        loop.add_reader(self._sock, self._hear)
        return await self._called

    def _start(self) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine = os.pidfd_open(os.getpid())
        try:
            # it needs next to nothing of Arrow, whose own pool would take 4 MiB all the same
            env = {**SPARING, **environment()}
            self._process = begun("penstock.server.cluster.process", (theirs, mine), env=env)
        finally:
            theirs.close()
            os.close(mine)
        chosen = self.settings
        assert chosen.listen is not None
        self._sock.send(
            orjson.dumps(
                {
                    "data": self._data, "name": self._name, "register": chosen.registry, "listen": list(chosen.listen),
                    "advertise": chosen.advertise or str(chosen.listen), "min_in_sync": chosen.min_in_sync,
                    "lease": chosen.lease, "ack_timeout": chosen.ack_timeout, "stall": chosen.stall,
                    "secret": chosen.secret.get_secret_value(), "local": chosen.confirm == "local", "tls": chosen.tls,
                    "members": chosen.members,
                }
            )
        )  # fmt: skip

    def close(self) -> None:
        self._leaving = True
        if self._timer is not None:
            self._timer.cancel()
        if self._process is None:
            return
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()
        ended(self._process)

    def shown(self) -> dict[str, object]:
        """What probes are told, who have no login: no names, no addresses."""
        names = ("role", "term", "confirm", "enough", "lsn", "committed_lsn", "trouble", "connected")
        counts: dict[str, object] = {
            name: len(self.known[name]) for name in ("members", "in_sync") if name in self.known
        }
        return {name: self.known[name] for name in names if name in self.known} | counts

    def out_of_sync(self) -> str:
        """Who is not in sync, while this server leads; empty: all are."""
        return out_of_sync(self.known)

    @property
    def alarms(self) -> Mapping[str, str]:
        """Of a server that follows: those that are set, by name, with the reason."""
        return {**self.low, **({SETTINGS: not_in_force(self.left_out)} if self.left_out else {})}

    def refuse_to_follow(self) -> None:
        """NotLeading, of a member that follows."""
        if self.turn is None:
            raise self.refusal()

    def refusal(self) -> NotLeading:
        """Of a member that follows: where to go instead."""
        name, address = self._leader()
        where = f"{name} leads, whose stream is at {address}" if name else "nobody leads now"
        if "members" not in self.known:  # its member has not seen the register yet
            where = "it has not heard yet who leads"
        return NotLeading(f"this server follows: {where}")

    def copy(self) -> Copy | None:
        """How far the copy of the log may be read while this server follows; None: it is not level with any leader's.

        Any thread.
        """
        known = self.known
        if self.turn is not None or known["role"] != "following" or not known.get("connected"):
            return None
        upto = min(known["synced_lsn"], known.get("committed_lsn", 0))
        if upto <= 0:
            return None
        return Copy(upto, (known.get("term"), known.get("leader"), known["cut_records"]), known.get("terms", ()))

    def _leader(self) -> tuple[str, str]:
        """Name and address; empty: nobody leads, as far as is known."""
        about = self.known.get("members", {}).get(self.known.get("leader"), {})
        return about.get("name", ""), about.get("address", "")

    # while it leads

    def attach(self, log: Log, engine: Engine) -> None:
        """The log is open: from now on it waits for the cluster.

        Nothing leaves the engine that was decided before a sleep in which the lease ran out.
        """
        self._log, self._engine = log, engine
        engine.copies = self
        self._follow_format()
        decided, data = engine.core.decided.values(), Path(self._data)
        self.kept_stages = [f"{STAGE}{part.stage}.arrows" for state in decided for part in state.parts]
        stages = [name for one in (data / STAGE).glob("*") if SIDE_FILE.fullmatch(name := f"{STAGE}{one.name}")]
        self.keep([*sorted(stages), *(one for one in (ACCOUNTS, ARCHIVE) if (data / one).exists())])
        log.wait_for_copies(self._written, self._synced)
        engine.copied = self._copied
        engine.before_turn.append(self._check)
        engine.on_broken.append(self._broken)

    def _follow_format(self) -> None:
        """What not all members can read yet is not written before `cluster finalize`."""
        if self._engine is not None and "format" in self.known:
            self._engine.core.write_as(self.known["format"])

    def _copied(self, segment: SegmentInfo) -> bool:
        """Whether no member is waited for that lacks it.  Any thread."""
        return self._log is None or self._hold.lets_go(segment, self._log.segments(), boottime())

    def shared_archive(self) -> SharedArchive:
        """Of this server, which leads."""
        from penstock.server.cluster.shared_archive import ByHand, SharedArchive

        assert self.turn is not None

        def found(term: int) -> None:
            self._tell(b"A", ONE.pack(term))

        by_hand = None
        if self.settings.registry == MANUAL:
            state = decode(register_at(MANUAL, self._data).read().value)
            by_hand = ByHand(state.lacks, self._copied, found)
        return SharedArchive(self.keep, Path(self._data), self.turn.reign.term, by_hand)

    # files beside the log that who may take over must have

    def keep(self, names: Sequence[str], then: Callable[[], object] | None = None) -> None:
        """These files of the data folder are synced here: have them copied, and call back when all who count have them.

        And all that they were to have before.
        """
        for name in names:
            if name in self._stages:
                continue
            if name.startswith(STAGE):
                self._stages.add(name)
            self._numbers += 1
            self._in_order.append(b"K" + ONE.pack(self._numbers) + name.encode())
        if then is not None:
            self._waiting.append((self._numbers, then))
        self._tell_in_order()

    def forget(self, names: Sequence[str]) -> None:
        """What these files bring is durable in the log, or never will be: others remove them."""
        self._stages.difference_update(names)
        self._in_order.extend(b"D" + name.encode() for name in names)
        self._tell_in_order()

    async def keep_accounts(self) -> None:
        """Return when all who may take over have the file of users and vhosts as it is now."""
        there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done() -> None:
            if not there.done():
                there.set_result(None)

        self.keep([ACCOUNTS], done)
        await there

    def _tell_in_order(self) -> None:
        while self._in_order:
            try:
                self._sock.send(self._in_order[0])
            except BlockingIOError:
                return
            except OSError:
                pass  # it has gone: the loop hears of it
            self._in_order.popleft()

    def way_out(self) -> str:
        """What becomes of this leader while its disk is full."""
        return way_out(self.known, self.settings.stall)

    def booted(self) -> None:
        """The boot record is committed."""
        assert self._engine is not None
        self._tell(b"B", ONE.pack(self._engine.core.next_lsn))

    def _broken(self, why: str) -> None:
        """The log takes no more: another one has to lead."""
        self._tell(b"X", why.encode()[:1000])

    def switch(self, member: str | None) -> Mapping[str, object]:
        """Hand over to this one, or to any that is level: once the doors are closed.

        PreconditionFailed where it could not take over at once.
        """
        known = self.known
        members: Mapping[str, Mapping[str, str]] = known.get("members", {})
        followers: Mapping[str, Mapping[str, object]] = known.get("followers", {})
        level = [one for one, about in followers.items() if one in known["in_sync"] and about["level"]]
        names = {key: one["name"] for key, one in members.items()}
        wanted = [one for one in level if member in {None, one, names.get(one)}]
        if self._log is None or known.get("role") != "leading":
            raise PreconditionFailed("this server does not lead")
        if not wanted:
            there = ", ".join(names.get(one, one) for one in level) or "nobody"
            raise PreconditionFailed(f"{member or 'no other member'} is in sync and level; {there} could take over now")
        self.switched = wanted[0]
        asyncio.get_running_loop().call_later(LOOK_S, self.on_switch)  # the answer goes first
        return {
            "from": known["member"], "to": self.switched, "name": names.get(self.switched, ""), "term": known["term"],
        }  # fmt: skip

    async def change(self, work: Callable[[ClusterState], ClusterState]) -> ClusterState:
        """The register after a change.  Unavailable, and what `work` raises."""
        register = register_at(self.settings.registry, self._data, self.settings.lease)
        return await asyncio.to_thread(changed, register, work)

    async def hand_over(self) -> str:
        """The log is closed: let a follower that has all of it lead at once.  Its id; empty: there is none.

        This waits until the register names it, or the member has ended because it leads already: both are told.  That
        has a time of its own: the member may have to wait a moment before it names the next one.
        """
        loop = asyncio.get_running_loop()
        assert self._log is not None
        if self.settings.registry == MANUAL and not self.switched:
            return ""  # a person says who leads
        last, until = self._log.appended, loop.time() + HAND_OVER_S
        while loop.time() < until:
            self._tell_late()
            in_sync = set(self.known.get("in_sync", ()))
            if in_sync <= {self.known["member"]}:
                return ""  # whoever came now could not be in sync before this process is gone
            followers = self.known.get("followers", {})
            level = [one for one, about in followers.items() if about["acked_lsn"] >= last and one in in_sync]
            if self.switched in level or (level and not self.switched):
                self._leaving, self._next = True, self.switched or str(level[0])
                self._tell(b"H", self._next.encode())
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._handed.wait(), HAND_OVER_S)
                return self._next
            await asyncio.sleep(LOOK_S)
        return ""

    def _written(self, segment: int, end: int, last: int) -> None:
        self._tell(b"W", THREE.pack(segment, end, last))

    def _synced(self, lsn: int) -> None:
        self._tell(b"Y", ONE.pack(lsn))

    def _check(self) -> None:
        if self.until and boottime() > self.until:
            self._hear()  # what has come meanwhile may say more
        if self.until and boottime() > self.until:
            self._lost("the lease ran out while this process, or its member, stood still")

    def _beat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        log = self._log
        if log is None:
            self._tell_of_opening()
            return
        self._check()
        self._tell_late()
        if not log.broken:
            since = log.waiting_since
            moves = not since or time.monotonic_ns() // 1000 - since < self.settings.stall
            if moves:
                self._tell(b"M", TWO.pack(log.appended + 1, log.first_lsn))
            if not self.switched and (to := self._full.relief(self.known, boottime(), full=log.room.full)):
                self._say(f"cluster: {log.room.why_full()}; {self.switch(to)['name']} has room, and is to lead")

    def _tell_of_opening(self) -> None:
        """Until there are commits, that the log's opening comes on is what keeps the lead."""
        share, now = self._share(), time.monotonic()
        if share != self._opened:
            self._opened, self._opened_at = share, now
        if self.turn is not None and now - self._opened_at < OPENING_S:
            self._tell(b"M", TWO.pack(self.turn.start, 0))

    def _tell_late(self) -> None:
        self._tell_in_order()
        with self._lock:
            late, self._late = self._late, {}
        for kind, content in late.items():
            self._tell(kind, content)

    def _tell(self, kind: bytes, content: bytes) -> None:
        """Say something to the member.  Any thread."""
        with self._lock:
            if kind == b"W" and self._in_order:  # a follower is taken when the log is told: it must know what counts
                self._late[kind] = content
                return
            try:
                self._sock.send(kind + content)
                self._late.pop(kind, None)
            except BlockingIOError:
                self._late[kind] = content
            except OSError:
                pass  # it has gone: the loop hears of it

    # what the member says

    def _hear(self) -> None:
        for kind, content in packets(self._sock):
            if kind == b"C":
                if self._log is not None:
                    self._log.committed(*ONE.unpack(content))
            elif kind == b"F":
                [number] = ONE.unpack(content)
                while self._waiting and self._waiting[0][0] <= number:
                    self._waiting.popleft()[1]()
            elif kind == b"L":
                [self.until] = ONE.unpack(content)
            elif kind == b"T":
                term, start, before = THREE.unpack(content[: THREE.size])
                self.turn = Turn(Reign(term, content[THREE.size :].decode(), before), start)
                self._wait_for_others()  # nothing is given up as if there were nobody
                if not self._called.done():
                    self._called.set_result(self.turn)
                    self._beat()
            elif kind == b"P":
                self._learn(orjson.loads(content))
            elif self._leaving:
                self._handed.set()
                asyncio.get_running_loop().remove_reader(self._sock)
                return
            else:
                self._lost(content.decode() if kind == b"E" else "the member's process has ended")

    def _learn(self, known: dict[str, Any]) -> None:
        before, self.known = self.known, known
        if self.turn is None:
            self.on_word()
        else:
            self._wait_for_others()
            self._follow_format()
        if self._next and known.get("to") == self._next:
            self._handed.set()
        if known["role"] in ("joining", "following", "leading") and (line := self._role_line()) != self._role:
            self._role = line
            self._say(f"cluster: {line}")
            if known["role"] == "leading" and known["confirm"] == "local":
                self._say(LOCAL)
        self._say_news(before, known)

    def _role_line(self) -> str:
        known, (name, address) = self.known, self._leader()
        leader, line = known.get("leader"), f"{known['role']}, term {known.get('term', 0)}"
        return f"{line}, led by {name or leader} at {address or '?'}" if leader and known["role"] != "leading" else line

    def _say_news(self, before: dict[str, Any], known: dict[str, Any]) -> None:
        """What an operator has to hear of, once."""
        if known.get("enough") is False and before.get("enough") is not False:
            self._say(
                f"cluster: {known['certain']} of {known['min_in_sync']} members that a confirm needs (min_in_sync) are "
                "in sync: until there are more nothing is confirmed, and a start waits"
            )
        if (cut := known["cut_records"] - before.get("cut_records", 0)) > 0:
            self._say(
                f"cluster: {cut} records that another leader's log goes on without were cut off this one's, and are "
                f"kept in {self._data}/cut; `penstock cluster lost` lists them"
            )
        if self._troubles.news(known.get("trouble", ""), before.get("trouble", "")):
            self._say(f"cluster: {known['trouble']}")
        if line := news(before, known):
            self._say(f"cluster: {line}")

    def _wait_for_others(self) -> None:
        """Of a leader alone: who followed knows nobody's copy, and when it last saw one says nothing."""
        known = self.known
        others = [one for one in known.get("members", ()) if one != known["member"]]
        self._hold.learn(known.get("followers", {}), others, boottime())

    def _lost(self, why: str) -> NoReturn:
        end_at_once(self._say, why)


def end_at_once(say: Callable[[str], object], why: str) -> NoReturn:
    """This process with all that it has started, once it has said why: a reader who stands still has three seconds."""
    say(f"cluster: this process ends: {why}")
    begin_no_more()
    end_children()
    saying.flush()
    os._exit(LOST)
