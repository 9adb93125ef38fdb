"""What a link writes: short commits that are told as they become durable, long ones that its thread reads, in order."""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from choices import SEED
from penstock.config.links import LinkSection, Target
from penstock.core.effects import Verb
from penstock.core.links import parcels, telling
from penstock.core.links.parcels import Parcel, read
from penstock.core.links.telling import Telling
from penstock.errors import Unavailable
from penstock.server.base.faults import TOLD, Faults, reports
from penstock.server.links import calling, sending
from penstock.server.links.calling import SILENT_US
from penstock.server.links.sending import AT_ONCE_LSNS, STEADY_US, Outgoing
from penstock.wire.flight.linking import SAID, Welcome, ask_words
from unit.core_links.test_linking import Linked
from waiting import eventually

T = TypeVar("T")


class Log:
    """What of a world's journal is durable."""

    def __init__(self, world: Linked) -> None:
        self.world = world
        self.durable = world.core.last_lsn

    def batches(self, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        for table in list(self.world.tables):
            for batch in table.combine_chunks().to_batches():
                lsns = batch.column("lsn").to_pylist()
                rows = [row for row, lsn in enumerate(lsns) if first <= lsn < min(stop, self.durable + 1)]
                if rows:
                    yield batch.slice(rows[0], len(rows))

    def weight(self, first: int, stop: int) -> int:
        return sum(batch.nbytes for batch in self.batches(first, stop))


class Other:
    """The other end, which writes down what it is told; `has` grows with it."""

    def __init__(self) -> None:
        self.parcels = list[tuple[int, list[bytes]]]()
        self.connected = 0
        self.level = False
        self.acks = True
        self.takes = True  # else whoever writes waits until it is closed, as where a process is stopped
        self._closed = threading.Event()

    def __call__(self, section: object, target: object, command: bytes) -> Other:
        self.connected += 1
        self._closed = threading.Event()
        self._said: SimpleQueue[bytes | None] = SimpleQueue()
        self._said.put(Welcome("b", 22, "", self.has, [], []).words())
        return self

    @property
    def has(self) -> int:
        return self.parcels[-1][0] if self.parcels else 0

    def read(self) -> bytes:
        words = self._said.get()
        if words is None:
            raise Unavailable("it is closed")
        return words

    def write(self, words: bytes, rows: pa.RecordBatch | None = None) -> None:
        if not self.takes:
            assert self._closed.wait(60), "nobody closed it"
            raise Unavailable("it is closed")
        if words.startswith(SAID):
            self.level = self.level or b"level" in words
            return
        upto = read(words, rows).upto
        self.parcels.append((upto, [] if rows is None else rows.column("body").to_pylist()))
        if self.acks:
            self._said.put(b'{"ack":%d}' % upto)

    def close(self) -> None:
        self._closed.set()
        self._said.put(None)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, some in self.parcels for body in some]

    def has_bodies(self, count: int) -> bool:
        return len(self.bodies) == count


class Links:
    """The loop is whoever holds the lock."""

    def __init__(self, world: Linked) -> None:
        self.loop = threading.RLock()
        self.mono = self.wall = 1
        clock = SimpleNamespace(mono=lambda: self.mono, wall=lambda: self.wall)
        faults = Faults(world.core, clock)  # type: ignore[arg-type]  # it is asked for nothing else
        self.engine: Any = SimpleNamespace(core=world.core, log=Log(world), clock=clock, faults=faults)

    def call(self, work: Callable[[], T]) -> T:
        with self.loop:
            return work()

    def post(self, job: Callable[[], None]) -> bool:
        with self.loop:
            job()
        return True

    def hello(self, section: object) -> bytes:
        return b""

    def telling(self, section: LinkSection, upto: int) -> Any:
        return self.engine.core.telling("b", upto=upto)

    def nothing(self, *_: object, **__: object) -> None: ...

    knows = agrees = changed = moved = happened = nothing


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Linked, Links, Outgoing, Other]]:
    a, other = Linked("a"), Other()
    a.declare("q")
    assert a.link(Linked("b")) == []
    monkeypatch.setattr(sending, "Connection", other)
    monkeypatch.setattr(sending, "REST_LEAST_US", 0)
    links = Links(a)
    section = LinkSection.model_validate({"name": "b", "to": ["penstock://b:1"], "topic": [{"pattern": "q"}]})
    out = Outgoing(links, section, a.core.link_state("b"))  # type: ignore[arg-type]  # what it asks for is there
    out.start()
    eventually(lambda: other.level)
    yield a, links, out, other
    out.stop()
    out.join(20.0)


