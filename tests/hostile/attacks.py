"""What somebody does who means harm, for as long as he likes: by door, before a login and with that of a weak user.

    ATTACKS         every way, a row each
    Target          where the doors are, and whom to log in as
    attack.run(…)   one bout of it

Most ways are words: pieces of bytes for one connection after the other, said by several connections at once, some of
which never read (`Mob`).  The others have a client of their own.  None of them looks at what comes of it: what is
judged stands on the other side.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from hostile.strangers import JUNK, PROTOCOLS, STATES, UNDER_TLS, Crowd, Stranger, addresses, floods
from hostile.words import BREAKS, WORDS

Piece = bytes | float
"""What is said next; a number: seconds of silence."""

Words = Callable[["Target", Random], Iterator[Piece]]
"""What one connection says; then another one begins."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and one who may do little there."""

    ports: Mapping[str, int]  # by door: those of `PROTOCOLS`, and `cluster`
    user: str
    password: str


class Bout(NamedTuple):
    """One attack of one door."""

    at: Target
    door: str
    chance: Random
    until: float  # monotonic

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until

    @property
    def port(self) -> int:
        return self.at.ports[self.door]

    def stranger(self) -> Stranger:
        """A connection from one of many addresses.  OSError."""
        source = f"127.{self.chance.choice((0, 0, 7))}.0.{self.chance.randrange(1, 200)}"
        return Stranger(self.port, source, context() if with_tls(self.door) else None)


@dataclass(frozen=True, slots=True)
class Attack:
    """A row of the table."""

    name: str
    protocol: str  # of `PROTOCOLS`, or cluster
    run: Callable[[Bout], object]
    login: bool = False

    def doors(self, ports: Mapping[str, int]) -> list[str]:
        """Where it can be tried."""
        return [door for door in ports if PROTOCOLS.get(door, door) == self.protocol]


def with_tls(door: str) -> bool:
    return door in {"amqps", "https", "flight_tls"}


def context() -> ssl.SSLContext:
    """Of a client that believes anybody."""
    made = ssl.create_default_context()
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


# -- words


class Mob:
    """So many connections that each say the words of an attack, again and again."""

    def __init__(self, words: Words, links: int = 8, *, deaf: bool = False) -> None:
        """deaf: they never read."""
        self.words, self.links, self.deaf = words, links, deaf

    def __call__(self, bout: Bout) -> None:
        speakers = list[_Speaker]()
        try:
            while not bout.over:
                while len(speakers) < self.links and not bout.over:
                    with suppress(OSError):
                        speakers.append(_Speaker(bout, self.words, self.deaf))
                        continue
                    time.sleep(0.05)
                busy = [one.go_on() for one in speakers]
                speakers = [one for one in speakers if not one.ended]
                if not any(busy):
                    time.sleep(0.005)
        finally:
            for one in speakers:
                one.end()


class _Speaker:
    """One connection."""

    def __init__(self, bout: Bout, words: Words, deaf: bool) -> None:
        self.link = bout.stranger()
        self.deaf = deaf
        self.ended = False
        self._chance = bout.chance
        self._words = words(bout.at, bout.chance)
        self._left = b""
        self._waits = 0.0

    def go_on(self) -> bool:
        """Say some more; whether anything went out."""
        if time.monotonic() < self._waits:
            return False
        if not self.deaf:
            self.link.look()
        if not self._left:
            match next(self._words, None):
                case bytes() as piece:
                    self._left = piece
                case float() as pause:
                    self._waits = time.monotonic() + pause
                    return False
                case _:
                    self.end()
                    return True
        sent = self.link.send(self._left)
        self._left = self._left[sent:]
        if not self.link.open:
            self.end()
        return bool(sent)

    def end(self) -> None:
        """Leave: politely, or with a reset."""
        self.ended = True
        with suppress(OSError):
            if self._chance.random() < 0.5:
                self.link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.link.close()


