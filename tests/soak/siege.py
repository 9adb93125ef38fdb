"""`make soak-hostile`: for an hour each door is attacked in every way that is known, while others publish and work.

    PYTHONPATH=tests python -m soak.siege --seconds 3600

The server is a cluster of one member with a process for each door, with TLS and without.  Attackers (`hostile.attacks`)
are processes of their own, strangers and a user with few rights; honest clients have a vhost that the attackers may not
open.  Judged are: the server's own process (it is the same to the end, says nothing of a bug, and neither its memory
nor its descriptors rise), which processes ended (a door that was attacked, and no other), and every message: what was
confirmed is there, once, unless it was delivered and marked so.  How long honest clients waited is told by attack.
Memory is judged twice: what the accounts of `server.memory` have does not stay above that, and what the process has
beside them (its code, what Python keeps, and whatever nobody counts) does not rise.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from pika import spec

from hostile.attacks import Target, bouts
from hostile.strangers import PROTOCOLS
from hostile.watching import MIB, Watched
from soak import by_hand, slope
from soak.clients import drained
from soak.cluster_clients import Serving
from soak.fort import MEMORY, STUCK_S, Attacker, Fort
from soak.siege_clients import (
    PATIENCE_S,
    VHOST,
    FlightWorker,
    Ledger,
    Lone,
    OverFlight,
    OverHttp,
    Tenacious,
    Town,
    TownPublisher,
    TownWorker,
)
from waiting import eventually

QUEUES = ("work", "busy", "bulk", "web", "lone")
REMEMBERED_S = 15.0
"""So long after its end an attack may be what ended a door."""
SAID = (
    "Traceback",
    "by a bug",
    "internal error",
    "Error: ",
    "Flight call failed",
    "bulk request failed",
    "is cut off: ",
)
"""What the server must never say: the last one of a door that is not believed, or does not answer."""
ENDED = re.compile(r"the process of the (\w+?)(?:-\d+)? door ended with status (-?\d+)")
OVER_MOST = 6
"""Looks, 5 s from each other, at which the accounts may have more than `server.memory` before that is told."""
DOORS = {"amqp": "amqp", "http": "http", "http2": "flight"}


class Siege:
    """One run.  Faults are in `books.wrong`."""

    def __init__(
        self, folder: Path, seconds: float, seed: int, *, attackers: int = 2, bout: float = 6.0, least: int = 0,
        patience: float = PATIENCE_S, say: Callable[[str], object] = print,
    ) -> None:  # fmt: skip
        """bout: seconds that an attack takes, more or less.  least: bouts that it does not end before.

        patience: seconds that an honest client of any door waits at most.
        """
        self.folder, self.seconds, self.bout, self.say = folder, seconds, bout, say
        self.least, self.patience = least, patience
        self.random = random.Random(seed)
        self.books = Ledger()
        self.pace, self.rest = 0.02, 0.0
        self.attackers = list[Attacker | None]([None] * attackers)
        self.history = list[tuple[float, int, str, str]]()  # when, by whom, what, where
        self.deaths = list[str]()
        self.points = dict[str, list[tuple[int, float, float]]]({"memory": [], "descriptors": []})
        self.server = Fort(folder)
        self.began = time.monotonic()
        self.before = 0.0  # when the first attack began
        self.after = 0.0  # when the last one was over
        self._faults = set[str]()  # how those begin that were told
        self._over = 0  # looks at which the accounts had too much, one after the other
        self._said = 0  # bytes of the server's output that were looked at

    @property
    def http(self) -> int:
        return self.server.port_of("http")

    @property
    def flight(self) -> str:
        return f"penstock://guest:guest@{self.server.ready['flight']}/{VHOST}"

    def random_servers(self) -> Sequence[Serving]:
        return [self.server]

    def run(self) -> None:
        """All of it."""
        with self.server:
            self.declare()
            self.lone = [Lone(self), OverFlight(self), OverHttp(self)]
            self.team: list[Tenacious] = [
                *self.lone, TownPublisher(self, "work"), TownPublisher(self, "busy"), TownWorker(self, "work"),
                TownWorker(self, "busy", alone=False), TownWorker(self, "busy", alone=False), TownWorker(self, "web"),
                TownWorker(self, "lone"), FlightWorker(self),
            ]  # fmt: skip
            for client in self.team:
                client.start()
            try:
                self.calm(min(10.0, self.seconds / 4))
                self.besieged()
                self.calm(min(10.0, self.seconds / 4))
            finally:
                for attacker in self.attackers:
                    if attacker is not None:
                        attacker.end()
            self.dismiss()
            self.account()

    def declare(self) -> None:
        """The honest clients' queues."""
        with Town(self.server.port) as link:
            for name in (*QUEUES, "markers"):
                arguments = {"x-max-length": 100} if name == "markers" else {}
                link.method(spec.Queue.Declare(queue=name, durable=True, arguments=arguments))
                link.expect(spec.Queue.DeclareOk)

    def calm(self, seconds: float) -> None:
        """Nobody attacks."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.ended_by_itself:
            time.sleep(0.25)
            self.look()

    def besieged(self) -> None:
        """Attackers, watched."""
        assert self.server.process is not None
        target, until = self.server.target(), time.monotonic() + self.seconds
        self.before = time.monotonic()
        every, sampled = min(5.0, self.seconds / 60), 0.0
        with Watched(self.server.process.pid) as core:
            self.descriptors = core.descriptors()
            while self._goes_on(now := time.monotonic(), until):
                for number, attacker in enumerate(self.attackers):
                    if attacker is None or attacker.process.poll() is not None or attacker.stuck:
                        if attacker is not None:
                            self.books.counts["attackers that ended"] += 1
                            attacker.end()
                        self.attackers[number] = Attacker(
                            target, self.random.randrange(1 << 30), until - now + STUCK_S, self.bout,
                            self.folder / "attackers.txt", self._teller(number),
                        )  # fmt: skip
                time.sleep(0.25)
                self.look()
                if now - sampled > every and core.alive:
                    sampled = now
                    at = now - self.before
                    if (accounted := self.accounted()) is not None:
                        self.points["memory"].append((1, at, float(core.memory() - accounted)))
                    self.points["descriptors"].append((1, at, float(core.descriptors())))
            for attacker in self.attackers:
                if attacker is not None:
                    attacker.end()
            self.after = time.monotonic()
            if core.alive:
                try:
                    eventually(lambda: core.descriptors() <= self.descriptors + 24, "", 60)
                except AssertionError:
                    self.books.fault(f"{core.descriptors()} descriptors are open, {self.descriptors} were")
                if not self.points["memory"]:
                    self.fault("nobody said what the accounts of server.memory have, in all this time")
                for _, _, first in self.points["memory"][:1]:
                    self.books.counts["MiB of the core before, beside accounts"] = int(first) // MIB
                self.books.counts["MiB of the core after"] = core.memory() // MIB
                self.books.counts["MiB of it in accounts"] = (self.accounted() or 0) // MIB

    def accounted(self) -> int | None:
        """Bytes in the accounts of `server.memory`; None: nobody says so now."""
        try:
            with closing(HTTPConnection("127.0.0.1", self.http, timeout=5)) as link:
                login = {"authorization": "Basic " + b64encode(b"guest:guest").decode()}
                link.request("GET", "/api/overview", headers=login)
                found: dict[str, int] = json.loads(link.getresponse().read())["penstock"]["memory"]
        except (OSError, HTTPException, ValueError, KeyError):
            return None
        self.judge_accounts(found)
        return sum(found.values())

    def judge_accounts(self, found: dict[str, int]) -> None:
        """They may have too much for a moment, not for longer."""
        self._over = self._over + 1 if sum(found.values()) > MEMORY else 0
        if self._over > OVER_MOST:
            self.fault(f"the accounts have more than {MEMORY} bytes and nobody gives way: {found}")

    def _goes_on(self, now: float, until: float) -> bool:
        few = len(self.history) < self.least and now < until + self.patience
        return not self.ended_by_itself and (now < until or few)

    def _teller(self, number: int) -> Callable[[str, str], object]:
        def tell(name: str, door: str) -> None:
            self.history.append((time.monotonic(), number, name, door))
            self.say(f"{door}: {name}")

        return tell

    # what is judged

    def fault(self, what: str) -> None:
        """Once, however often it is seen; the siege goes on."""
        head = re.sub(r"[0-9]+", "0", what.partition("\n")[0])
        if head not in self._faults:
            self._faults.add(head)
            self.say(f"WRONG: {what}")
            self.books.fault(f"{what}\nunder way: {self.under_way()}")

    @property
    def ended_by_itself(self) -> bool:
        """Whether the server did."""
        return self.server.process is not None and self.server.process.poll() is not None

    def look(self) -> None:
        """The server, what it says, and whether all are served."""
        process = self.server.process
        assert process is not None
        if process.poll() is not None:
            self.fault(f"the server ended with {process.returncode}:\n{self.server.output()[-4000:]}")
            return
        self.listen()
        for client in self.team:
            while client.failures:
                self.fault(f"{client.name}: {client.failures.pop()!r}")
        for client in self.lone:
            if time.monotonic() - client.served_at > self.patience:
                client.served_at = time.monotonic()
                self.fault(f"nobody was served over {client.door} for {self.patience:g} s")

    def listen(self) -> None:
        """New lines of the server."""
        with (self.folder / "output.txt").open("rb") as file:
            file.seek(self._said)
            new = file.read()
        end = new.rfind(b"\n") + 1
        self._said += end
        for line in new[:end].decode(errors="replace").splitlines():
            if (ended := ENDED.search(line)) is not None:
                self.ended(ended[1], ended[2])
            for sign in SAID:
                if sign in line:
                    time.sleep(0.5)  # for the rest of what it says
                    self.fault(f"the server said {line}:\n{self.server.output()[-4000:]}")
                    break

    def ended(self, door: str, status: str) -> None:
        """A door's process: only where it was attacked."""
        self.books.counts[f"ends of the {door} door"] += 1
        attacked = [
            f"{where}: {what}" for what, where in self.under_way() if DOORS.get(PROTOCOLS.get(where, "")) == door
        ]
        told = f"the {door} door ended with {status} under {attacked}"
        self.deaths.append(told)
        self.say(told)
        if not attacked:
            self.fault(f"the {door} door ended with {status}, and nobody attacked it")

    def under_way(self) -> list[tuple[str, str]]:
        """Attacks of now, and of a moment ago."""
        since, found = time.monotonic() - REMEMBERED_S, list[tuple[str, str]]()
        for number in range(len(self.attackers)):
            mine = [one for one in self.history if one[1] == number]
            found += [(what, where) for at, _, what, where in mine if at > since]
            found += [(what, where) for _, _, what, where in [one for one in mine if one[0] <= since][-1:]]
        return found

    # the end

    def dismiss(self) -> None:
        """All clients stop."""
        for client in self.team:
            client.stopping.set()
        for client in self.team:
            client.join(60)
            if client.is_alive():
                self.books.fault(f"{client.name} does not stop")
        self.look()

    def account(self) -> None:
        """Every message; then the server is stopped."""
        if self.ended_by_itself:
            return
        self.books.close(drained(self.server.port, self.books, QUEUES, quiet=10.0, link=Town))
        self.server.stop()
        self.listen()

    def verdicts(self) -> list[slope.Verdict]:
        """Of the server's own process.  A run too short to tell has none."""
        if self.seconds < 600:
            return []
        return [slope.judge("memory", self.points["memory"], 300.0)]  # descriptors are looked at when all is over

    def waited(self) -> Iterator[tuple[str, dict[str, list[float]]]]:
        """Milliseconds that honest publishes took, by what went on and door."""
        times = {client.door: client.waited for client in self.lone}
        yield (
            "calm before",
            {door: [one.seconds * 1e3 for one in all_ if one.began < self.before] for door, all_ in times.items()},
        )
        yield (
            "siege",
            {
                door: [one.seconds * 1e3 for one in all_ if self.before < one.began < self.after]
                for door, all_ in times.items()
            },
        )
        yield (
            "calm after",
            {door: [one.seconds * 1e3 for one in all_ if one.began > self.after] for door, all_ in times.items()},
        )
        spans = dict[str, list[tuple[float, float]]]()
        for number in range(len(self.attackers)):
            mine = [one for one in self.history if one[1] == number]
            for (at, _, what, where), end in zip(mine, [*(one[0] for one in mine[1:]), self.after], strict=True):
                spans.setdefault(f"{where}: {what}", []).append((at, end))
        for what, mine_ in sorted(spans.items()):
            yield (
                what,
                {
                    door: [one.seconds * 1e3 for one in all_ if any(at <= one.began < end for at, end in mine_)]
                    for door, all_ in times.items()
                },
            )


