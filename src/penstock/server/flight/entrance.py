"""The Flight door as the server sees it: a process that speaks gRPC, and what it asks for on its lines.

The process (`front`) accepts connections, reads what clients send and judges it.  Here each call is asked who makes it,
and is carried out by the door's inside, in the thread of its line.  The process is there from the first moment of a
start: calls that come while the log is recovered wait for the inside to open, a few of them, each for at most
`PATIENCE_S`; beyond that the answer is Unavailable, which says that a retry helps and how far the start has come.

    line   CALL -> who is it? -> WELCOME -> wait for the inside -> the call, with what MORE brings -> DONE or FAILED
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson
import pyarrow as pa

from penstock.errors import AccessRefused, PenstockError, Unavailable
from penstock.records.tokens import refused
from penstock.server.base.allowed import no_door
from penstock.server.base.loading import of_a_door
from penstock.server.doors.door_process import DoorProcess, Spawned, StrangerCounts
from penstock.server.doors.line import AHEAD, Broken, Ended, Kind, Line, failed, head_of, number, text
from penstock.server.flight.call_streams import CALL_MOST, CAST_MOST, Answers, Sent
from penstock.server.flight.calls import Caller, told_of
from penstock.server.flight.connections import Strangers
from penstock.server.flight.handover import Abandoned, Piece
from penstock.server.flight.senders import Peer
from penstock.server.people.access import Share, Shares, Who, hinted
from penstock.version import __version__
from penstock.wire.flight.failures import encode_error
from penstock.wire.flight.received import Bounds

if TYPE_CHECKING:
    from penstock.server.people.logins import Logins
    from penstock.server.sockets.tls import Identity

MODULE = "penstock.server.flight.front"

PATIENCE_S = 60.0
LOOK_S = 0.2

WHY_MOST = 1000
"""Characters of what the door says that an operator reads."""

logger = logging.getLogger("penstock.flight")


class Info(NamedTuple):
    """What GetFlightInfo and ListFlights tell."""

    schema: pa.Schema
    path: tuple[str, ...]  # empty: the command that was asked
    ticket: bytes
    rows: int = -1


class Inside(Protocol):
    """Where calls go once the start is over: a method for each of Flight's, which raises what is refused."""

    def put(self, caller: Caller, command: bytes, sent: Sent, writer: Answers) -> None: ...

    def get(self, caller: Caller, ticket: bytes) -> tuple[pa.Schema, Iterator[Piece]]: ...

    def exchange(self, caller: Caller, command: bytes, sent: Sent, writer: Answers) -> None: ...

    def act(self, caller: Caller, name: str, body: bytes) -> bytes: ...

    def known(self, caller: Caller) -> list[tuple[str, str]]: ...

    def listing(self, caller: Caller, criteria: bytes) -> list[Info]: ...

    def info(self, caller: Caller, command: bytes, path: list[str]) -> Info: ...


class Unproven(Exception):
    """A login that is wrong; the door answers late."""


