"""What administrators do to queues while their server is killed: each deed writes down what it asked for and what was
answered, and says after a start whether what is there can be.

DEEDS has a class for each.  `work` is one step, over and over until the server is gone; what is written down before an
answer may be so or not, what is written down after it must be.  Tokens are numbers, one for each message.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pyarrow as pa

import forked
import penstock
from penstock import PenstockError
from penstock.core.state.lsns import flat
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.writer import MEMORY
from penstock.server.opening import fold
from penstock.testing.instance import FakeClock
from waiting import eventually

ALL = ("ready", "leased", "delayed")
MOST = 1 << 20


def bodies(tokens: Iterable[int]) -> pa.Table:
    """Messages of these numbers, each with something by which it can be ranked, grouped and left out."""
    return pa.table({"body": [orjson.dumps({"id": n, "p": n % 7, "g": n % 3, "x": "." * (n % 50)}) for n in tokens]})


def tokens(client: penstock.Client, queue: str) -> list[int]:
    """What waits in a queue, by LSN; AssertionError where it counts something else."""
    found = [int(orjson.loads(message.body)["id"]) for message in client.peek(queue, MOST, states=ALL)]
    stats = client.stats(queue)
    counted = {state: stats[state] for state in ALL}
    assert sum(counted.values()) == len(found), f"{queue}: {counted} are counted, {len(found)} are shown"
    return found


class Server:
    """Where it is and what it has, for those that need more than a client."""

    def __init__(self, url: str, data: Path) -> None:
        self.url, self.data = url, data

    def command(self, *arguments: object) -> Any:
        """What a command prints; PenstockError with what it said when it failed."""
        done = forked.penstock(*map(str, arguments), "--json")
        if done.returncode:
            raise PenstockError(f"{arguments}: {done.returncode}: {done.stdout}{done.stderr}")
        return orjson.loads(done.stdout)


class Deed:
    """Something that is done to queues of its own."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.last = 0
        self.done = Counter[str]()

    def fresh(self, most: int = 120) -> list[int]:
        """Tokens that there were not."""
        first, self.last = self.last + 1, self.last + self.random.randint(1, most)
        return list(range(first, self.last + 1))

    def prepare(self, client: penstock.Client) -> None:
        """Once, before all."""

    def work(self, client: penstock.Client, server: Server) -> None:
        """One step."""
        raise NotImplementedError

    def judge(self, client: penstock.Client, server: Server) -> None:
        """After a kill and a start."""
        raise NotImplementedError


class Ledger:
    """What a queue has, in order, and what it may have instead."""

    def __init__(self) -> None:
        self.sure = list[int]()
        self.may: Callable[[list[int]], bool] | None = None
        self.asked = ""

    def ask(self, what: str, may: Callable[[list[int]], bool]) -> None:
        """It is under way; may: what there can be if it is not answered, beside what there was."""
        self.asked, self.may = what, may

    def ask_more(self, more: Sequence[int]) -> None:
        """Messages are published, one after the other."""
        self.ask(f"{len(more)} more", lambda found: found == [*self.sure, *more][: len(found)])

    def answered(self, now: list[int]) -> None:
        """It is done."""
        self.sure, self.may, self.asked = now, None, ""

    def judge(self, found: list[int], queue: str) -> None:
        """It is so now."""
        sure, may = self.sure, self.may
        good = found == sure or (may is not None and may(found))
        assert good, f"{queue}, under way: {self.asked or 'nothing'}: {apart(sure, found)}"
        self.answered(found)


def apart(sure: list[int], found: list[int]) -> str:
    """How they differ, briefly."""
    lost, strange = sorted({*sure} - {*found}), sorted({*found} - {*sure})
    twice = [n for n, count in Counter(found).items() if count > 1]
    return (
        f"{len(sure)} were sure and {len(found)} are there; not there {lost[:9]} ({len(lost)}), not sure {strange[:9]} "
        f"({len(strange)}), more than once {twice[:9]}, in order: {found == sorted(found)}"
    )


def restored(data: Path, queue: str) -> list[int]:
    """What a queue of a data folder has, by LSN."""
    log = Log.open(OsDisk(data), FakeClock(), MEMORY)
    try:
        state, _ = fold(log)
        (lsns,) = [flat(one.waiting) for one in state.queues.values() if one.name == queue]
        rows = log.read(lsns.tolist())
        return [orjson.loads(body)["id"] for body in rows.bodies]
    finally:
        log.close(clean=False)