def publish(a: Linked, links: Links, out: Outgoing, *bodies: bytes) -> None:
    with links.loop:
        a.publish("q", *bodies)
        links.engine.log.durable = a.core.last_lsn
        out.durable(a.core.last_lsn)


def test_short_commits_and_long_ones_are_told_in_their_order_each_once(
    ends: tuple[Linked, Links, Outgoing, Other],
) -> None:
    a, links, out, other = ends
    dice, sent = Random(SEED), 0
    for _ in range(60):
        count = dice.choice((1, 2, 30, AT_ONCE_LSNS + 1))
        publish(a, links, out, *(b"%d" % n for n in range(sent, sent + count)))
        sent += count
        if dice.random() < 0.2:
            out.ask(ask_words(b"[]"))
    eventually(lambda: len(other.bodies) >= sent)
    assert other.bodies == [b"%d" % n for n in range(sent)]
    told = [upto for upto, _ in other.parcels]
    assert told == sorted(told)
    eventually(lambda: out.done == links.engine.log.durable)
    assert other.connected == 1


def test_a_short_commit_does_not_wait_for_the_thread_to_come_to_the_loop(
    ends: tuple[Linked, Links, Outgoing, Other],
) -> None:
    a, links, out, other = ends
    for count in range(1, 6):
        with links.loop:
            publish(a, links, out, b"%d" % count)
            assert out.told == a.core.last_lsn
        eventually(partial(other.has_bodies, count))
    with links.loop:
        publish(a, links, out, *[b""] * (AT_ONCE_LSNS + 1))
        assert out.told < a.core.last_lsn, "that would hold the loop up"


