"""Sites whose links come up as those of servers do: hellos, welcomes, parcels and asks are under way, each by itself.

The links are the server's, without its threads and sockets: what one says on a stream comes in its order, what is on
two streams in any order.  A stream breaks at any word, and its two ends see that at different times.  Sites know of
each other what they are told, and of a queue nobody tells twice: what is not known where a schedule ends, and its links
are left alone, is never known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa

from penstock.config.links import LinkSection
from penstock.core.broker import Core
from penstock.core.links.telling import Telling
from penstock.core.state.lsns import flat
from penstock.errors import PenstockError, PreconditionFailed, Unavailable
from penstock.records.chunks import Now
from penstock.records.entries import Control
from penstock.records.kinds import Kind
from penstock.server.base.faults import Faults
from penstock.server.links import links as server
from penstock.server.links.receiving import Incoming
from penstock.server.links.sending import Outgoing
from penstock.wire.flight.commands import Link
from penstock.wire.flight.linking import SAID, Welcome, read_heard, read_said
from penstock.wire.flight.tickets import parse_exchange
from sim.sites_house import ALL, Fabric, SiteWorld


class Engine:
    """What links ask of a server, over the core of a world."""

    def __init__(self, world: CallingWorld) -> None:
        self.world = world
        self.clock = SimpleNamespace(mono=lambda: world.mono, wall=lambda: world.wall)
        self.acts = SimpleNamespace(linked=lambda *_: None)
        self.turns: Any = SimpleNamespace(late=lambda go_on: False)
        self.row_readers, self.on_durable, self.on_room = list[Any](), list[Any](), list[Any]()

    @property
    def core(self) -> Core:
        return self.world.core

    @property
    def faults(self) -> Faults:
        return Faults(self.core, self.clock)  # type: ignore[arg-type]  # it is asked for nothing else

    @property
    def log(self) -> Any:
        return SimpleNamespace(origin=self.world.origin, durable=self.world.durable_lsn, follow=lambda _: None)

    def now(self) -> Now:
        return self.world.now

    def when_durable(self, lsn: int, work: Callable[[], None]) -> None:
        self.world.waiting.append((lsn, work))

    def has_room(self) -> bool:
        return True

    def arm(self) -> None: ...

    def refusal(self) -> None: ...


class CallingWorld(SiteWorld):
    """A site that knows itself alone at first, and has the links of a server."""

    links: server.Links
    begun = False

    def met(self) -> str:
        return ""

    def declare_again(self) -> None:
        """Who is between the others has it later."""
        if self.name != "b" or self.begun:
            super().declare_again()

    def settle_in(self) -> None:
        if not self.begun:
            self.begun = True
            self.core.declare_topic(self.now, "/", "", "q")
        self.waiting = list[tuple[int, Callable[[], None]]]()  # until an LSN is durable
        topic = [{"pattern": "q"}]
        sections = [
            LinkSection.model_validate(
                {"name": one, "to": [f"penstock://{one}:1"], "topic": topic, "pass_through": [".*"]}
            )
            for one in self.linked
            if one != self.name
        ]
        settings: Any = SimpleNamespace(
            site=self.name, link=sections, server=SimpleNamespace(group=f"group-{self.name}")
        )
        self.links = server.Links(Engine(self), None, settings, None)  # type: ignore[arg-type]
        self.turn()


class Stream:
    """One call of a site to another: what is under way on it, both ways."""

    def __init__(self, out: Outgoing, caller: CallingWorld, called: CallingWorld) -> None:
        self.out, self.caller, self.called = out, caller, called
        self.session = out._session
        self.hello: Link | None = parse_exchange(caller.links.hello(out.section))  # type: ignore[assignment]
        self.there: Incoming | None = None
        self.telling: Telling | None = None
        self.level = 0
        self.leveled = False
        self.to_called = deque[tuple[bytes, pa.RecordBatch | None]]()
        self.to_caller = deque[bytes | PenstockError]()
        self.cut = False  # nothing more comes through, and neither end knows it
        self.ends = 3  # that have not seen its end: who called 1, who is called 2

    def answer(self, *answers: bytes) -> None:
        """As `Downstream`."""
        self.to_caller.extend(answers)

    def finish(self, error: PenstockError) -> None:
        self.to_caller.append(error)


class Calling(Fabric):
    """Three sites in a row, of which the middle one has the queue later."""

    def __init__(self, seed: int, names: str = "abc", **options: Any) -> None:
        self.streams = dict[tuple[str, str], list[Stream]]()
        self.parted = set[tuple[int, int]]()
        self.differ = False  # some site has its queue otherwise
        with mock.patch("sim.sites_house.SiteWorld", CallingWorld):
            super().__init__(seed, names, settings={}, row=True, **options)

    def publish_at(self, name: str, count: int) -> None:
        """So many messages."""
        site = self.sites[name]
        positions = site.publish("q", *[b"{}"] * count).positions
        self.published.update({(site.origin, lsn): False for lsn in positions})

    def heal(self, pair: tuple[str, str]) -> None:
        self.cut.discard(pair)

    def more(self) -> list[Callable[[], None]]:
        return [self.declare, *[self.call] * 3, *[self.hear_some] * 14, *[self.look_after] * 2, self.break_one]

    def of(self, name: str) -> CallingWorld:
        site = self.sites[name]
        assert isinstance(site, CallingWorld)
        return site

    def newest(self, pair: tuple[str, str]) -> Stream | None:
        """The stream of a link that has one, up or not."""
        out = self.of(pair[0]).links.outgoing[pair[1]]
        some = [one for one in self.streams.get(pair, ()) if one.out is out and one.session == out._session]
        return some[-1] if some else None

    def call(self, pair: tuple[str, str] | None = None) -> bool:
        """A link that is not up calls."""
        one, other = pair or self.dice.choice(list(self.pairs()))
        out = self.of(one).links.outgoing[other]
        if out.up or self.newest((one, other)) is not None:
            return False
        self.streams.setdefault((one, other), []).append(Stream(out, self.of(one), self.of(other)))
        return True

    def hear(self, stream: Stream | None = None) -> bool:
        """One thing that is under way arrives; whether there was any."""
        if stream is None:
            some = [one for each in self.streams.values() for one in each]
            if not some:
                return False
            stream = self.dice.choice(some)
        ways = [self.hear_there, self.hear_here]
        self.dice.shuffle(ways)
        done = any(way(stream) for way in ways)
        self.of(stream.caller.name).turn()
        self.of(stream.called.name).turn()
        self.streams = {pair: [one for one in some if one.ends] for pair, some in self.streams.items()}
        return done

    def hear_there(self, stream: Stream) -> bool:
        """At who is called."""
        site, over = stream.called, stream.cut or stream.session != stream.out._session
        if stream.hello is not None and not (over and self.dice.random() < 0.5):
            hello, stream.hello = stream.hello, None
            handover = SimpleNamespace(queued_most=None, post=lambda _: None)
            caller = SimpleNamespace(peer="", refusal=lambda: None)
            with mock.patch("penstock.server.links.receiving.Downstream", return_value=stream):
                there = Incoming(site.links, handover, caller, hello, None, None)  # type: ignore[arg-type]
            try:
                there.open()
            except PreconditionFailed as error:
                if not self.differ:
                    raise
                stream.finish(error)
            stream.there = there
            return True
        if stream.there is not None and stream.to_called and not (stream.cut and self.dice.random() < 0.3):
            head, rows = stream.to_called.popleft()
            if head.startswith(SAID):
                said = read_said(head)
                if said.level:
                    stream.there._leveled(mock.Mock())
                else:
                    stream.there._asked(said, mock.Mock())
            else:
                stream.there._came(head, rows, 0, mock.Mock())
            return True
        if over and stream.ends & 2:
            stream.hello = None
            stream.to_called.clear()
            stream.ends &= ~2
            if stream.there is not None:
                stream.there.end(Unavailable("the other site is gone"))
            return True
        return False

    def hear_here(self, stream: Stream) -> bool:
        """At who called."""
        out = stream.out
        if stream.session != out._session or not stream.ends & 1:
            stream.ends &= ~1
            return False
        if stream.to_caller and not (stream.cut and self.dice.random() < 0.3):
            words = stream.to_caller.popleft()
            if isinstance(words, PenstockError):
                out._ended(words, stream.session)
                return True
            heard = read_heard(words)
            if heard.welcome is not None:
                self.came_up(stream, heard.welcome)
            elif heard.ack is not None:
                out._heard(heard.ack, stream.session)
            return True
        if stream.cut:
            out._ended(Unavailable("it is broken"), stream.session)
            return True
        return False

    def came_up(self, stream: Stream, welcome: Welcome) -> None:
        """A link is up, if nothing is between the two."""
        self.counts["up"] += 1
        self.counts["late"] += stream.called.name in stream.caller.links.incoming
        try:
            _, stream.level, stream.telling = stream.out._came_up(welcome, "", stream.session)
        except PreconditionFailed as error:
            if not self.differ:
                raise
            stream.out._ended(error, stream.session)

    def bring(self, pair: tuple[str, str], most: int) -> bool:
        """A link writes what is durable."""
        stream, sender = self.newest(pair), self.of(pair[0])
        if stream is None or stream.telling is None:
            return False
        some = False
        for last, batch in self.batches(sender, stream.out.told, sender.durable_lsn, 0, most):
            parcels = stream.telling.parcels(batch)
            while stream.out._tell(parcels, last, stream.session):
                pass
            some = True
        out = stream.out
        some = some or bool(out._out or out._asks)
        while out._out:
            parcel = out._out.popleft()
            stream.to_called.append((parcel.head, parcel.rows))
        while out._asks:
            stream.to_called.append((out._asks.popleft(), None))
        if out.told >= stream.level and not stream.leveled:
            stream.leveled = True
            stream.to_called.append((b'{"say":"level"}', None))
        sender.turn()
        return some

    def pass_on(self, pair: tuple[str, str]) -> None:
        """What a link has to say is written and heard."""
        self.bring(pair, ALL)
        stream = self.newest(pair)
        while stream is not None and stream.to_called and self.hear_there(stream):
            stream.called.turn()

    def carry(self) -> None:
        self.bring(self.dice.choice(list(self.pairs())), self.dice.randint(1, 6))

    def sync(self, site: CallingWorld | None = None) -> None:
        site = site or self.of(self.dice.choice(list(self.sites)))
        site.sync()
        due = [work for lsn, work in site.waiting if lsn <= site.durable_lsn]
        site.waiting = [one for one in site.waiting if one[0] > site.durable_lsn]
        for work in due:
            work()
        site.turn()

    def asked_by(self, site: SiteWorld) -> None:
        links = self.of(site.name).links
        links._ask_others()
        site.turn()

    def hear_some(self) -> None:
        for _ in range(self.dice.randint(1, 6)):
            self.hear()

    answer = hear_some

    def look_after(self, site: CallingWorld | None = None) -> None:
        site = site or self.of(self.dice.choice(list(self.sites)))
        for out in site.links.outgoing.values():
            site.links._look(out)
        site.turn()

    def cut_or_heal(self) -> None:
        self.call()

    def break_one(self) -> None:
        some = [one for each in self.streams.values() for one in each]
        if some:
            self.dice.choice(some).cut = True

    def die(self, site: SiteWorld) -> None:
        for some in self.streams.values():
            for one in some:
                if site.name in (one.caller.name, one.called.name):
                    one.cut = True
                    if site is one.called:
                        one.there, one.hello, one.ends = None, None, one.ends & ~2
                        one.to_called.clear()
                    else:
                        one.ends &= ~1
        super().die(site)
        self.streams = {
            pair: [one for one in some if pair[0] != site.name or one.ends & 2] for pair, some in self.streams.items()
        }

    def again(self, site: SiteWorld) -> None:
        site.declare_again()

    def look(self) -> None:
        """What passes who is between while that one lacks the queue each end may work."""
        site = self.sites["b"]
        for here, key in site.came().items():
            if key not in self.parted and (not site.has_queue or here < site.queue.id):
                self.parted.add(key)
                self.excused[key] += 1
                self.by_proxy.add(key)
        super().look()

    def quiet(self, late: Stream | None = None) -> None:
        """All that is under way arrives, but for one stream, and links are looked after, until nothing happens."""
        for _ in range(200):
            if not self.once(late):
                return
        raise AssertionError("it does not end")

    def once(self, late: Stream | None = None) -> bool:
        """What is under way arrives, but for one stream, and links are looked after; whether there was any."""
        busy = False
        for site in self.sites.values():
            self.sync(self.of(site.name))
            self.look_after(self.of(site.name))
        for pair in self.pairs():
            busy |= self.call(pair)
            for stream in list(self.streams.get(pair, ())):
                while stream is not late and self.hear(stream):
                    busy = True
            busy |= self.bring(pair, ALL)
        return busy

    def settle_down(self) -> None:
        for site in self.sites.values():
            if not site.has_queue:
                site.declare_again()
        for _ in range(60):
            self.quiet()
            before = sum(len(site.deliveries) for site in self.sites.values())
            for site in self.sites.values():
                if not site.queue.consumers:
                    site.subscribe(site.queue, tag=f"w{self.dice.random()}")
                for consumer in list(site.queue.holders()):
                    while not consumer.closed and consumer.leases.count:
                        self.take(site, consumer)
                site.advance(20)
                self.asked_by(site)
            self.quiet()
            for site in self.sites.values():
                self.asked_by(site)
            self.quiet()
            self.look()
            left = sum(len(flat(site.queue.snapshot()[0])) for site in self.sites.values())
            if not left and before == sum(len(site.deliveries) for site in self.sites.values()):
                break
        for site in self.sites.values():
            transfers = [one for one in site.entries if isinstance(one, Control) and one.kind is Kind.OWN]
            self.counts["granted"] += sum(b"transfer" in one.header for one in transfers)
        self.judge()