class One(Deed):
    """Of one queue, which is filled and what `act` does."""

    queue = ""
    most = 400
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.ledger = Ledger()

    def prepare(self, client: penstock.Client) -> None:
        client.declare(self.queue, **self.settings)

    def fill(self, client: penstock.Client) -> None:
        more = self.fresh()
        self.ledger.ask_more(more)
        client.publish_table(self.queue, bodies(more))
        self.ledger.answered(self.ledger.sure + more)

    def work(self, client: penstock.Client, server: Server) -> None:
        if len(self.ledger.sure) < self.most and self.random.random() < 0.6:
            self.fill(client)
        else:
            self.act(client, server)
            self.done[type(self).__name__] += 1

    def act(self, client: penstock.Client, server: Server) -> None:
        raise NotImplementedError

    def judge(self, client: penstock.Client, server: Server) -> None:
        self.ledger.judge(tokens(client, self.queue), self.queue)


class Purges(One):
    """All of it or nothing."""

    queue = "purged"

    def act(self, client: penstock.Client, server: Server) -> None:
        self.ledger.ask("a purge", lambda found: not found)
        client.purge(self.queue)
        self.ledger.answered([])


class Renews(One):
    """A queue is deleted and declared anew under its name: nothing of the old one comes back."""

    queue = "renewed"
    most = 250

    def act(self, client: penstock.Client, server: Server) -> None:
        self.ledger.ask("a deletion", lambda found: not found)
        client.delete(self.queue)
        self.ledger.answered([])
        client.declare(self.queue)

    def judge(self, client: penstock.Client, server: Server) -> None:
        if not any(one["queue"] == self.queue for one in client.queues()):
            assert not self.ledger.sure or self.ledger.asked == "a deletion", f"{self.queue} is gone with what it had"
            self.ledger.answered([])
            client.declare(self.queue)
        super().judge(client, server)


class Alters(One):
    """Settings are changed: the order and the contents follow them, or are as they were."""

    queue = "altered"
    most = 300
    SETTINGS: Sequence[dict[str, Any]] = (
        {"max_length": 40}, {"max_length": None}, {"group_key": "/g"}, {"group_key": None},
        {"priority_expression": "/p"}, {"priority_expression": None},
        {"fairness_key": "/g"}, {"fairness_key": None}, {"lease_period": "2s"},
        {"last_value_key": "/id"}, {"last_value_key": None}, {"file_backed_metadata": True},
        {"file_backed_metadata": False},
    )  # fmt: skip

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.bound: int | None = None

    def fill(self, client: penstock.Client) -> None:
        """What gives way to newer ones is those that would be served last, or first: the server is asked."""
        more, bound, sure = self.fresh(), self.bound, self.ledger.sure
        if bound is None:
            super().fill(client)
            return

        def may(found: list[int]) -> bool:
            return {*found} <= {*sure, *more} and len({*found}) == len(found) >= min(bound, len(sure))

        self.ledger.ask(f"{len(more)} more of {bound}", may)
        client.publish_table(self.queue, bodies(more))
        self.ledger.answered(self.bounded(client, sure + more))

    def bounded(self, client: penstock.Client, those: list[int]) -> list[int]:
        """What is left of these, once the priorities of all are known: until then nobody gives way."""
        count = len(those) if self.bound is None else min(self.bound, len(those))
        found = list[int]()

        def left() -> bool:
            found[:] = tokens(client, self.queue)
            assert {*found} <= {*those}, f"{self.queue}: {apart(those, found)}"
            return len(found) == count

        eventually(left, lambda: f"{self.queue}: {len(found)} of {len(those)} are left, not {count}")
        return found

    def act(self, client: penstock.Client, server: Server) -> None:
        change, sure = self.random.choice(self.SETTINGS), self.ledger.sure
        bound = change.get("max_length", self.bound)
        self.ledger.ask(f"{change}", lambda found: {*found} <= {*sure} and len(found) == min(bound or MOST, len(sure)))
        try:
            client.alter(self.queue, **change)
        except (penstock.PreconditionFailed, penstock.InvalidArgument):
            self.done["refused"] += 1  # it does not go with another one
        else:
            self.bound = bound
        self.ledger.answered(self.bounded(client, sure))

    def judge(self, client: penstock.Client, server: Server) -> None:
        super().judge(client, server)
        client.alter(self.queue, max_length=None)  # whichever of two it is
        self.bound = None


