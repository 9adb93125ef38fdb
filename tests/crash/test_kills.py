"""kill -9 at random moments of mixed load, again and again on one folder, judged by the table of docs/durability.md.

What the clients wrote down before and after each step is the only witness.  `PENSTOCK_KILLS` sets how often (5),
`PENSTOCK_SEED` repeats a run's choices (not its timing).  What this cannot show: a killed process is no power cut.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pika
import pyarrow as pa
import pytest
from pika import spec

import penstock
from choices import EFFORT, SEED
from crash_clients import (
    QUEUES,
    Administrator,
    Alarm,
    Client,
    Confirm,
    Delivery,
    Peer,
    Publisher,
    Worker,
    identity,
    left,
    publish_bytes,
)
from live_server import LiveServer, all_durable
from waiting import eventually

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("PENSTOCK_KILLS", "0")) or (10 * EFFORT if EFFORT > 1 else 5)
PART = 1.0 if EFFORT > 1 else 0.5
"""How much of the time before a kill of a hunt one of a usual run has."""

GROUP = {
    "plain": "plain",
    "work": "work",
    "dead": "work",
    "again": "again",
    "once": "once",
    "left": "left",
    "right": "right",
}
TAKERS = {
    "plain": ["plain"], "transient": ["plain"], "work": ["work"], "again": ["again"], "once": ["once"],
    "both": ["left", "right"],
}  # fmt: skip
TEAMS = (
    (("plain", "left"), ("work",), ("again", "once")),
    (("plain", "work", "once"),),
    (("work", "again"), ("work", "dead"), ("once",), ("once", "plain")),
    (),
)
"""What the workers of one life consume."""
AIMS = ("d once", "d once", "d plain", "c ", "m", "q+! ", "q-! ", "a ")
QUIET_S = 0.3
PATIENCE_S = 60.0


class Judge:
    """What must, may and must not be in each group of queues, learned from the journals."""

    def __init__(self) -> None:
        self.kind: dict[str, str] = {}
        self.sure: dict[str, set[str]] = defaultdict(set)  # by group: must be there
        self.open: dict[str, set[str]] = defaultdict(set)  # may be there: not confirmed, or acked without proof
        self.gone: dict[str, set[str]] = defaultdict(set)  # must not come back
        self.seen: set[tuple[str, str]] = set()  # (queue, id) that was delivered
        self.queues: dict[str, bool | None] = {}  # of administrators: there, gone, or unknown
        self.fresh: set[tuple[str, str]] = set()  # (queue, id) delivered in this life as not delivered before
        self.proven: list[tuple[str, str]] = []  # (group, id) whose ack is durable, in this life
        self.unproven: list[tuple[str, str]] = []
        self.reading = False  # the journals of a life, whose order among each other is not known
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()

    def read(self, journal: Path) -> None:
        """Everything one client wrote in one life of the server."""
        acks: list[tuple[str, str]] = []
        before_marker = 0
        for line in journal.read_text().splitlines():
            match line.split():
                case ["p", name, kind]:
                    self.kind[name] = kind
                    self.counts["published"] += 1
                    for queue in TAKERS[kind]:
                        self.open[GROUP[queue]].add(name)
                case ["c", name]:
                    self.counts["confirmed"] += 1
                    for queue in TAKERS[self.kind[name]]:
                        self.open[GROUP[queue]].discard(name)
                        self.sure[GROUP[queue]].add(name)
                case ["d", queue, name, again]:
                    self.delivered(queue, name, again == "1")
                case ["a", queue, name]:
                    acks.append((GROUP[queue], name))
                case ["k"]:
                    before_marker = len(acks)
                case ["m"]:
                    self.proven += acks[:before_marker]
                    acks = acks[before_marker:]
                case ["n", _, _]:
                    self.counts["given back or rejected"] += 1
                case [("q+" | "q-"), name]:
                    self.queues[name] = None
                case ["q+!", name]:
                    self.queues[name] = True
                case ["q-!", name]:
                    self.queues[name] = False
                case other:
                    raise AssertionError(other)
        self.unproven += acks

    def finished(self, group: str, name: str) -> None:
        self.sure[group].discard(name)
        self.open[group].discard(name)
        self.gone[group].add(name)

    def delivered(self, queue: str, name: str, again: bool) -> None:
        self.counts["delivered"] += 1
        group = GROUP[queue]
        if queue == "once":
            if (queue, name) in self.seen:
                self.wrong.append(f"{name} of the at-most-once queue was delivered twice")
            self.gone[group].add(name)
        elif name in self.gone[group]:
            self.wrong.append(f"{name} came back to {queue} although its end was durable")
        # journals of one life may be read in another order than things happened, so one first delivery is fine
        if not again:
            if (queue, name) in self.fresh or ((queue, name) in self.seen and not self.reading):
                self.wrong.append(f"{name} was delivered from {queue} again and does not say so")
            self.fresh.add((queue, name))
        self.seen.add((queue, name))

    def server_died(self, journals: list[Path]) -> None:
        """Take in what the clients of that life wrote; publishes first, as several clients speak of one message."""
        self.reading = True
        for journal in sorted(journals, key=lambda path: not path.name.startswith("pub")):
            self.read(journal)
        self.reading = False
        self.counts["acks proven durable"] += len(self.proven)
        for group, name in self.proven:
            self.finished(group, name)
        for group, name in self.unproven:
            if name not in self.gone[group]:
                self.sure[group].discard(name)
                self.open[group].add(name)
        self.proven, self.unproven = [], []
        for name in [name for name in self.sure["plain"] | self.open["plain"] if self.kind[name] == "transient"]:
            self.finished("plain", name)  # the process ended, and so did they
        for name in self.gone["once"] | self.sure["once"]:  # it may have been removed for a send that never came
            self.sure["once"].discard(name)
            if name not in self.gone["once"]:
                self.open["once"].add(name)

    def judge(self, found: dict[str, list[tuple[str, bool]]]) -> None:
        """Everything that was found in all queues, after a restart."""
        by_group: dict[str, list[str]] = defaultdict(list)
        for queue, messages in found.items():
            for name, again in messages:
                by_group[GROUP[queue]].append(name)
                self.delivered(queue, name, again)
            if queue not in ("dead", "again"):  # there places are those of deaths, and delays end when they end
                self._in_order(queue, [name for name, _ in messages])
        for group in sorted(set(GROUP.values())):
            names = by_group[group]
            twice = [name for name, count in Counter(names).items() if count > 1]
            lost = self.sure[group] - set(names)
            strange = set(names) - self.sure[group] - self.open[group] - self.gone[group]
            self.wrong += [f"{name} is in {group} {names.count(name)} times" for name in twice[:5]]
            self.wrong += [f"{name} is lost from {group}: {len(lost)} are" for name in sorted(lost)[:5]]
            self.wrong += [f"{name} in {group} was never published there" for name in sorted(strange)[:5]]
            # what is there is durable; what is not there will never be again
            self.gone[group] |= self.open[group] - set(names)
            if group != "once":
                self.sure[group] = set(names) - self.gone[group]
            self.open[group] = set()

    def _in_order(self, queue: str, names: list[str]) -> None:
        last: dict[str, int] = {}
        for name in names:
            publisher, number = name.rsplit(".", 1)
            if int(number) <= last.get(publisher, 0):
                self.wrong.append(f"{name} comes after {publisher}.{last[publisher]} in {queue}")
            last[publisher] = int(number)


def declare(server: LiveServer) -> None:
    with Peer(server.port) as peer:
        peer.method(spec.Exchange.Declare(exchange="fork", type="topic", durable=True))
        peer.expect(spec.Exchange.DeclareOk)
        arguments: dict[str, dict[str, object]] = {
            "work": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
            "again": {"x-retry": {"initial": "30ms", "max": "150ms"}},
            "once": {"x-semantics": "at-most-once"},
        }
        for queue in (*QUEUES, "markers"):
            peer.method(spec.Queue.Declare(queue=queue, durable=True, arguments=arguments.get(queue, {})))
            peer.expect(spec.Queue.DeclareOk)
        for queue in ("left", "right"):
            peer.method(spec.Queue.Bind(queue=queue, exchange="fork", routing_key="a.*"))
            peer.expect(spec.Queue.BindOk)


def look(server: LiveServer, judge: Judge, rnd: random.Random) -> None:
    """Take everything out of every queue and judge it; some queues are then emptied, others get everything back."""
    peers = {queue: Peer(server.port) for queue in QUEUES}
    try:
        with Peer(server.port) as looker:
            found, last = collect(looker, peers, {name for names in judge.sure.values() for name in names})
        judge.judge(found)
        if judge.wrong:
            return
        for queue, peer in peers.items():
            if queue in last and rnd.random() < 0.5:
                peer.method(spec.Basic.Ack(last[queue], multiple=True))
                confirm(peer)
                for name, _ in found[queue]:
                    judge.finished(GROUP[queue], name)
        check_queues(server, judge)
    finally:
        for peer in peers.values():
            peer.socket.close()


def collect(
    looker: Peer, peers: dict[str, Peer], wanted: set[str]
) -> tuple[dict[str, list[tuple[str, bool]]], dict[str, int]]:
    """All messages of all queues, unsettled, and the last tag of each: until nothing comes and none is left."""
    for queue, peer in peers.items():
        peer.method(spec.Basic.Consume(queue=queue, consumer_tag=queue, nowait=True))
    found: dict[str, list[tuple[str, bool]]] = {queue: [] for queue in peers}
    last: dict[str, int] = {}
    missing = set(wanted)
    began = quiet_since = time.monotonic()
    while True:
        quiet = time.monotonic() - quiet_since > (PATIENCE_S if missing else QUIET_S)
        over = quiet and not left(looker, peers)
        readable, _, _ = select.select([peer.socket for peer in peers.values()], [], [], 0.1)
        if over and not readable:  # what was on its way when none was left has come
            return found, last
        for queue, peer in peers.items():
            if peer.socket not in readable:
                continue
            for event in peer.events(0.1):
                assert isinstance(event, Delivery)
                name = identity(event.body)
                found[queue].append((name, event.redelivered))
                missing.discard(name)
                last[queue] = event.tag
            quiet_since = time.monotonic()
        assert time.monotonic() - began < 5 * PATIENCE_S


def confirm(peer: Peer) -> None:
    """A message published after the acks is confirmed, so the acks are durable."""
    peer.select_confirms()
    peer.send(publish_bytes("", "markers", b"marker "))
    until = time.monotonic() + PATIENCE_S
    while not any(not isinstance(event, Delivery) for event in peer.events(0.5)):
        assert time.monotonic() < until, "no confirm came"


def check_queues(server: LiveServer, judge: Judge) -> None:
    """Queues that administrators made and deleted."""
    peer = Peer(server.port)
    left = list[str]()
    for name, there in judge.queues.items():
        peer.method(spec.Queue.Declare(queue=name, passive=True))
        answer = peer.read().method
        if isinstance(answer, spec.Queue.DeclareOk):
            if there is False:
                judge.wrong.append(f"the deleted queue {name} is back")
            left.append(name)
        else:
            if there is True:
                judge.wrong.append(f"the declared queue {name} is lost")
            peer.method(spec.Channel.CloseOk())
            peer.open_channel()
    for name in left:
        peer.method(spec.Queue.Delete(queue=name))
    for _ in left:
        peer.expect(spec.Queue.DeleteOk)
    judge.queues.clear()
    peer.method(spec.Queue.Purge(queue="markers"))
    peer.expect(spec.Queue.PurgeOk)
    peer.socket.close()


def clients(server: LiveServer, folder: Path, life: int, alarm: Alarm, rnd: random.Random) -> Iterator[Client]:
    def path(what: str) -> Path:
        return folder / f"{what}-{life}"

    for number in range(rnd.choice((1, 2, 3))):
        yield Publisher(server.port, path(f"pub{number}"), rnd.randrange(1 << 30), alarm)
    for number, queues in enumerate(rnd.choice(TEAMS)):
        yield Worker(server.port, path(f"worker{number}"), rnd.randrange(1 << 30), alarm, queues)
    yield Administrator(server.port, path("admin"), rnd.randrange(1 << 30), alarm)


def test_kills(tmp_path: Path) -> None:
    rnd = random.Random(SEED)
    judge = Judge()
    server = LiveServer(tmp_path, ["--sync", "commit"])
    print(f"PENSTOCK_SEED={SEED} PENSTOCK_KILLS={KILLS}, journals in {tmp_path}")
    with server:
        declare(server)
        for life in range(1, KILLS + 1):
            alarm = Alarm()
            team = list(clients(server, tmp_path, life, alarm, rnd))
            for client in team:
                client.start()
            time.sleep(rnd.choice((0.05, 0.3, 0.7, 1.0)) * rnd.uniform(0.5, 1.5) * PART)
            if rnd.random() < 0.5:  # just after a client saw something, instead of at any moment
                alarm.prefix = rnd.choice(AIMS)
                alarm.rings.wait(1)
            server.kill()
            for client in team:
                client.stopping.set()
                client.join(60)
                assert not client.is_alive(), client.name
                assert client.failure is None, f"seed {SEED}, life {life}, {client.name}: {client.failure!r}"
            judge.server_died([tmp_path / client.name for client in team])
            if rnd.random() < 0.3:
                die_while_starting(server, rnd)
            server.start()
            look(server, judge, rnd)
            assert not judge.wrong, f"PENSTOCK_SEED={SEED}, life {life}, see {tmp_path}:\n" + "\n".join(
                judge.wrong[:30]
            )
    assert server.process is not None
    assert server.process.returncode == 0, server.output()
    assert "Traceback" not in server.output(), server.output()
    print(dict(judge.counts))
    audit(server.data)


def die_while_starting(server: LiveServer, rnd: random.Random) -> None:
    """A kill during recovery leaves what a kill before it left."""
    server.spawn("127.0.0.1:0")
    time.sleep(rnd.uniform(0.1, 1.0))
    server.kill()


def audit(data: Path) -> None:
    """The log tells the same story."""
    from penstock.cli.logfiles import audit as audit_log

    report = audit_log(data)
    assert not report.findings, "\n".join(
        f"{one.guarantee}: {one.text} {one.lsns[:10]}" for one in report.findings[:20]
    )


def test_an_ack_older_than_ack_sync_is_kept(tmp_path: Path) -> None:
    """Nothing else happens on the server: the ack goes to disk by itself."""
    server = LiveServer(tmp_path)
    server.http = "127.0.0.1:0"
    with server:
        channel = server.connect().channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(20):
            channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        tags = [channel.basic_get("q")[0].delivery_tag for _ in range(10)]
        channel.basic_ack(tags[-1], multiple=True)
        channel.basic_qos()  # answered after the ack was read
        eventually(lambda: all_durable(server), "the ack does not go to the disk")
        server.kill()
        server.start()
        channel = server.connect().channel()
        left = channel.queue_declare("q", passive=True).method.message_count
        assert left == 10
        assert channel.basic_get("q")[2] == b"10"


def test_at_most_once_is_never_sent_twice(tmp_path: Path) -> None:
    """Killed the moment a message from the backlog comes: its removal must be in the log already."""
    rnd = random.Random(SEED)
    seen: Counter[str] = Counter()
    with LiveServer(tmp_path) as server:
        declare(server)
        with Peer(server.port) as peer:
            peer.select_confirms()
            peer.send(b"".join(publish_bytes("", "once", b"%d " % number) for number in range(1000)))
            confirmed = 0
            while confirmed < 1000:
                confirmed = max([confirmed, *(event.tag for event in peer.events(1) if isinstance(event, Confirm))])
        for _ in range(max(KILLS // 2, 3)):
            with Peer(server.port) as peer:
                peer.method(spec.Basic.Qos(prefetch_count=rnd.choice((1, 3))))
                peer.expect(spec.Basic.QosOk)
                peer.method(spec.Basic.Consume(queue="once", consumer_tag="once", nowait=True))
                until = rnd.randrange(1, 60)
                got = 0
                while got < until:
                    for event in peer.events(1):
                        assert isinstance(event, Delivery)
                        got += 1
                        seen[identity(event.body)] += 1
                        peer.method(spec.Basic.Ack(event.tag))
                while True:  # and one more, which is not acked
                    found = [event for event in peer.events(1) if isinstance(event, Delivery)]
                    if found:
                        assert server.process is not None
                        server.process.kill()
                        seen.update(identity(event.body) for event in found)
                        break
            server.kill()
            server.start()
        with Peer(server.port) as looker, Peer(server.port) as peer:
            rest, _ = collect(looker, {"once": peer}, set())
            seen.update(name for name, _ in rest["once"])
    assert [name for name, count in seen.items() if count > 1] == []


def test_an_ack_answered_as_durable_is_final(tmp_path: Path) -> None:
    """Over Flight an ack has an answer; killed right after it, nothing that was answered comes back."""
    rnd = random.Random(SEED)
    waiting: dict[bytes, bool] = {}  # body -> delivered before
    number = 0
    with LiveServer(tmp_path, flight=True) as server:
        for life in range(max(KILLS // 3, 2)):
            client = penstock.connect(f"penstock://{server.ready['flight']}")
            if not life:
                client.declare("work")
            fresh = [b"%d" % (number + i) for i in range(300)]
            number += len(fresh)
            client.publish_table("work", pa.table({"body": fresh}))
            waiting |= dict.fromkeys(fresh, False)
            consumer = client.consume("work", backlog=rnd.choice((1, 32, 1000)), timeout=PATIENCE_S)
            for _ in range(rnd.randrange(20, 200)):
                message = consumer.take()
                assert message is not None
                assert message.body in waiting, f"{message.body!r} was settled for good, or came twice"
                assert message.redelivered or not waiting[message.body]
                waiting[message.body] = True
                if rnd.random() < 0.8:
                    message.ack()
                    del waiting[message.body]
                else:
                    message.release()
                    break  # it comes again next
            consumer.flush()
            assert server.process is not None
            server.process.kill()
            with contextlib.suppress(penstock.PenstockError):
                consumer.close()
            with contextlib.suppress(penstock.PenstockError):
                client.close()
            server.kill()
            server.start()
            waiting = dict.fromkeys(waiting, True)  # anything may have been on its way
        with penstock.connect(f"penstock://{server.ready['flight']}") as client:
            with client.consume("work", backlog=0, timeout=PATIENCE_S, no_ack=True) as consumer:
                rest = [consumer.take() for _ in waiting]
                assert not consumer.catch_up(), "more came than had to"
            counts = client.queue("work")
    assert [message and message.body for message in rest] == sorted(waiting, key=int)
    assert (counts["ready"], counts["leased"]) == (0, 0)
    audit(server.data)
