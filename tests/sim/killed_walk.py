"""Walks over every command there is, whose disk is looked at before each call that changes it: what a power cut or a
kill would leave there must be what one of the commands left, wholly.  Beside them goes what `killed_upkeep` has: the
log lets segments go and writes them anew, checkpoints are taken bit by bit, the disk fails, clients come over AMQP.

A walk runs once.  Before writes, syncs, renames and removals the disk is copied; each copy is then crashed by itself,
folded with and without its checkpoints, and started.  What a copy shows is compared with what the server showed after
each command: not before the last that was answered, nor beyond the one that was under way.

COMMANDS has a row for each command: how often, and what its answer promises.  Whoever adds a command adds a row.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from penstock.config.queue_settings import read_queue_settings
from penstock.config.queue_values import BadValue
from penstock.core.audit_log import Audit
from penstock.core.state.durable import DurableState, canonical
from penstock.errors import LogBroken, PenstockError
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.server.opening import fold
from penstock.testing import Broker
from penstock.testing.inbox import Message, Subscription
from penstock.testing.instance import FakeClock
from sim.killed_seen import Seen, between, emptied, folded, plainly, seen_of, started
from sim.killed_upkeep import FLEETING, QUEUES, SEGMENT, Sessions, Upkeep
from sim.logkit import SMALL
from sim.serverkit import T0

TOPICS = ("events", "state")
EXCHANGES: Mapping[str, tuple[str, dict[str, object]]] = {
    "fan": ("fanout", {}),
    "later": ("x-delayed-message", {"x-delayed-type": "fanout"}),
    "once": ("x-message-deduplication", {"x-cache-size": 4, "x-cache-ttl": 5000}),
    "late": ("x-recent-history", {"x-recent-history-length": 2}),
}
LETTERS = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}

OPTIONS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "lease_period": ({"lease_period": "2s"},),
    "retry": ({"retry": {"initial": "1s", "jitter": 0}},),
    "expiration": ({"message_ttl": "3s"}, {"message_ttl": "3s", **LETTERS}),
    "letters": (LETTERS,),
    "priority": ({"max_priority": 5}, {"priority_expression": "/p"}),
    "group_key": ({"group_key": "/g"},),
    "fairness_key": ({"fairness_key": "/g", "max_leased": 3},),
    "single": ({"single_active_consumer": True},),
    "dedup": ({"dedup_key": "/k", "dedup_window": "3s"}, {"dedup_key": "/k", "unique": True}),
    "last_value_key": ({"last_value_key": "/k"},),
    "length": (
        {"max_length": 3}, {"max_length_bytes": "150B"}, {"ring_size": 3},
        *({"max_length": 3, "overflow": word} for word in ("reject-publish", "drop-newest", "block")),
        {"max_length": 3, "overflow": "reject-publish-dlx", **LETTERS}, {"max_length": 2, **LETTERS},
    ),
    "filter": ({"filter": "/p > 0"},),
    "semantics": ({"semantics": "at-most-once", "fairness_model": "round-robin", "deliver": "durable"},),
    "recovery": (
        {"recovery_point": "epoch", "underlying_topic": "events", "default_publish_target": "events"},
        {"underlying_topic": "events", "default_publish_target": "events"},
    ),
    "barrier": ({"barrier_expression": "/p = 4"},),
    "paged": ({"file_backed_metadata": True},),
    "stays": ({"non_destructive": True},),
}  # fmt: skip
"""Settings of queues, by what they are about."""

ALTERED: Sequence[Mapping[str, object]] = (
    {"max_length": 2}, {"max_length": None}, {"ring_size": 2}, {"ring_size": None},
    {"overflow": "reject-publish", "max_length": 4},
    {"priority_expression": "/k"}, {"max_priority": 3}, {"group_key": "/g"}, {"group_key": None}, {"message_ttl": "2s"},
    {"message_ttl": None}, {"lease_period": "1s"}, {"last_value_key": "/k"}, {"last_value_key": None},
    {"filter": "/p < 3"}, {"filter": None}, {"dedup_key": "/k", "dedup_window": "2s"},
    {"recovery_point": "epoch"}, {"recovery_point": "now"}, {"single_active_consumer": True},
    {"file_backed_metadata": True}, LETTERS,
)  # fmt: skip
POLICIES: Sequence[Mapping[str, object]] = (
    {"max-length": 2}, {"message-ttl": 2500}, {"max-length": 3, "overflow": "reject-publish"}, {"filter": "/p < 4"},
    {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, {"lease-period": 2000}, {"delivery-limit": 5},
)  # fmt: skip

# -- the disk


class Copied(NamedTuple):
    """What a disk was like, and which commands were answered by then."""

    disk: Watched
    wall: int
    floor: int  # the last that was answered
    under_way: int
    call: str  # that had not been made


class Watched(SimDisk):
    """A disk that is looked at before each call that changes it."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.seed = seed
        self.before: Callable[[str], None] = lambda _: None

    def due(self, kind: str) -> int:
        self.before(kind)
        return super().due(kind)

    def rename(self, old: str, new: str) -> None:
        self.before("rename")
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self.before("remove")
        super().remove(name)

    def fails(self) -> bool:
        """Whether one of the next calls does."""
        return any(self._faults.values())

    def copied(self, seed: int) -> Watched:
        """The same files, written and synced as far, on a disk of their own."""
        out, known = Watched(seed=seed), dict[int, Any]()

        def again(inode: Any) -> Any:
            if id(inode) not in known:
                known[id(inode)] = new = type(inode)(bytearray(inode.seen), bytearray(inode.safe), list(inode.dirty))
                return new
            return known[id(inode)]

        out._names = {name: again(inode) for name, inode in self._names.items()}
        out._safe_names = {name: again(inode) for name, inode in self._safe_names.items()}
        out._changes = [(folder, name, None if one is None else again(one)) for folder, name, one in self._changes]
        return out