def told(siege: Siege) -> str:
    """What happened, in lines."""
    lines = [f"{'ms, p50/p99/most':32} {'amqp':>22} {'flight':>22} {'http':>22}"]
    for what, by_door in siege.waited():
        cells = list[str]()
        for door in ("amqp", "flight", "http"):
            taken = sorted(by_door[door])
            cells.append(
                "-"
                if not taken
                else "/".join(f"{taken[int(len(taken) * part)]:.0f}" for part in (0.5, 0.99)) + f"/{taken[-1]:.0f}"
            )
        lines.append(f"{what:32} " + " ".join(f"{cell:>22}" for cell in cells))
    lines += [
        f"{one.name}: median {one.median:.0f} {one.unit}, risen {one.risen:+.1f}, limit {one.limit:.0f}"
        for one in siege.verdicts()
    ]
    lines += [f"{count} times: {what}" for what, count in Counter(siege.deaths).most_common()]
    lines.append(", ".join(f"{count:,} {name}" for name, count in siege.books.counts.items()))
    lines.append(f"{len(siege.history):,} bouts of {len({one[2:] for one in siege.history})} attacks")
    return "\n".join(lines)


def main() -> int:
    """Run; 1 when something is wrong."""
    options = by_hand.options(__doc__)
    options.add_argument("--bout", type=float, default=6.0, help="seconds that an attack takes, more or less")
    options.add_argument("--attack", help=argparse.SUPPRESS)  # this is an attacker's process
    given = options.parse_args()
    if given.attack is not None:
        target = Target(**json.loads(given.attack))
        bouts(
            target,
            given.seed,
            time.monotonic() + given.seconds,
            given.bout,
            lambda name, door, _: print(f"{name}\t{door}", flush=True),
        )
        return 0
    run = by_hand.Run(given, "siege")
    siege = Siege(run.folder, given.seconds, given.seed, bout=given.bout, say=run.say)
    siege.run()
    print(told(siege))
    rising = (f"{one.name} rises by {one.risen:.1f} {one.unit}" for one in siege.verdicts() if not one.good)
    return run.end([*siege.books.wrong, *rising])


if __name__ == "__main__":
    sys.exit(main())
