"""A member's own process: `python -m penstock.server.cluster.process FD PIDFD`, the server's.  It ends when FD does.

The stream and the beats live here, so that no client's flood stops a confirm and no busy core a beat.  While this
member follows, the server beside it waits with nothing but HTTP open; when it is to lead, this lets the folder go and
says so, and then reads what the server writes there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from penstock.errors import InvalidArgument, PenstockError, Unavailable
from penstock.log.committers import KernelSync
from penstock.log.disk import OsDisk
from penstock.log.replica import AHEAD, Beside, Replica
from penstock.log.room import DISK_FAILS
from penstock.replication.election import Outcome
from penstock.replication.insync import InSync, Times
from penstock.replication.register import ClusterState, decode
from penstock.replication.register import Member as Listed
from penstock.server.base.loading import beside_a_server, end_with_parent
from penstock.server.cluster import folder
from penstock.server.cluster.following import Following
from penstock.server.cluster.member import Member
from penstock.server.cluster.membership import Terms
from penstock.server.cluster.packets import LOST, ONE, THREE, TWO, boottime, packets
from penstock.server.cluster.registers import MANUAL, Kept, Register, register_at
from penstock.server.cluster.speech import PATIENCE_S, Peer, Shown, reach
from penstock.server.sockets.listening import bind, entry_for
from penstock.server.sockets.strangers import Stranger
from penstock.server.sockets.strangers import Terms as Bounds
from penstock.units import format_address

if TYPE_CHECKING:
    from penstock.server.cluster.log_sending import Sending
    from penstock.server.sockets.certificates import Files

T = TypeVar("T")


STRANGERS = Bounds(PATIENCE_S, sockets=32, per_address=16)
"""Of the stream's address."""


def plain(member: Member) -> dict[str, object]:
    """All of it, as of now."""
    state, now = member.state, member.now()
    out: dict[str, object] = {
        "member": member.me, "name": member.terms.name, "role": member.role.value, "trouble": member.trouble,
        "min_in_sync": member.terms.min_in_sync, "confirm": "local" if member.terms.local else "in-sync",
        "intact": member.known.intact, "cut_records": member.cut_records,
    }  # fmt: skip
    if state is not None:
        out |= {
            "cluster": state.cluster, "term": state.term, "leader": state.leader,
            "leader_name": "" if state.leader is None else state.members[state.leader].name, "format": state.format,
            "in_sync": sorted(state.in_sync), "to": state.to,
            "members": {key: _listed(one) for key, one in sorted(state.members.items())},
            "terms": [list(one) for one in state.terms],
        }  # fmt: skip
    if member.talks is not None:
        rival = member.talks.rival
        out |= {
            "manual": True, "rival": None if rival is None else rival.term,
            "claims": [list(claim) for one in (state, rival) if one is not None and (claim := _claim(one))],
        }  # fmt: skip
    if member.leads:
        out |= _leading(member, now)
    elif member.replica is not None:
        out |= _following(member.replica, member.following)
    return out


def _following(replica: Replica, following: Following | None) -> dict[str, object]:
    out: dict[str, object] = {"lsn": replica.last, "synced_lsn": replica.synced, "connected": following is not None}
    if following is not None:
        out |= {"leader_lsn": following.leader_last, "committed_lsn": following.leader_committed}
        if (ahead := following.clock.ahead) is not None:
            out["clock_ahead_seconds"] = round(ahead / 1e6, 3)
    return out


def _leading(member: Member, now: int) -> dict[str, object]:
    in_sync = member.election.in_sync
    return {
        "lsn": member.files.log.last, "committed_lsn": member.committed,
        "followers": {one.member: _follower(one, in_sync, now) for one in member.sendings.values()},
        "ack_seconds": member.ack_times.plain(), "enough": in_sync is not None and in_sync.enough,
        "relief": member.relief, "certain": 0 if in_sync is None else in_sync.certain,
        "waited_for": [] if in_sync is None else sorted(in_sync.waited_for(now)),
        "sent_bytes": member.files.sent,
        "lease_left_seconds": round((member.election.until(now) - now) / 1e6, 3),
    }  # fmt: skip