def broken(chance: Random, data: bytes) -> bytes:
    """Bytes with one to four faults in them."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = chance.choice(BREAKS)(chance, data)
    return data


# -- what every door hears from strangers


def silent(bout: Bout) -> None:
    """Hundreds that stop somewhere before their login, some with a drop now and then."""
    states = STATES[PROTOCOLS[bout.door]] + (UNDER_TLS if with_tls(bout.door) else ())
    chosen = list[tuple[Stranger, bytes]]()
    with Crowd() as crowd:
        sources = addresses(bout.chance.randrange(20, 200))
        while not bout.over:
            if len(crowd.all) < 400:
                source = next(sources) if bout.chance.random() < 0.5 else "127.0.0.1"
                state = bout.chance.choice(states)
                with suppress(OSError):
                    one = Stranger(bout.port, source)
                    one.send(state.begin)
                    crowd.all.append(one)
                    chosen.append((one, state.drip))
                continue
            for one, drip in chosen:
                one.send(drip)
            time.sleep(0.1)
            for one in crowd.all:
                if not one.look():
                    one.close()
            crowd.all = [one for one in crowd.all if one.open]
            chosen = [(one, drip) for one, drip in chosen if one.open]


def flood(protocol: str) -> Words:
    """Bytes that come to no end."""

    def words(_: Target, chance: Random) -> Iterator[Piece]:
        kinds = floods(protocol)
        for number, piece in enumerate(kinds[chance.choice(list(kinds))]):
            yield piece
            if number > 2000:
                return

    return words


def junk(protocol: str) -> Words:
    """What is no beginning."""

    def words(_: Target, chance: Random) -> Iterator[Piece]:
        yield chance.choice(JUNK[protocol])
        yield chance.choice((0.0, 0.1))

    return words


def mutated_words(door: str) -> Words:
    """What clients say, broken."""

    def words(_: Target, chance: Random) -> Iterator[Piece]:
        yield broken(chance, chance.choice(WORDS[door]))
        yield chance.choice((0.0, 0.05, 0.5))

    return words


def handshakes(bout: Bout) -> None:
    """TLS begun, left in the middle, broken, finished and left; rubbish in its records."""
    with Crowd() as crowd:
        while not bout.over:
            with suppress(OSError):
                how = bout.chance.randrange(4)
                if how == 0:  # whole: what it costs is the server's
                    Stranger(bout.port, tls=context()).close()
                    continue
                one = Stranger(bout.port)
                hello = _hello()
                if how == 1:
                    one.send(hello[: bout.chance.randrange(1, len(hello))])
                elif how == 2:
                    one.send(broken(bout.chance, hello))
                else:
                    one.send(hello)
                    one.send(bytes([bout.chance.choice((20, 21, 22, 23))]) + b"\x03\x03\x40\x00" + bytes(0x4000))
                crowd.all.append(one)
            if len(crowd.all) > 100:
                for one in crowd.all[:50]:
                    one.close()
                del crowd.all[:50]


def _hello() -> bytes:
    reads, writes = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context().wrap_bio(reads, writes, server_hostname="localhost").do_handshake()
    return writes.read()


# -- the cluster's port


def members(_: Target, chance: Random) -> Iterator[Piece]:
    """A member that has not the secret."""
    match chance.randrange(5):
        case 0:
            yield chance.randbytes(64)
        case 1:
            yield chance.randbytes(chance.randrange(1, 64))
            yield chance.choice((0.1, 7.0))
        case 2:
            yield chance.randbytes(64) + struct.pack("<II", 1 << 31, 1 << 31) + bytes(1 << 16)
        case 3:
            for _ in range(200):
                yield bytes(1 << 16)
        case _:
            yield chance.choice((0.2, 7.0))


def attacks() -> Sequence[Attack]:
    """The table."""
    from hostile import amqp_attacks, flight_attacks, http_attacks

    rows = [Attack("members without the secret", "cluster", Mob(members, 40))]
    for protocol, door in (("amqp", "amqp"), ("http", "http"), ("http2", "flight")):
        rows += [
            Attack("silent strangers", protocol, silent),
            Attack("floods", protocol, Mob(flood(protocol), 20)),
            Attack("junk", protocol, Mob(junk(protocol), 20)),
            Attack("broken words", protocol, Mob(mutated_words(door), 10)),
            Attack("handshakes", protocol, handshakes),
        ]
    return [*rows, *amqp_attacks.ROWS, *http_attacks.ROWS, *flight_attacks.ROWS]


def bouts(target: Target, seed: int, until: float, length: float, tell: Callable[[str, str, float], object]) -> None:
    """One attack after the other, in an order of chance; each is told of as it begins, with how long it may take."""
    chance = random.Random(seed)
    table = [(attack, door) for attack in attacks() for door in attack.doors(target.ports)]
    chance.shuffle(table)
    while time.monotonic() < until:
        for attack, door in table:
            # handshakes are for doors with TLS alone
            if time.monotonic() > until or (attack.run is handshakes and not with_tls(door)):
                continue
            spent = chance.uniform(length / 2, length * 3 / 2)
            tell(attack.name, door, spent)
            attack.run(Bout(target, door, Random(chance.random()), time.monotonic() + spent))