# -- the walk

STEPS, LIVES, DEPTH = 30, 2, 2
COPIES = 6
"""Copies of a life that are looked at."""

# what the answer of a command promises
WHOLE = "whole"  # it is done, wholly and for good
EACH = "each"  # the same, and meanwhile each message is where it was or where it goes
LATER = "later"  # nothing yet
Promise = str


class Walk(Upkeep):
    """A broker over several lives, by its seed."""

    def __init__(self, seed: int, *, lives: int = LIVES, copies: int = COPIES, steps: int = STEPS) -> None:
        self.seed, self.dice = seed, random.Random(seed)
        self.lives, self.copies, self.steps = lives, copies, steps
        self.disk = Watched(seed=seed)
        self.count = 0
        self.sequence = 0
        self.done = Counter[str]()
        self.kept_from, self.tended = 0, 0
        self.ever = dict[int, tuple[str, bytes]]()  # all that was ever stored
        self.begin(self.disk, T0)
        for name, (kind, arguments) in EXCHANGES.items():
            self.broker.act("declare_exchange", exchange=name, type=kind, arguments=arguments)
        self.broker.act("declare_topic", topic="events")
        self.broker.act("declare_topic", topic="state", settings={"key": ["/k"]})
        for name in QUEUES:
            self.make(name)
        self.broker.act("declare_by_arguments", queue="s", arguments={"x-queue-type": "stream"})

    def begin(self, disk: Watched, wall: int) -> None:
        """A life on a disk."""
        self.disk = disk
        self.broker = Broker({}, disk=disk, clock=FakeClock(wall), seed=self.seed)
        self.instance.log._appender._limit = SEGMENT
        self.sessions: Sessions | None = None
        self.capturing = self.kept = None
        self.decided = list[Seen]()
        append = self.instance.log.append

        def appended(entries: Any, **how: Any) -> None:
            append(entries, **how)
            if disk.fails():  # nobody can be asked once it has failed
                self.decided.append(self.noted())

        self.instance.log.append = appended
        self.answered: Copied | None = None  # as the last answer left
        self.copy: Callable[[str], Copied] | None = None
        handover = self.broker.link.handover
        submit = handover.submit

        def submitted(job: Any) -> Any:
            answer = submit(job)
            if self.copy is not None:
                self.answered = self.copy("what follows the answer")
            return answer

        handover.submit = submitted  # type: ignore[method-assign]
        self.subscriptions = list[Subscription]()
        self.held = list[Message]()
        self.marks = list[str]()
        self.streams = dict[str, int]()

    # -- what commands need

    @property
    def instance(self) -> Any:
        assert self.broker.instance is not None
        return self.broker.instance

    def queue(self) -> str:
        names = QUEUES if self.instance.core.find_queue("/", FLEETING) is None else (*QUEUES, FLEETING)
        return self.dice.choice(names)

    def body(self) -> str:
        self.count += 1
        dice = self.dice
        return json.dumps({"id": self.count, "k": dice.randrange(3), "g": dice.choice("ab"), "p": dice.randrange(6)})

    def place(self) -> str:
        return self.dice.choice(
            (*QUEUES, *QUEUES, "s", "events", "events", "state", *(f"{one}/a" for one in EXCHANGES))
        )

    def options(self, most: int = 3) -> dict[str, object]:
        """Some that can stand together."""
        out = dict[str, object]()
        for key in self.dice.sample(sorted(OPTIONS), self.dice.randint(0, most)):
            new = {**out, **self.dice.choice(OPTIONS[key])}
            try:
                read_queue_settings(new, "file")
            except BadValue:
                continue
            out = new
        return out

    def make(self, name: str) -> None:
        self.declare_one(name)
        for exchange in EXCHANGES:
            if self.dice.random() < 0.3:
                self.broker.act("bind", exchange=exchange, queue=name, key="a")

    def declare_one(self, name: str) -> None:
        settings = read_queue_settings({} if name == "dead" else self.options(), "file")
        if name != "dead" and not self.dice.randrange(5):
            settings = replace(settings, target_queue_depth=DEPTH)  # less than anybody may ask for

        def work(instance: Any) -> None:
            instance.core.declare_queue(instance.engine.now(), "/", name, settings)
            instance.make_durable()

        self.broker.command(work)

    def some_mark(self) -> str:
        return self.dice.choice(self.marks[-6:]) if self.marks else f"{self.instance.log.origin}|1|"

    def some_waiting(self) -> str:
        """A message of some queue, mostly."""
        waiting = [lsn for queue in self.instance.core.queues() for chunk in queue.snapshot()[0] for lsn in chunk]
        return f"{self.instance.log.origin}|{self.dice.choice(waiting)}|" if waiting else self.some_mark()

    # -- commands

    def publish(self) -> None:
        dice, asked = self.dice, dict[str, Any]()
        if dice.random() < 0.3:
            asked["headers"] = {"x-delay": dice.choice((1000, 3000)), "x-deduplication-header": str(dice.randrange(3))}
        if dice.random() < 0.2:
            asked["delay"] = 2
        if dice.random() < 0.2:
            asked["expiration"] = dice.choice((1, 4))
        if dice.random() < 0.3:
            asked["priority"] = dice.randrange(7)
        self.marks.append(self.broker.publish(self.place(), self.body(), **asked))
        self.marks = [mark for mark in self.marks if mark]

    def number(self) -> None:
        """With a publisher's number, perhaps one that it had."""
        self.sequence = self.broker.last_sequence("pub") + 1
        sequence = self.sequence if self.dice.random() < 0.7 else max(self.sequence - 1, 1)
        mark = self.broker.publish(self.place(), self.body(), publisher="pub", sequence=sequence)
        assert not (mark and sequence < self.sequence), "a number that was confirmed is stored again"

    def delta(self) -> None:
        self.broker.delta_publish("state", json.dumps({"id": self.count, "k": self.dice.randrange(3), "n": self.count}))

    def drop_records(self) -> None:
        if self.dice.random() < 0.5:
            self.broker.sow_delete("state", filter=self.dice.choice(("/k = 1", "/k > 0", "1=1")))
        else:
            self.broker.sow_delete("state", data=json.dumps({"k": self.dice.randrange(3)}))

    def transact(self) -> None:
        dice = self.dice
        with self.broker.transaction() as transaction:
            for _ in range(dice.randrange(4)):
                transaction.publish(self.place(), self.body())
            dice.shuffle(self.held)
            for _ in range(dice.randrange(3)):
                if self.held:
                    getattr(transaction, dice.choice(("ack", "ack", "cancel", "expire", "release")))(self.held.pop())

    def take(self) -> None:
        asked = {"filter": "/p > 2"} if self.dice.random() < 0.2 else {}
        self.subscriptions.append(self.broker.subscribe(self.queue(), max_backlog=self.dice.choice((1, 2, 5)), **asked))
        self.receive()

    def receive(self) -> None:
        for one in self.subscriptions:
            self.held += one.take()

    def settle(self) -> None:
        self.receive()
        if self.held:
            message = self.held.pop(self.dice.randrange(len(self.held)))
            getattr(message, self.dice.choice(("ack", "ack", "cancel", "release", "reject")))()

    def leave(self) -> None:
        if self.subscriptions:
            self.subscriptions.pop(self.dice.randrange(len(self.subscriptions))).close()

    def purge(self) -> None:
        self.broker.act("purge", queue=self.queue())

    def alter(self) -> None:
        self.broker.alter(self.queue(), **self.dice.choice(ALTERED))

    def policy(self) -> None:
        name = self.dice.choice("xy")
        operator = name == "y" and self.dice.random() < 0.5
        if self.dice.random() < 0.6:
            self.broker.act(
                "policy_set",
                policy=name,
                pattern=self.dice.choice(("^q", "^q[01]$", "q2|dead")),
                operator=operator,
                definition=dict(self.dice.choice(POLICIES)),
            )
        else:
            self.broker.act("policy_delete", policy=name, operator=operator)

    def move(self) -> None:
        source, target = self.dice.sample((*QUEUES, "s"), 2)
        asked = {"filter": "/p > 1"} if self.dice.random() < 0.3 else {}
        self.broker.move(source, target, count=self.dice.choice((1, 3, 100)), **asked)

    def redrive(self) -> None:
        self.broker.redrive("dead", count=self.dice.choice((2, 100)))

    def delete(self) -> None:
        self.broker.act("delete", queue=self.queue(), if_empty=self.dice.random() < 0.2)

    def declare(self) -> None:
        there = {queue.name for queue in self.instance.core.queues()}
        gone = [name for name in QUEUES if name not in there]
        if gone:
            self.declare_one(gone[0])

    def bind(self) -> None:
        """A queue with a filter gets what is remembered a moment after the answer (docs/rabbitmq.md)."""
        act, exchange, name = self.dice.choice(("bind", "unbind")), self.dice.choice(sorted(EXCHANGES)), self.queue()
        queue = self.instance.core.find_queue("/", name)
        asked = queue is not None and (queue.settings.filter or queue.settings.barrier_expression)
        if exchange != "late" or not asked:
            self.broker.act(act, exchange=exchange, queue=name, key="a")

    def exchange(self) -> None:
        name = self.dice.choice(sorted(EXCHANGES))
        kind, arguments = EXCHANGES[name]
        if self.instance.core.topology.exchange("/", name) is None:
            self.broker.act("declare_exchange", exchange=name, type=kind, arguments=arguments)
        elif self.dice.random() < 0.5:
            self.broker.act("delete_exchange", exchange=name)

    def topic(self) -> None:
        if ("/", "", "state") in self.instance.core.topology.topics and self.dice.random() < 0.3:
            self.broker.act("delete_topic", topic="state")
        else:
            settings = self.dice.choice(({"key": ["/k"]}, {"key": ["/k"], "expiration": "3s"}, {"key": ["/g"]}))
            self.broker.act("declare_topic", topic="state", settings=settings)

    def withdraw(self) -> None:
        self.broker.cancel_message(self.some_waiting(), self.queue() if self.dice.random() < 0.5 else None)

    def reschedule(self) -> None:
        self.broker.reschedule_message(self.some_waiting(), self.dice.choice((0, 1.5)))

    def pause(self) -> None:
        self.broker.pause(self.queue(), self.dice.choice((None, 2)))

    def resume(self) -> None:
        self.broker.resume(self.queue())

    def ack_by_name(self) -> None:
        marks = {self.some_mark() for _ in range(3)}
        self.broker.ack(self.queue(), sorted(marks), option=self.dice.choice((None, None, "cancel", "expire")))

    def ack_filter(self) -> None:
        self.broker.ack_filter(
            self.queue(), self.dice.choice(("/p > 3", "/g = 'a'")), option=self.dice.choice((None, "expire"))
        )

    def pass_by(self) -> None:
        self.broker.advance(self.dice.choice((0.01, 0.2, 1, 2)))

    def checkpoint(self) -> None:
        instance = self.instance
        instance.commit()
        instance.log.write_checkpoint(instance.core.durable_state().encode(), instance.core.last_lsn)

    def plan(self) -> None:
        """A durable reader of a queue: it takes a batch, and settles the one before."""

        def work(instance: Any) -> None:
            core, name = instance.core, self.dice.choice(("s0", "s1"))
            queue, now = core.queue("/", self.queue()), instance.engine.now()
            known = core.streams.states.get(name)
            if known is not None and self.dice.random() < 0.3:
                core.streams.release(now, name, drop=self.dice.random() < 0.5)
            else:
                opened = core.streams.open(now, name, queue if known is None else core.find_queue("/", queue.name))
                start = core.streams.states[name].planned
                core.streams.plan(now, name, opened.epoch, start, self.dice.choice((1, 10)))
            instance.make_durable()

        self.broker.command(work)

    # -- a life

    def look(self) -> Seen:
        self.instance.run(lambda: None)
        return self.noted()

    def noted(self) -> Seen:
        """What is there now, with what is on its way to the disk."""
        instance = self.instance
        seen = seen_of(instance.core.durable_state(), instance.log, instance.log.gathered())
        self.ever.update(seen.told)
        return seen

    def live(self) -> None:
        """Some commands, while the disk is copied; then copies are judged, and the life goes on from one of them."""
        dice, chance = self.dice, random.Random(self.dice.random())
        marks = [self.look()]
        names, copied = ["the start"], list[Copied]()
        floor, seen, at_last = 0, 0, 0

        def copy(call: str) -> Copied:
            disk = self.disk.copied(chance.randrange(1 << 30))
            return Copied(disk, self.broker.clock.wall(), floor, len(names) - 1, call)

        def keep(one: Copied) -> None:
            nonlocal seen
            seen += 1
            if len(copied) < self.copies:
                copied.append(one)
            elif (at := chance.randrange(seen)) < self.copies:
                copied[at] = one

        for _ in range(dice.randint(self.steps // 3, self.steps)):
            row = dice.choices(COMMANDS, WEIGHTS)[0]
            names.append(row.name)
            at_last = len(names) - 1
            self.disk.before, self.copy, self.answered = lambda call: keep(copy(call)), copy, None
            self.decided = list[Seen]()
            try:
                row.run(self)
                self.done[row.name] += 1
            except (PenstockError, OSError) as error:
                self.done[f"{row.name}: {type(error).__name__}"] += 1
                if isinstance(error, LogBroken) and self.instance.engine.broken is None:
                    raise
            self.instance.run(lambda: None)
            self.disk.before, self.copy = lambda _: None, None
            if self.instance.engine.broken is not None:
                self.done["the disk failed"] += 1
                marks += self.decided or marks[-1:]
                names += [row.name] * (len(marks) - len(names))
                break
            marks.append(self.look())
            if row.promise != LATER:
                floor = len(names) - 1
                if self.answered is not None:
                    keep(self.answered._replace(floor=floor))
        copied.append(copy("the end"))
        self.broker.crash()
        self.unkept()
        for one in copied:
            if one.under_way == at_last:
                one = one._replace(under_way=len(names) - 1)
            self.judge(one, marks, names)
        last = chance.choice(copied)
        self.begin(self.crashed(last), last.wall)

    def crashed(self, one: Copied) -> Watched:
        """What a power cut or a kill leaves of it; the same again each time."""
        disk = one.disk.copied(one.disk.seed)
        (disk.crash if disk.seed % 3 else disk.kill)()
        return disk

    # -- what a crash leaves

    def judge(self, one: Copied, marks: Sequence[Seen], names: Sequence[str]) -> None:
        where = f"seed {self.seed}, after {names[one.floor : one.under_way + 1]}, before {one.call}"
        disk = self.crashed(one)
        clock = FakeClock(one.wall)
        log = Log.open(disk, clock, SMALL)
        state, _ = fold(log)
        whole = folded(log)
        assert plainly(state) == plainly(whole), f"{where}: a checkpoint says otherwise"
        again = DurableState.decode(state.encode())
        assert canonical(again) == canonical(state), f"{where}: it is not read as it was written"
        found = seen_of(state, log)
        base = log.base_state()
        audit = Audit(None if base is None or not self.kept_from else DurableState.decode(base[1]))
        for batch in log.batches(0, 1 << 60):
            audit.feed(batch)
        assert not (report := audit.finish(whole)).findings, f"{where}: {report.findings}"
        log.close(clean=False)
        disk.kill()
        dying = disk.copied(disk.seed + 1)
        broker = Broker({}, disk=disk, clock=clock, seed=self.seed)
        try:
            now = started(broker)
            self.compare(where, found, now, marks[one.floor : one.under_way + 1], names[one.floor : one.under_way + 1])
            if disk.seed % 2:
                emptied(broker)
            elif disk.seed % 4:
                self.start_dies(dying, one.wall, now)
        except AssertionError as error:
            error.add_note(where)
            raise
        finally:
            broker.crash()

    def start_dies(self, disk: Watched, wall: int, now: Seen) -> None:
        """The start dies as well; the next one finds what this one would have."""
        disk.fail_next(disk.random.choice(("write", "sync")), after=disk.random.randrange(4))
        clock = FakeClock(wall)
        try:
            Broker({}, disk=disk, clock=clock, seed=self.seed).crash()
        except (PenstockError, OSError):
            disk.crash()
        again = Broker({}, disk=disk, clock=clock, seed=self.seed)
        found = started(again)
        assert found.where() == now.where(), f"after a start that died: {found.differences(now)}"
        again.crash()

    def compare(self, where: str, found: Seen, now: Seen, allowed: Sequence[Seen], names: Sequence[str]) -> None:
        """What the log says is as after one of these; or what a start makes of it is, for it ends what was begun."""
        strange = {lsn: row for lsn, row in found.told.items() if self.ever.get(lsn) != row}
        assert not strange, f"{where}: {strange} was never stored"
        assert not now.fleeting, f"{where}: {now.fleeting} should have gone with the server"
        found, allowed = found.since(self.kept_from), [one.since(self.kept_from) for one in allowed]
        if any(not one.differences(found.passed_as(one)) for one in allowed):
            return
        if any(one.where() == now.passed_as(one).where() for one in allowed):
            return
        for before, after, name in zip(allowed, allowed[1:], names[1:], strict=False):
            if ROWS[name].promise != WHOLE and between(found, before, after):
                return
        text = "\n".join(
            f"  not as after {name}: {' | '.join(one.differences(found)[:6])}"
            for one, name in zip(allowed, names, strict=True)
        )
        raise AssertionError(f"{where}:\n{text}")

    def run(self) -> None:
        for _ in range(self.lives):
            self.live()
        self.broker.close()


class Row(NamedTuple):
    """A command: how often, and what its answer promises."""

    name: str
    weight: int
    promise: Promise
    run: Callable[[Walk], None]


COMMANDS = (
    Row("publish", 12, WHOLE, Walk.publish), Row("publish once", 3, WHOLE, Walk.number),
    Row("delta", 2, WHOLE, Walk.delta), Row("drop records", 2, WHOLE, Walk.drop_records),
    Row("transact", 5, WHOLE, Walk.transact), Row("take", 4, LATER, Walk.take), Row("settle", 6, WHOLE, Walk.settle),
    Row("leave", 2, LATER, Walk.leave), Row("purge", 2, WHOLE, Walk.purge), Row("alter", 4, WHOLE, Walk.alter),
    Row("policy", 3, WHOLE, Walk.policy), Row("move", 4, EACH, Walk.move), Row("redrive", 2, EACH, Walk.redrive),
    Row("delete", 2, WHOLE, Walk.delete), Row("declare", 3, WHOLE, Walk.declare), Row("bind", 2, WHOLE, Walk.bind),
    Row("exchange", 1, WHOLE, Walk.exchange), Row("topic", 1, WHOLE, Walk.topic),
    Row("withdraw", 3, WHOLE, Walk.withdraw), Row("reschedule", 3, WHOLE, Walk.reschedule),
    Row("pause", 1, WHOLE, Walk.pause), Row("resume", 1, WHOLE, Walk.resume),
    Row("ack by name", 3, WHOLE, Walk.ack_by_name), Row("ack filter", 2, EACH, Walk.ack_filter),
    Row("time", 3, LATER, Walk.pass_by), Row("checkpoint", 1, WHOLE, Walk.checkpoint),
    Row("base", 1, WHOLE, Walk.base), Row("plan", 3, WHOLE, Walk.plan), Row("retire", 1, WHOLE, Walk.retire),
    Row("compact", 2, WHOLE, Walk.compact), Row("capture", 6, LATER, Walk.capture), Row("fail", 3, LATER, Walk.fail),
    Row("declare fleeting", 1, LATER, Walk.fleet), Row("publish transient", 2, LATER, Walk.publish_transient),
    Row("connect", 3, LATER, Walk.connect), Row("answer", 6, EACH, Walk.answer), Row("stream", 2, LATER, Walk.stream),
)  # fmt: skip
WEIGHTS = [row.weight for row in COMMANDS]
ROWS = {row.name: row for row in COMMANDS}
ROWS["the start"] = Row("the start", 0, LATER, Walk.pass_by)
