"""A link between two sites, without sockets and disk: what its ends cost a message, and how fast messages change sites.

    PYTHONPATH=src python benchmarks/bench_links.py [--quick] [--messages 200000]

Microseconds of CPU: the sender makes parcels of record batches of its log, the receiver stores what they bring, and
knows whose it is.  Then messages whose site has no consumer are asked for, given, worked and settled at the other one:
that is all the work of both cores, on one CPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness import emit, parse, parser

from penstock.core.broker import Core
from penstock.core.effects import Verb, delivered
from penstock.core.links.carried import Carries
from penstock.core.links.sharing import Site
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.log.encode import arrow_batch
from penstock.records.chunks import Now
from penstock.records.entries import Entry, Publishes
from penstock.records.properties import Properties, encode
from penstock.records.queue_settings import QueueSettings

DURABLE = encode(Properties(delivery_mode=2))
BODY = b"." * 150
START = 1_700_000_000_000_000
CREDIT = 1_000
SITES = (Site("a", 11), Site("b", 22))


class End:
    """A site, and what its log has not told yet."""

    def __init__(self, mine: Site, other: Site) -> None:
        self.core = Core(mine.origin)
        self.micros = START
        self.core.boot(self.now, clean=True, next_lsn=1)
        for site in (mine, other):
            self.core.meet(self.now, site)
        self.queue = self.core.declare_queue(self.now, "/", "q", QueueSettings(fairness_model="round-robin"))
        self.name, self.other = mine.name, other.name
        self.core.carries(other.name, [Carries("q")])
        self.journal: list[Entry] = []
        self.turn()

    def link(self, other: End) -> None:
        """The link to the other one comes up."""
        self.telling = self.core.telling(other.name)
        other.core.share(self.name, self.core.offers(other.name))

    @property
    def now(self) -> Now:
        return Now(self.micros, self.micros)

    def turn(self) -> None:
        """What the engine takes; deliveries are looked at by who wants them."""
        self.journal += self.core.take_journal()
        self.core.stamps.note(self.core.last_lsn, self.micros)

    def publish(self, count: int) -> None:
        """Messages as one batch."""
        batch = Publishes(self.core.topic("/", "", "q"), DURABLE, [BODY] * count, size=count * len(BODY))
        self.core.publish(self.now, batch)
        self.turn()

    def send(self, other: End) -> float:
        """Tell the other one all that is new; seconds that telling took."""
        self.turn()
        entries, self.journal = self.journal, []
        if not entries:
            return 0.0
        batch = arrow_batch(entries)
        begun = time.process_time()
        parcels = list(self.telling.parcels(batch))
        heads = [parcel.head for parcel in parcels]
        took = time.process_time() - begun
        for parcel, head in zip(parcels, heads, strict=True):
            other.core.hear(other.now, self.name, head, parcel.rows)
        other.turn()
        return took


def pair() -> tuple[End, End]:
    """Two sites with links both ways."""
    a, b = End(*SITES), End(*reversed(SITES))
    a.link(b)
    b.link(a)
    return a, b


def ends(messages: int, size: int) -> tuple[float, float]:
    """CPU microseconds a message, of the sender's and the receiver's end."""
    a, b = pair()
    batches = []
    for _ in range(messages // size):
        a.publish(size)
        batches.append(arrow_batch(a.journal))
        a.journal = []
    begun = time.process_time()
    sent = [(parcel.head, parcel.rows) for batch in batches for parcel in a.telling.parcels(batch)]
    told = time.process_time()
    for head, rows in sent:
        b.core.hear(b.now, "a", head, rows)
        b.turn()
        b.journal = []
    ended = time.process_time()
    count = len(batches) * size
    assert b.queue.foreign_count == count, b.queue.foreign_count
    return (told - begun) / count * 1e6, (ended - told) / count * 1e6


def worked(messages: int) -> float:
    """Messages a second that change their site and are worked there."""
    a, b = pair()
    for _ in range(messages // 1_000):
        a.publish(1_000)
        a.send(b)
    workers = [b.core.subscribe(b.now, b.queue, tag=f"w{n}", holder=b, max_backlog=CREDIT) for n in range(2)]
    b.micros += 1_000_000
    done, begun = 0, time.process_time()
    while done < messages:
        b.micros += 1_000
        for asked in b.core.asks(b.now):
            a.core.answer(a.now, "b", asked.ask)
        a.send(b)
        done += settle(b, workers)
        b.send(a)
    took = time.process_time() - begun
    assert (a.queue.ready, a.queue.foreign_count, b.queue.foreign_count) == (0, 0, 0)
    return messages / took


def settle(site: End, workers: Sequence[Consumer]) -> int:
    """What was delivered is acknowledged; how many these were."""
    count = 0
    for one in [*delivered(site.core.take_effects())]:
        site.core.settle(site.now, site.queue, [one.chunk], Verb.ACK, by=one.consumer)
        count += len(one.chunk)
    site.turn()
    return count


def main() -> None:
    options = parse(parser(__doc__ or "", messages=200_000, quick=4_000))
    for size in (1_000, 50):
        told = [ends(options.messages, size) for _ in range(options.repeat)]
        settings = {"messages": options.messages, "rows of a batch": size}
        for end, least, which in (("sender", 0.5, 0), ("receiver", 1.0, 1)):
            emit(
                f"a link's {end}, CPU a message", [one[which] for one in told], "us",
                budget=least if size == 1_000 else None, settings=settings,
            )  # fmt: skip
    count = max(options.messages // 2_000, 1) * 1_000
    emit(
        "messages without a consumer at their site, worked at another", [worked(count) for _ in range(options.repeat)],
        "messages/s", budget=50_000, sense="at least", settings={"messages": count, "credit": 2 * CREDIT},
    )  # fmt: skip


if __name__ == "__main__":
    main()