def test_what_cannot_be_told_ends_the_link_and_is_told_when_it_is_up_again(
    ends: tuple[Linked, Links, Outgoing, Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, links, out, other = ends
    publish(a, links, out, b"0")
    eventually(lambda: other.bodies == [b"0"])
    parcels = Telling.parcels

    def fails(telling: Telling, batch: pa.RecordBatch) -> Any:
        monkeypatch.setattr(Telling, "parcels", parcels)
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(Telling, "parcels", fails)
    publish(a, links, out, b"1")
    assert out.why == TOLD
    eventually(lambda: other.bodies == [b"0", b"1"])
    assert other.connected == 2


@pytest.mark.parametrize("short", [False, True])
def test_what_happened_to_very_many_is_told_in_turns_and_before_what_comes_next(
    ends: tuple[Linked, Links, Outgoing, Other], monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    """The loop's thread goes on between them; what becomes durable then waits for its turn."""
    a, links, out, other = ends
    for module in (sending, telling, parcels):
        monkeypatch.setattr(module, "SPANS_MOST", 20)
    if not short:
        monkeypatch.setattr(sending, "AT_ONCE_LSNS", 3)
    a.core.share("b", a.core.offers("b"))
    for n in range(20):
        publish(a, links, out, *[b"%d" % n] * 20)
    eventually(lambda: other.has_bodies(400) and out.told == a.core.last_lsn)
    worker = a.subscribe(a.q(), max_backlog=400)
    turns, tell = list[int](), Outgoing._tell

    def counted(link: Outgoing, some: Iterator[Parcel], last: int, session: int) -> bool:
        turns.append(0)

        def watched() -> Iterator[Parcel]:
            for one in some:
                turns[-1] += sum(len(told.spans) for told in one.told)
                yield one

        more = tell(link, watched(), last, session)
        if more and len(turns) == 3:
            publish(a, links, out, b"next")
        return more

    monkeypatch.setattr(Outgoing, "_tell", counted)
    with links.loop:
        a.core.settle(a.now, a.q(), [array("q", a.inbox[worker][::2])], Verb.ACK, by=worker)
        for name in () if short else ("one", "two", "three"):
            a.declare(name)
        a.turn()
        links.engine.log.durable = a.core.last_lsn
        out.durable(a.core.last_lsn)
        assert not turns, "a commit of one record may say as much as a long one"
    eventually(lambda: b"next" in other.bodies)
    assert other.bodies == [*(b"%d" % n for n in range(20) for _ in range(20)), b"next"]
    assert sum(turns) == 200
    assert max(turns) == 20, "no turn of the loop is longer, however many they are"
    told = [upto for upto, _ in other.parcels]
    assert told == sorted(told)
    eventually(lambda: out.done == links.engine.log.durable)


def test_what_came_from_a_site_in_a_large_commit_is_not_told_to_it_as_a_message_of_this_one(
    ends: tuple[Linked, Links, Outgoing, Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How messages came stands behind them in the log: a link that came up later had cut one commit within a group."""
    a, links, out, other = ends
    b = Linked("b")
    b.declare("q")
    assert b.link(a) == []
    monkeypatch.setattr(sending, "BYTES_MOST", 2_000)
    monkeypatch.setattr(sending, "AT_ONCE_LSNS", 0)  # as what was told while it was away
    b.publish("q", *(b"%d" % n * 100 for n in range(40)))
    with links.loop:
        b.send(a)
        a.publish("q", b"mine")
        links.engine.log.durable = a.core.last_lsn
        out.durable(a.core.last_lsn)
    eventually(lambda: b"mine" in other.bodies)
    assert other.bodies == [b"mine"]
    eventually(lambda: out.done == links.engine.log.durable)


def test_no_more_parcels_are_under_way_than_may_be_however_little_is_in_each(
    ends: tuple[Linked, Links, Outgoing, Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that takes everything and acknowledges nothing costs no memory without an end."""
    a, links, out, other = ends
    monkeypatch.setattr(calling, "FLYING_MOST", 1 << 40)
    monkeypatch.setattr(calling, "PARCELS_MOST", 5)
    other.acks = False
    for n in range(20):
        publish(a, links, out, b"%d" % n)
    eventually(lambda: len(other.parcels) >= 5)
    with links.loop:
        assert out.told < a.core.last_lsn
        last = other.parcels[-1][0]
        other.acks = True
    out._acked_by(last, out._session)
    eventually(partial(other.has_bodies, 20))
    assert other.bodies == [b"%d" % n for n in range(20)]


def test_a_site_that_is_silent_while_it_is_written_to_is_given_up(ends: tuple[Linked, Links, Outgoing, Other]) -> None:
    """A stopped process takes no more of what is written, and whoever writes waits: the other addresses are tried."""
    a, links, out, other = ends
    publish(a, links, out, b"0")
    eventually(lambda: out.done == links.engine.log.durable)
    other.takes = False
    publish(a, links, out, b"1")
    with links.loop:
        links.mono += SILENT_US
        out.judge_silence()
        assert out.up, "it may yet say something"
        links.mono += 1
        out.judge_silence()
        assert (out.state, out.why) == ("down", "nothing was heard from it for 20 s")
        other.takes = True
    eventually(partial(other.has_bodies, 2))
    assert other.bodies == [b"0", b"1"]
    assert other.connected == 2


THREADS = {
    "its turn": (Outgoing, "_call_targets"),
    "what it says": (Outgoing, "_tell_between"),
    "what is written": (Outgoing, "_write"),
    "its end": (Other, "close"),
}


@pytest.mark.parametrize("name", THREADS)
def test_a_fault_in_the_thread_of_a_link_is_counted_and_the_site_is_called_again(
    name: str, ends: tuple[Linked, Links, Outgoing, Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, links, out, other = ends
    publish(a, links, out, b"0")
    eventually(lambda: other.bodies == [b"0"])
    owner, attribute = THREADS[name]
    before: Callable[..., Any] = getattr(owner, attribute)
    failed, counted = list[str](), reports.counts["link"]

    def fails(*what: Any) -> Any:
        if not failed:
            failed.append(name)
            raise ValueError("a mistake of ours")
        return before(*what)

    monkeypatch.setattr(owner, attribute, fails)
    if name in {"its end", "its turn"}:
        with links.loop:
            out.renew("queues have changed")
    publish(a, links, out, *[b""] * (AT_ONCE_LSNS + 1))
    eventually(lambda: len(other.bodies) >= AT_ONCE_LSNS + 2)
    eventually(lambda: reports.counts["link"] > counted)  # a connection is closed beside what goes on
    assert failed == [name]
    assert reports.counts["link"] == counted + 1
    eventually(lambda: out.up and out.done == links.engine.log.durable)
    assert links.engine.faults.fatal is None


def test_a_link_that_fails_again_rests_longer_each_time_whatever_is_to_be_told(
    ends: tuple[Linked, Links, Outgoing, Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, out, other = ends
    rests = list[float]()

    def fails(*_: Any) -> Any:
        if len(rests) < 8:
            raise ValueError("a mistake of ours")
        return before(out, *_[1:])

    before = Outgoing._talk
    monkeypatch.setattr(sending, "REST_LEAST_US", 1_000_000)
    monkeypatch.setattr(Outgoing, "_rest", lambda _, seconds: rests.append(seconds))
    monkeypatch.setattr(sending, "AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(Outgoing, "_talk", fails)
    out.renew("queues have changed")
    eventually(lambda: other.connected == 2 and out.up)
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


class Later(Links):
    """A loop that is busy: what it was posted it does when it is called, as a real one does in that order."""

    def __init__(self, world: Linked) -> None:
        super().__init__(world)
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def call(self, work: Callable[[], T]) -> T:
        with self.loop:
            while not self.posted.empty():
                self.posted.get()()
            return work()

    def post(self, job: Callable[[], None]) -> bool:
        self.posted.put(job)
        return True


@pytest.mark.parametrize("refuses", ["as it is called", "in its answer"])
def test_a_site_whose_first_address_refuses_is_reached_at_its_second_however_busy_the_loop_is(
    refuses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cluster of which one server was killed, or only follows."""
    a, other = Linked("a"), Other()

    def connection(section: object, target: Target, command: bytes) -> Other:
        if target.host == "a" and refuses == "as it is called":
            raise Unavailable("no server answers")
        made = other(section, target, command)
        if target.host == "a":
            made.close()
            made._said = SimpleQueue()
            made._said.put(None)
        return made

    monkeypatch.setattr(sending, "Connection", connection)
    monkeypatch.setattr(sending, "closed", lambda _: None)  # which takes no time
    to = ["penstock://a:1", "penstock://b:1"]
    section = LinkSection.model_validate({"name": "b", "to": to, "topic": [{"pattern": "q"}]})
    out = Outgoing(Later(a), section, a.core.link_state("b"))  # type: ignore[arg-type]  # what it asks for is there
    out.start()
    try:
        eventually(lambda: out.up, lambda: f"it is {out.state}: {out.why}")
        assert out.address == "penstock://b:1"
    finally:
        out.stop()
        other.close()
        out.join(20.0)


def test_a_link_that_comes_up_and_ends_for_one_reason_again_and_again_has_one_line(
    ends: tuple[Linked, Links, Outgoing, Other], caplog: pytest.LogCaptureFixture
) -> None:
    """As where that site's disk is full, which it says of the first parcel."""
    _, links, out, _ = ends
    caplog.set_level(logging.INFO, "penstock.links")
    for _ in range(9):
        with links.loop:
            out._is("down", "no room on its disk")
            out._is("up")
            out.note()
    links.wall += STEADY_US + 1
    with links.loop:
        out.note()
        out._is("down", "no room on its disk")
    assert [line.levelname for line in caplog.records] == ["WARNING", "INFO", "WARNING"]