class Peers:
    """The connections of the door's process that have logged in, and whose they are."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._users = dict[Peer, str]()
        self._lock = threading.Lock()

    def known(self, peer: Peer, who: Who) -> bool:
        """A call of this peer, who is somebody; whether it is not its first.

        Unavailable: he has too many connections for one more.
        """
        with self._lock:
            if peer in self._users:
                return True
            self._users[peer] = who.user
            try:
                self._share.take(who)
            except BaseException:
                del self._users[peer]
                raise
            return False

    def left(self, peers: Iterable[Peer]) -> None:
        with self._lock:
            for peer in peers:
                if (user := self._users.pop(peer, None)) is not None:
                    try:
                        self._share.give(user)
                    except BaseException:
                        self._users[peer] = user  # it is told again, at the latest with the end of the door
                        raise

    def lost(self) -> None:
        """All of them have: the process is gone."""
        self.left(list(self._users))


def _starting() -> str:
    return "starting"


class Entrance:
    """Listens; lets calls through once `open` has named the door."""

    def __init__(
        self,
        people: Logins,
        how_far: Callable[[], str] = _starting,
        strangers: Strangers | None = None,
        shares: Shares | None = None,
        *,
        bounds: Bounds | None = None,
        memory: int = 512 << 20,
        apart: bool = False,
        first: Spawned | None = None,
    ) -> None:
        """`how_far`: what the server is doing until then, for who is sent away.  Any thread calls it.

        strangers: what connections may do before a login.  shares: what each user may take.  bounds: of one batch.
        memory: the server's budget.  apart: gRPC runs in a process of its own, not in a
        thread of this one.  first: a process that was started before.
        """
        shares = shares or Shares()
        bounds = bounds or Bounds()
        self.connections = Peers(shares.of("connections"))
        self.strangers = StrangerCounts()
        self._people = people
        self._how_far = how_far
        self._batch_most = bounds.batch_bytes + CAST_MOST
        self._door: Inside | None = None
        self._changed = threading.Event()
        self._early = shares.of("early_calls")
        begin = {
            "version": __version__,
            "strangers": asdict(strangers or Strangers()),
            "bounds": asdict(bounds),
        }
        self.process = DoorProcess(
            "flight", MODULE, begin, self._serve, heard=self._heard, lost=self._lost,
            memory=of_a_door(memory), apart=apart, first=first,
        )  # fmt: skip
        self._tls: dict[str, object] | None = None

    # -- listening

    def listen(self, host: str, port: int, identity: Identity | None = None) -> tuple[str, int]:
        """Start to accept; returns the address that was bound.  Raises OSError.

        identity: for TLS, which may be beside the other or alone.
        """
        wish: dict[str, object] = {"do": "listen", "door": "flight", "host": host, "port": port}
        if identity is not None:
            wish |= {"door": "flight_tls", "tls": _shown(identity)}
            self._tls = wish
        self.process.start()
        try:
            answer = self.process.ask(wish)
        except Unavailable as error:
            raise no_door(error) from None
        if "why" in answer:
            raise OSError(0, str(answer["why"])[:WHY_MOST])
        try:
            port = number(dict(answer), "port", 65535)
        except Broken as broken:
            self.process.cut_off(str(broken))
            raise OSError(0, str(broken)) from None
        wish |= {"port": port, "again": True}
        self.process.keep_asking(wish)
        return host, port

    def renew(self, identity: Identity) -> None:
        """Show another certificate from now on.  In a thread of its own: it may wait for the port."""
        if self._tls is not None:
            self._tls["tls"] = _shown(identity)
            self.process.ask({"do": "renew", "tls": self._tls["tls"]})

    def open(self, door: Inside) -> None:
        """From now on calls go there; those that wait go first."""
        self._door = door
        self._changed.set()

    def shut(self) -> None:
        """From now on calls wait again."""
        self._changed.clear()
        self._door = None

    def close(self, timeout: float = 5.0) -> bool:
        """Stop listening and wait for running calls, at most so many seconds; whether all have ended then.

        Connections are cut after that time: a call whose client stands still never ends by itself.
        """
        self._changed.set()
        answer = self.process.close(timeout)
        return answer is None or bool(answer.get("all"))

    # -- what the process says

    def _heard(self, told: Mapping[str, Any]) -> None:
        """Raises Broken."""
        if "left" in told:
            self.connections.left(_peers(told["left"]))
        if "strangers" in told:
            self.strangers.heard(told)
        if "warning" in told:
            logger.warning("%s", text(dict(told), "warning")[:WHY_MOST])

    def _lost(self) -> None:
        self.connections.lost()
        self.strangers.lost()

    # -- the threads of lines

    def _serve(self, line: Line) -> None:
        """One call after the other.  Raises Ended and Broken."""
        last = 0
        may = {Kind.CALL: CALL_MOST, Kind.SCHEMA: 64, Kind.BATCH: self._batch_most, Kind.WORDS: CALL_MOST}
        may |= {Kind.END: 0, Kind.FAILED: CALL_MOST}
        while True:
            frame = line.receive(may if last else {Kind.CALL: CALL_MOST})
            if frame.kind is not Kind.CALL:
                if frame.number != last:
                    raise Broken(f"a frame of kind {frame.kind} for call {frame.number} after {last}")
                continue  # it was sent before the door knew of the end
            if frame.number != last + 1:
                raise Broken(f"call {frame.number} after {last}")
            last = frame.number
            told, blob = head_of(frame.payload)
            ahead = bool(frame.flags & AHEAD)
            del frame
            self._carry_out(line, last, told, bytes(blob), ahead=ahead)

    def _carry_out(self, line: Line, call: int, told: dict[str, Any], blob: bytes, *, ahead: bool) -> None:
        what = text(told, "call")
        try:
            if what in ("wrong", "right"):  # whether a password is nobody's, or somebody's: where no address is known
                asked = self._people.is_wrong if what == "wrong" else self._people.is_right
                answer = orjson.dumps(asked(text(told, "user"), text(told, "password")))
            else:
                answer = self._done(line, call, what, told, blob, ahead=ahead)
        except (Ended, Broken):
            raise
        except Unproven as error:
            line.send(Kind.FAILED, call, failed(("unauthenticated", *encode_error(AccessRefused(str(error))))))
        except PenstockError as error:
            line.send(Kind.FAILED, call, failed(told_of(hinted(error, self._people.who(text(told, "user")).rights))))
        except Exception as error:  # noqa: BLE001 - the border: what is not ours is logged there and shown as internal
            line.send(Kind.FAILED, call, failed(told_of(error)))
        else:
            line.send(Kind.DONE, call, answer)

    def _caller(self, line: Line, call: int, told: dict[str, Any]) -> Caller:
        """Who makes a call, which the door is told.  Raises Unproven, and Unavailable for one connection too many."""
        user, host, port = text(told, "user"), text(told, "host"), number(told, "port", 65535)
        if not self._people.check(user, text(told, "password"), host):
            raise Unproven(refused(user, host))
        who = self._people.who(user)
        known = self.connections.known((host, port), who)
        line.send(Kind.WELCOME, call, later=known)  # the door counts the time until a first one; others save a wake
        return Caller(who, text(told, "peer"), line.gone, partial(self._people.who, user))

    def _done(self, line: Line, call: int, what: str, told: dict[str, Any], blob: bytes, *, ahead: bool) -> bytes:
        """The answer of a call.  Raises whatever went wrong."""
        caller = self._caller(line, call, told)
        door = self.inside(caller)
        match what:
            case "act":
                return door.act(caller, text(told, "name"), blob)
            case "put" | "exchange":
                sent, answers = Sent(line, call, self._batch_most, ahead=ahead), Answers(line, call)
                (door.put if what == "put" else door.exchange)(caller, blob, sent, answers)
                return b""
            case "get":
                schema, pieces = door.get(caller, blob)
                answers = Answers(line, call)
                answers.begin(schema)
                for piece in pieces:
                    answers.send(piece)
                return b""
            case "known":
                return orjson.dumps(door.known(caller))
            case "listing":
                return packed(door.listing(caller, blob))
            case "info":
                path: object = told.get("path")
                parts = [str(one) for one in path] if isinstance(path, list) else []
                return packed([door.info(caller, blob, parts)])
            case _:
                raise Broken(f"an unknown call {what[:40]!r}")

    def inside(self, caller: Caller) -> Inside:
        """The door, when it is open.  Raises Unavailable, or Abandoned when the client left."""
        return self._door or self._wait(caller)

    def _wait(self, caller: Caller) -> Inside:
        if self._early.refusal(caller.who) is not None:
            self._early.refused += 1
            raise self._not_yet()
        with self._early.held(caller.who):
            until = time.monotonic() + PATIENCE_S
            while not self._changed.wait(LOOK_S):
                if caller.gone():
                    raise Abandoned
                if time.monotonic() > until:
                    raise self._not_yet()
        if self._door is None:
            raise Unavailable("the server stops")
        return self._door

    def _not_yet(self) -> Unavailable:
        return Unavailable(f"the server is {self._how_far()}: try again in a moment")


def _shown(identity: Identity) -> dict[str, object]:
    """What a door shows over TLS, and whom it insists on."""
    ca = identity.ca_pem.decode() if identity.insists and identity.ca_pem is not None else None
    return {"chain": identity.chain_pem.decode(), "key": identity.key_pem.decode(), "ca": ca}


def packed(infos: list[Info]) -> bytes:
    """Flights for the door, which makes gRPC's messages of them; each schema once."""
    schemas = dict[bytes, int]()
    rows: list[object] = []
    for one in infos:
        place = schemas.setdefault(one.schema.serialize().to_pybytes(), len(schemas))
        rows.append([place, one.path, one.ticket.decode(), one.rows])
    return orjson.dumps({"schemas": [b64encode(one).decode() for one in schemas], "infos": rows})


def _peers(told: object) -> list[Peer]:
    """Addresses.  Broken for anything else."""
    if not isinstance(told, list):
        raise Broken("addresses that are no list")
    found = list[Peer]()
    for one in told:
        match one:
            case [str(host), int(port)]:
                found.append((host, port))
            case _:
                raise Broken("an address that is none")
    return found