class Moves(Deed):
    """From one queue to another, the oldest first: each message is in one of both, whatever was moved."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.ledgers = {name: Ledger() for name in ("left", "right")}

    def prepare(self, client: penstock.Client) -> None:
        for name, ledger in self.ledgers.items():
            client.declare(name)
            more = self.fresh(300)
            client.publish_table(name, bodies(more))
            ledger.answered(more)

    def work(self, client: penstock.Client, server: Server) -> None:
        source, target = self.random.sample(sorted(self.ledgers), 2)
        count = self.random.choice((1, 7, 90, 1000))
        old, new = self.ledgers[source].sure, self.ledgers[target].sure
        self.ledgers[source].ask(f"a move of {count}", lambda found: found == old[len(old) - len(found) :])
        self.ledgers[target].ask(f"a move of {count}", lambda found: found == [*new, *old][: len(found)])
        moved = client.move(source, target, count=count)["moved"]
        assert moved == min(count, len(old)), f"{moved} of {len(old)} were moved, {count} were asked for"
        self.ledgers[source].answered(old[moved:])
        self.ledgers[target].answered(new + old[:moved])
        self.done["moves"] += 1

    def judge(self, client: penstock.Client, server: Server) -> None:
        found = {name: tokens(client, name) for name in self.ledgers}
        before = sorted(n for ledger in self.ledgers.values() for n in ledger.sure)
        after = [n for some in found.values() for n in some]
        assert sorted(after) == before, f"moved: {apart(before, after)}"
        for name, ledger in self.ledgers.items():
            ledger.judge(found[name], name)


class Redrives(Deed):
    """Messages are refused and driven back: each is there once, wherever."""

    def prepare(self, client: penstock.Client) -> None:
        client.declare("tried", dead_letter_exchange="", dead_letter_routing_key="refused")
        client.declare("refused")
        client.publish_table("tried", bodies(self.fresh(300)))

    def work(self, client: penstock.Client, server: Server) -> None:
        if self.random.random() < 0.5:
            client.redrive("refused", count=self.random.choice((1, 30, 500)))
            self.done["redrives"] += 1
            return
        consumer = client.consume("tried", backlog=40, timeout="50ms", reconnect=0)
        for _ in range(self.random.randint(1, 60)):
            if (message := consumer.take(0.05)) is None:
                break
            message.reject()
        consumer.close()

    def judge(self, client: penstock.Client, server: Server) -> None:
        found = list[int]()

        def whole() -> bool:
            """A letter that was begun is on its way, and may be in both for a moment."""
            try:
                found[:] = [*tokens(client, "tried"), *tokens(client, "refused")]
            except AssertionError:
                return False  # what is moved between two looks is not counted alike
            return sorted(found) == list(range(1, self.last + 1))

        eventually(whole, lambda: f"redriven: {apart(list(range(1, self.last + 1)), found)}")


class Uploads(Deed):
    """Long uploads with a publisher's numbers: what was answered is there, and what is sent again is there once."""

    ROWS = 30_000  # three of the batches that it is stored in

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.again: list[int] = []
        self.sure = list[int]()

    def prepare(self, client: penstock.Client) -> None:
        client.declare("uploaded")

    def work(self, client: penstock.Client, server: Server) -> None:
        if len(self.sure) > 3 * self.ROWS:
            client.purge("uploaded")
            self.sure = []
        rows = self.again or list(range(self.last + 1, self.last + 1 + self.random.choice((50, 9_000, self.ROWS))))
        self.last, self.again = rows[-1], rows
        client.publish_table("uploaded", bodies(rows), publisher="loader", sequence=rows[0])
        self.sure, self.again = self.sure + rows, []
        self.done["uploads"] += 1

    def judge(self, client: penstock.Client, server: Server) -> None:
        found = tokens(client, "uploaded")
        if not found and len(self.sure) > 3 * self.ROWS:
            self.sure = []  # it was purged, and that was not answered
        wanted = self.sure + self.again
        assert len(found) >= len(self.sure), f"uploaded: {apart(self.sure, found)}"
        assert found == wanted[: len(found)], f"uploaded: {apart(wanted[: len(found)], found)}"
        if self.again:
            client.publish_table("uploaded", bodies(self.again), publisher="loader", sequence=self.again[0])
            found = tokens(client, "uploaded")
            assert found == wanted, f"uploaded again: {apart(wanted, found)}"
        self.sure, self.again = wanted, []