def _follower(sending: Sending, in_sync: InSync | None, now: int) -> dict[str, object]:
    trial = 0 if in_sync is None else in_sync.trial(sending.member, now)
    return {**sending.plain(now), "trial_seconds": round(trial / 1e6, 3)}


def _claim(state: ClusterState) -> tuple[str, int] | None:
    """Who leads by this copy of the register, by name, and in which term."""
    return None if state.leader is None else (state.members[state.leader].name, state.term)


def empty(cluster: str, *, manual: bool, unheard: Iterable[str] = ()) -> str:
    """What is to be done about a register that has nothing.  cluster: of this folder; empty: none yet.

    unheard: why others that were called said nothing: to make a cluster beside theirs helps nobody.
    """
    if cluster and not manual:
        return (
            f"the register is empty, and this folder is of cluster {cluster}: bring the register back; if it is lost, "
            "stop all members, and `penstock cluster init --lost-register` with the one whose log is the newest"
        )
    told = "the register is empty: run" if not manual else "no other member has told who leads: run"
    if why := "; ".join(unheard):
        told = f"no other member has told who leads: {why}; only where there is no cluster yet, run"
    told += " `penstock cluster init` with the settings of one member"
    return told + (", and name its address in `members` in those of the others" if manual else "")


def _listed(one: Listed) -> dict[str, object]:
    return {"name": one.name, "address": one.address, "reads": one.reads}


logger = logging.getLogger("penstock.cluster")

TICK_S = 0.05
TELL_S = 0.1
HANDING_OVER_S = 20.0
"""A server that has handed over is gone within so much, or hangs."""


def main() -> None:
    """Take part until the server's socket ends; never returns."""
    end_with_parent()
    beside_a_server()
    sock = socket.socket(fileno=int(sys.argv[1]))
    asked = orjson.loads(sock.recv(1 << 16))
    sock.setblocking(False)
    why = "the member's process has ended"
    try:
        asyncio.run(Process(sock, int(sys.argv[2]), asked).run())
    except PenstockError as error:
        why = str(error)
    except OSError as error:
        if error.errno not in DISK_FAILS:
            raise
        why = unwritable(asked["data"], error)
    sock.setblocking(True)
    sock.send(b"E" + why.encode())
    os._exit(LOST)


def unwritable(folder: str, error: OSError) -> str:
    """Of a member whose data folder takes nothing."""
    return (
        f"{folder} cannot be written: {error.strerror}; the others go on without this member: see to its disk, and "
        "start it again"
    )


