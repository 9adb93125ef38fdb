"""What looking at a queue shows is what its counts say: over all pairs of options, through every door, over restarts.

One broker has a queue for each set of options of a covering array.  Each takes messages of several groups, tenants and
keys, a scheduled one and a barrier; some are leased, one to a stream, one came back, one dies and cannot leave.  Then
it is looked at: as it stands, after a crash without a checkpoint, and after a start from one that does not know keys,
in a usual run after either of these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from choices import EFFORT, SEED
from looking import Looker, Wrong
from penstock.core.links.ownership import Claim
from penstock.core.links.sharing import Site
from penstock.core.queue import shares
from penstock.core.queue.owning import why_not_shared
from penstock.errors import QueueBlocked, QueueFull
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode
from penstock.server.asking import recovering
from penstock.testing import Broker
from penstock.testing.instance import Instance
from property.queue_options import FULL, Options, covering, every, of, unknown

OPTIONS_MOST = 24
"""Options of one queue, about; half as many with each step of more effort."""

QUEUES_MOST = 64
"""Queues of one broker."""

FILLERS = 1000
"""Messages before the others in a queue with a target depth, which is no less."""


SHARED = (("expiration", 0), ("retry", 0))
"""Options of queues that have messages of another site, too; few sets of many options do."""


class Case:
    """A queue, and what it is asked to keep."""

    def __init__(self, number: int, options: Options) -> None:
        self.queue = f"q{number}"
        self.topic = f"t{number}"
        self.view = f"v{number}"
        self.options = {name: self.topic if value == "{topic}" else value for name, value in options.items()}

    def __str__(self) -> str:
        return f"{self.queue}: {self.options}"

    @property
    def address(self) -> str:
        """Where its messages are published."""
        key = str(self.options.get("underlying_topic", self.queue))
        return f"{self.options['exchange']}/{key}" if "exchange" in self.options else key

    @property
    def kept(self) -> Mapping[str, object]:
        """The topic that keeps its messages while it is not there."""
        key = self.options.get("underlying_topic", self.queue)
        return {"name": key, "exchange": self.options.get("exchange", "")}

    @property
    def browsed(self) -> bool:
        """Whether nobody takes anything out of it."""
        return "non_destructive" in self.options or self.options.get("queue_type") == "stream"


def config(cases: Sequence[Case], *, queues: bool) -> dict[str, object]:
    """The settings file."""
    full = {"name": FULL, "max_length": 1, "overflow": "reject-publish"}
    return {
        "exchange": [{"name": "shop", "type": "topic"}],
        "topic": [case.kept for case in cases if "recovery_point" in case.options],
        "queue": [full, {"name": "elsewhere"}, *({"name": case.queue, **case.options} for case in cases if queues)],
        "view": [{"name": case.view, "source": case.queue, "select": "COUNT(1) AS /n"} for case in cases],
    }


def publish(broker: Broker, case: Case, numbers: range) -> None:
    """Messages of all kinds; what a limit refuses does not come in."""
    for n in numbers:
        body = {"n": n, "g": "ab"[n % 3 % 2], "t": "xyz"[n % 3], "k": n - n % 4 % 2, "id": n // 2 if n < 4 else n}
        if n == 6:
            body["kind"] = "barrier"
        text = json.dumps(body)
        try:
            broker.publish(case.address, text, priority=n % 4, delay={4: 1, 9: 600}.get(n))
        except (QueueFull, QueueBlocked):
            continue


def fill_depth(broker: Broker, case: Case) -> None:
    """So many messages that a target depth is reached."""
    bodies = [b'{"n": 0, "k": %d, "id": "f%d"}' % (n, n) for n in range(10_000, 10_000 + FILLERS)]

    def work(instance: Instance) -> None:
        topic = instance.core.topic("/", *broker.link.parted(case.address))
        batch = Publishes(topic, encode(Properties(delivery_mode=2)), bodies)
        instance.core.publish(instance.engine.now(), batch)
        instance.make_durable()

    broker.command(work)


def use(broker: Broker, looker: Looker, case: Case) -> None:
    """Messages come, some are given out, one comes back, one dies, and then nothing is delivered any more."""
    worker = broker.subscribe(case.queue, name=f"worker of {case.queue}", max_backlog=4)
    if "target_queue_depth" in case.options:
        fill_depth(broker, case)
    publish(broker, case, range(2, 12))
    broker.advance(2)  # one of the scheduled ones is due
    held = worker.take()
    if case.options.get("semantics") != "at-most-once" and not case.browsed:
        client = looker.client
        client.action("stream_open", stream=f"reader of {case.queue}", queue=case.queue)
        client.action("plan", stream=f"reader of {case.queue}", start=0, max_rows=1)
    broker.pause(case.queue)
    give_away(broker, case)
    for message, settle in zip(held, ("cancel", "ack"), strict=False):
        getattr(message, settle)()
    waiting = looker.client.peek(case.queue, 1)
    for message in waiting:
        broker.ack(case.queue, message.bookmark, option="expire")


def give_away(broker: Broker, case: Case) -> None:
    """Another site owns one that is ready and one that is leased, where that can be."""

    def work(instance: Instance) -> None:
        core, now = instance.core, instance.engine.now()
        queue = core.queue("/", case.queue)
        if why_not_shared(queue.settings) is None:
            core.meet(now, Site("here", core.origin))
            core.meet(now, Site("there", core.origin + 1))
            for state in ("leased", "ready"):
                lsn = min((chunk[0] for chunk in queue.chunks(state) if len(chunk)), default=0)
                if state == "ready" and not lsn:  # barriers hold all of it back, and the last one is none itself
                    lsn = max((chunk[-1] for chunk in queue.chunks("held", "inactive") if len(chunk)), default=0)
                core.own(now, queue, [(lsn, lsn + 1)], Claim("there", 1, "transfer"))
            assert queue.foreign_count or not queue.arrived, case
            instance.make_durable()

    broker.command(work)


def look(broker: Broker, cases: Sequence[Case], when: str) -> list[str]:
    """What is shown wrong."""
    out: list[Wrong] = []
    with Looker(broker) as looker:
        for case in cases:
            out += looker.look(case.queue, case.view, f"{case.queue} {when}")
        asked = [case.queue for case in cases]
        by_queue = looker.query(asked)
        for name in asked:
            counts = {state: count for state, count in looker.counts(name).items() if count and state != "inactive"}
            if by_queue.get(name, {}) != counts:
                out.append(Wrong(name, "SQL", by_queue.get(name, {}), counts))
    return [f"{when}: {one}" for one in out]


@contextmanager
def stopped_passes() -> Iterator[Callable[[Broker], None]]:
    """Passes over the log stop after their first step, in which they find one message a queue; what lets them go on."""
    walk, steps = recovering.Recoveries._walk, [1]

    def some(self: recovering.Recoveries) -> None:
        if steps:
            steps.pop()
            walk(self)

    def go_on(broker: Broker) -> None:
        steps.extend([1] * 1000)
        broker.command(lambda instance: instance.engine.recoveries.start())

    with patch.object(recovering, "STEP_FOUND", 1), patch.object(recovering.Recoveries, "_walk", some):
        yield go_on


def forget_checkpoints(broker: Broker) -> None:
    for name in broker.disk.list("checkpoints"):
        broker.disk.remove(f"checkpoints/{name}")


def wrong(sets: Sequence[Options], look: Callable[[Broker, Sequence[Case], str], list[str]] = look) -> list[str]:
    """What is shown wrong of queues with these options."""
    cases = [Case(number, options) for number, options in enumerate(sets)]
    found: list[str] = []
    with Broker(config(cases, queues=False)) as broker:
        broker.publish(FULL, b"{}")
        for case in cases:
            if "recovery_point" in case.options:
                publish(broker, case, range(2))
        with stopped_passes() as go_on:
            broker.restart(config(cases, queues=True))
            broker.advance(1)
            late = [case for case in cases if "recovery_point" in case.options]
            found += look(broker, late, "as older messages are looked for")
            go_on(broker)
        with Looker(broker) as looker:
            for case in cases:
                use(broker, looker, case)
        broker.advance(1)
        found += look(broker, cases, "in use")
        crashed, started = (cases, cases) if EFFORT > 1 else (cases[::2], cases[1::2] or cases)
        broker.crash()
        forget_checkpoints(broker)
        broker.restart()
        broker.advance(1)
        found += look(broker, crashed, "after a crash")
        with patch.object(shares, "WINDOW", 1):
            broker.restart()
            broker.advance(1)
            found += look(broker, started, "after a start that knows few keys")
        with Looker(broker) as looker:
            for number, case in enumerate(cases):
                found += settle_all(looker, case, number)
    by_queue = {case.queue: str(case) for case in cases}
    named = sorted({line.split(": ")[1] for line in found}, key=lambda name: int(name[1:]))
    return found + [by_queue[name] for name in named]


def settle_all(looker: Looker, case: Case, number: int) -> list[str]:
    """A purge takes what it counts, a settlement by filter all that is active."""
    before = looker.counts(case.queue)
    if number % 2 or case.browsed:
        reader, count = "purge", looker.client.purge(case.queue)
        takes = ("ready", "held", "inactive")
    else:
        by = f"worker of {case.queue}"
        reader, count = "ack by filter", looker.client.ack_filter(case.queue, "1=1", by=by)
        takes = ("ready", "held", "delayed", "foreign")
    there = sum(before[state] for state in takes)
    after = looker.counts(case.queue)
    out = []
    if count != there:
        out.append(Wrong(case.queue, reader, count, there))
    if any(after[state] for state in takes) and "target_queue_depth" not in case.options:
        out.append(Wrong(case.queue, f"{reader}, what is left", after, {}))
    return [f"at the end: {one}" for one in out]


def test_every_option_has_a_recipe() -> None:
    assert unknown() == []


def test_looking_shows_what_is_counted(effort: int) -> None:
    """All pairs of options, in few queues; with more effort in more queues of fewer options, and each option alone."""
    arrays = [covering(SEED + n, max(OPTIONS_MOST >> n, 3)) for n in range(effort)]
    if effort > 1:
        arrays.append([options for one in every() if (options := of(one)) is not None])
    arrays[0] += [options for one in SHARED if (options := of(one)) is not None]
    for array in arrays:
        for start in range(0, len(array), QUEUES_MOST):
            found = wrong(array[start : start + QUEUES_MOST])
            assert not found, "\n".join(found)


def test_a_start_writes_nothing_before_its_boot_record() -> None:
    """What a plan holds is held again although its queue has something to do at once: one without consumers."""
    assert not wrong(covering(1333453761, OPTIONS_MOST)[:QUEUES_MOST], lambda *_: [])