class Replays(Deed):
    """A topic is read from its beginning while more comes; a reader that goes on from its place misses nothing."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.ledger = Ledger()
        self.read = list[int]()
        self.mark = "EPOCH"

    def prepare(self, client: penstock.Client) -> None:
        client.declare_topic("events")

    def work(self, client: penstock.Client, server: Server) -> None:
        if self.random.random() < 0.5:
            more = self.fresh()
            self.ledger.ask_more(more)
            client.publish_table("events", bodies(more))
            self.ledger.answered(self.ledger.sure + more)
            return
        self.go_on(client, self.random.choice((5, 200)))
        self.done["replays"] += 1

    def go_on(self, client: penstock.Client, limit: int | None) -> None:
        for message in client.replay("events", self.mark, limit=limit):
            self.read.append(int(orjson.loads(message.body)["id"]))
            self.mark = message.bookmark

    def judge(self, client: penstock.Client, server: Server) -> None:
        found = [int(orjson.loads(message.body)["id"]) for message in client.replay("events")]
        self.ledger.judge(found, "events")
        self.go_on(client, None)
        assert self.read == found, f"read bit by bit: {apart(found, self.read)}"


class Recovers(Deed):
    """What a purge took is published again by a command, which is run until it ends well: each once."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.sure = list[int]()
        self.lsn = 0
        self.step: str = "fill"

    def prepare(self, client: penstock.Client) -> None:
        client.declare("recovered")

    def work(self, client: penstock.Client, server: Server) -> None:
        if self.step == "fill":
            self.sure = self.fresh(300)
            client.publish_table("recovered", bodies(self.sure))
            self.step = "purge"
        elif self.step == "purge":
            client.purge("recovered")
            self.step = "list"
        elif self.step == "done":
            self.step = "fill"
            client.purge("recovered")
        else:
            self.recover(server)
            self.done["recoveries"] += 1

    def recover(self, server: Server) -> None:
        where = "--url", server.url, "--data", server.data
        if self.step == "list":
            self.lsn = max(int(one["lsn"]) for one in server.command("queue", "recover", "recovered", *where))
            self.step = "recover"
        if self.step == "recover":
            server.command("queue", "recover", "recovered", "--lsn", self.lsn, "--yes", *where)
            self.step = "done"

    def judge(self, client: penstock.Client, server: Server) -> None:
        found = tokens(client, "recovered")
        if self.step in ("purge", "list") and not found and self.sure:
            self.step = "list"
        elif self.step == "purge":
            assert found == self.sure, f"recovered, before the purge: {apart(self.sure, found)}"
        if self.step in ("list", "recover"):
            assert sorted({*found} & {*self.sure}) == sorted(found), f"half: {apart(self.sure, found)}"
            self.recover(server)
            found = tokens(client, "recovered")
        if self.step == "done":
            assert sorted(found) == self.sure, f"recovered: {apart(self.sure, found)}"
        client.purge("recovered")
        self.step = "fill"


class BacksUp(One):
    """A backup that ended well has what was confirmed before it; one that did not is none, and the next one is."""

    queue = "kept"
    most = 2_000

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.begun: Path | None = None
        self.before, self.ended = list[int](), False
        self.number = 0

    def act(self, client: penstock.Client, server: Server) -> None:
        self.number += 1
        self.begun, self.before = self.folder / f"backup-{self.number}", [*self.ledger.sure]
        self.ended = False
        server.command("backup", self.begun, "--url", server.url)
        self.ended = True

    def judge(self, client: penstock.Client, server: Server) -> None:
        super().judge(client, server)
        if self.begun is None or not self.begun.exists():
            return
        data, begun, self.begun = self.folder / f"restored-{self.number}", self.begun, None
        done = forked.penstock("restore", str(begun), str(data))
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode == 0:  # else the answer may have been lost all the same
            assert server.command("audit", "--data", data)["findings"] == []
            kept = restored(data, self.queue)
            assert kept[: len(self.before)] == self.before, f"in {begun}: {apart(self.before, kept)}"
            self.done["restored"] += 1
            shutil.rmtree(data)
        else:
            assert not self.ended, done.stderr
        shutil.rmtree(begun)


class Tends(One):
    """Segments are archived and compacted, as often as that finds something, while messages come and are done."""

    queue = "tended"
    most = 600

    def act(self, client: penstock.Client, server: Server) -> None:
        sure, count = self.ledger.sure, self.random.randint(1, 300)
        consumer = client.consume(self.queue, backlog=count, timeout="50ms", reconnect=0)
        taken = list[penstock.Message]()
        while len(taken) < count and (message := consumer.take(0.2)) is not None:
            taken.append(message)
        gone = {int(orjson.loads(message.body)["id"]) for message in taken}
        assert gone <= {*sure}, f"tended: {sorted(gone - {*sure})[:9]} came, which are gone"
        left = [n for n in sure if n not in gone]
        self.ledger.ask(f"{len(gone)} acks", lambda found: found == left)
        with client.transaction() as transaction:
            for message in taken:
                transaction.ack(message)
        self.ledger.answered(left)
        consumer.close()
        client.action("compact", with_vhost=False, dry_run=False)


DEEDS: Sequence[type[Deed]] = (Purges, Renews, Alters, Moves, Redrives, Uploads, Replays, Recovers, BacksUp, Tends)