class Process:
    """The world of a member: sockets, timers, a thread for the register."""

    def __init__(self, sock: socket.socket, server: int, asked: dict[str, Any]) -> None:
        """server: a pidfd, for another process may have the number of one that has ended."""
        self._sock, self._server = sock, server
        self._asked = asked
        self._secret = asked["secret"].encode()
        self._unheard = dict[str, str]()  # address of a member that was called last in vain -> why
        self._tls: Files | None = None
        if asked["tls"] is not None:
            from penstock.server.sockets.certificates import Files  # heavy, and of no use without TLS

            self._tls = Files("cluster", *asked["tls"])
        self._late = dict[bytes, bytes]()  # packets that the server did not take, the newest of each kind
        self._pool = ThreadPoolExecutor(1, "penstock-register")
        self._register: Register = register_at(asked["register"], asked["data"], asked["lease"])
        self._reading = self._hands_over = False
        self._calls = list[int]()  # of the register that are under way: since when
        self._over = asyncio.Event()
        self._disk = OsDisk(asked["data"])
        self._told_at = 0.0
        self._tasks = set[asyncio.Task[None]]()
        self._loop: asyncio.AbstractEventLoop
        self._member: Member

    async def run(self) -> None:
        """Until it is over.  LogDamaged, DataFolderInUse."""
        self._loop = asyncio.get_running_loop()
        asked, loop = self._asked, self._loop
        self._disk.lock()
        times = Times(lease=asked["lease"], ack_timeout=asked["ack_timeout"], stall=asked["stall"])
        process, local = secrets.token_hex(4), asked["local"]
        manual, others = asked["register"] == MANUAL, tuple(asked["members"])
        terms = Terms(asked["name"], asked["advertise"], asked["min_in_sync"], times, process, local, manual, others)
        syncer = KernelSync.of_this_system()
        beside = Beside(syncer, AHEAD, thread=True)
        self._member = Member(self._disk, folder.opened(self._disk), terms, self, beside)
        if syncer is not None:
            loop.add_reader(syncer.fileno(), self._synced, syncer)
        host, port = asked["listen"]
        try:
            shown = None if self._tls is None else Shown(self._tls).current
            entry_for(STRANGERS, loop).listener("cluster", self._stranger, shown).open(bind(host, port))
        except OSError as error:
            raise Unavailable(f"cluster.listen: cannot bind {format_address(host, port)}: {error.strerror}") from error
        loop.add_reader(self._sock, self._from_server)
        loop.set_exception_handler(self._failed)
        self._tick()
        await self._over.wait()

    def _synced(self, syncer: KernelSync) -> None:
        if not self._member.synced():
            syncer.hush()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in DISK_FAILS:
            self.end(unwritable(self._asked["data"], error))
        logger.critical("stopped: %s", context.get("message"), exc_info=error)
        self.end(f"{type(error).__name__}: {error}")

    def _tick(self) -> None:
        self._loop.call_later(TICK_S, self._tick)
        self._member.tick()
        self._tell_of_silence()
        for kind in list(self._late):
            self._tell(kind, self._late.pop(kind))
        if time.monotonic() - self._told_at >= TELL_S:
            self._tell_how_it_is()

    def _tell_of_silence(self) -> None:
        """Of a register that hangs, as a folder of a network may: it gives no error, and nobody could be elected.

        Who follows hears of his leader, and has no trouble.
        """
        member, most = self._member, 2 * self._member.terms.times.call
        if self._calls and boottime() - self._calls[0] > most and (member.leads or member.following is None):
            member.trouble = f"the register does not answer: a call of it has stood for more than {most / 1e6:g} s"

    def _tell_how_it_is(self) -> None:
        """What the server says of this member, and of who leads."""
        self._told_at = time.monotonic()
        self._tell(b"P", orjson.dumps(plain(self._member)))

    # streams

    def _stranger(self, stranger: Stranger) -> Peer:
        def known(peer: Peer) -> None:
            stranger.known()
            self._member.taken(peer)

        peer = Peer(self._secret, self._member, known, stranger.gone, calls=False, refused=stranger.tell)
        stranger.close, stranger.doing = peer.abort, "it had not shown that it knows the cluster's secret"
        return peer

    async def _call(
        self, address: str, taken: Callable[[Peer], None], failed: Callable[[], None], *, leads: bool
    ) -> None:
        """Connect to another member.  leads: it is who leads, and why it cannot be reached is told at once."""
        who = "the leader" if leads else "the member"

        def in_vain(why: str) -> None:
            self._unheard[address] = why
            if leads:
                self._member.trouble = why

        def made() -> Peer:
            def ended() -> None:
                if peer.asked:
                    in_vain(f"{who} at {address} ended the call: it has another secret, or is of an older version")
                elif self._tls is not None:  # which ends well on our side before the other one looks
                    in_vain(
                        f"{who} at {address} ended the call and said nothing: it does not take this member's "
                        "certificate, and its output says why, or has just ended"
                    )
                failed()

            def known(peer: Peer) -> None:
                self._unheard.pop(address, None)
                taken(peer)

            peer = Peer(self._secret, self._member, known, ended, calls=True)
            return peer

        try:
            await reach(made, address, self._tls)
        except Unavailable as error:
            in_vain(f"{who} at {error}")
            failed()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a step of the member", "exception": error})

    # what a member asks for

    def now(self) -> int:
        return boottime()

    async def _ask(self, work: Callable[..., T], *given: object) -> T:
        """What the register answers, by its thread, to one call after the other."""
        begun = boottime()
        self._calls.append(begun)
        try:
            return await self._loop.run_in_executor(self._pool, work, *given)
        finally:
            self._calls.remove(begun)

    def read(self) -> None:
        """In the register's thread."""
        if not self._reading:
            self._reading = True
            self._begin(self._read())

    async def _read(self) -> None:
        try:
            kept: Kept = await self._ask(self._register.read)
        except Unavailable as error:
            self._member.trouble = str(error)
            return
        finally:
            self._reading = False
        if not kept.value:
            known, manual = self._member.known, self._member.terms.manual
            unheard = (why for _, why in sorted(self._unheard.items())) if manual else ()
            self._member.trouble = empty(known.cluster, manual=manual, unheard=unheard)
            return
        try:
            state = decode(kept.value)
        except InvalidArgument as error:
            self._member.trouble = str(error)
            return
        before = self._member.state
        self._member.register_read(kept.version, state)
        if before is None or (before.leader, before.term) != (state.leader, state.term):
            self._tell_how_it_is()

    def swap(self, version: int, value: ClusterState, *, own: bool) -> None:
        """In the register's thread."""
        self._begin(self._swap(version, value, own))

    async def _swap(self, version: int, value: ClusterState, own: bool) -> None:
        outcome: Outcome
        try:
            outcome = await self._ask(self._register.swap, version, value.encode())
        except (InvalidArgument, Unavailable, OSError) as error:  # the first: it has outgrown what a register takes
            self._member.trouble = str(error)
            outcome = "unknown"
        self._member.swapped(outcome, value, own=own)
        self._told_at = 0.0  # the server waits for some of them

    def connect(self, address: str) -> None:
        member = self._member
        self._begin(self._call(address, member.connected, lambda: member.lost(None), leads=True))

    def call(self, address: str) -> None:
        called = partial(self._member.called, address)
        self._begin(self._call(address, called, lambda: called(None), leads=False))

    def lead(self, term: int, start: int, before: int) -> None:
        """The folder is the server's from now on."""
        self._disk.unlock()
        self._tell(b"T", THREE.pack(term, start, before) + self._member.me.encode())

    def committed(self, lsn: int) -> None:
        self._tell(b"C", ONE.pack(lsn))

    def kept(self, number: int) -> None:
        self._tell(b"F", ONE.pack(number))

    def may_lead(self, until: int) -> None:
        self._tell(b"L", ONE.pack(until))

    def end(self, why: str) -> None:
        """The server is told, says it and ends; it is killed if it does not go, and then nobody but us can say why.

        One that hands over has closed its doors and its log, so it has the time that a busy machine takes.
        """
        self._sock.setblocking(True)
        self._sock.settimeout(HANDING_OVER_S if self._hands_over else 1.0)
        try:
            self._sock.send(b"E" + why.encode())
            while self._sock.recv(1 << 16):
                pass  # until it has gone
        except TimeoutError:
            with suppress(OSError):  # it was stopped, or hangs: it must not wake up and send
                signal.pidfd_send_signal(self._server, signal.SIGKILL)
            logger.critical("cluster: the server did not end when it was told to, and was killed: %s", why)
        except OSError:
            pass  # it has closed its end with words of ours unread, as the last thing that it does
        os._exit(LOST)

    # the server

    def _tell(self, kind: bytes, content: bytes) -> None:
        try:
            self._sock.send(kind + content)
        except BlockingIOError:
            self._late[kind] = content
        except OSError:
            os._exit(LOST)

    def _from_server(self) -> None:
        member = self._member
        for kind, content in packets(self._sock):
            if not kind:
                member.leave()
                os._exit(LOST)
            if kind == b"W":
                member.log_at(*THREE.unpack(content))
            elif kind == b"Y":
                member.log_synced(*ONE.unpack(content))
            elif kind == b"M":
                member.moves(*TWO.unpack(content))
            elif kind == b"B":
                member.booted(*ONE.unpack(content))
            elif kind == b"K":
                member.keep(content[ONE.size :].decode(), *ONE.unpack(content[: ONE.size]))
            elif kind == b"D":
                member.forget(content.decode())
            elif kind == b"A":
                member.knows_of(*ONE.unpack(content))
            elif kind == b"H":
                self._hands_over = True
                member.hand_over(content.decode())
            else:
                member.broken(content.decode(errors="replace"))  # it may be cut within a character


if __name__ == "__main__":
    main()
