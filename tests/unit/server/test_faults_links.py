"""A fault at one link ends that link, or puts its look off; other links, queues and publishers go on; a full disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.config.links import LinkSection
from penstock.core.broker import Core
from penstock.core.links.sharing import Site
from penstock.errors import DiskFull, PenstockError, Unavailable
from penstock.server.base.faults import TOLD, Told, reports
from penstock.server.flight.handover import Answer, Handover
from penstock.server.links.links import AGAIN_S, Links
from penstock.server.links.receiving import SPEAKS_US, Incoming
from penstock.server.links.sending import Outgoing
from planting import Fault
from sim.serverkit import Life

SECOND = 1_000_000


class Loop:
    """Timers that the test lets go off."""

    def __init__(self) -> None:
        self.due = list[tuple[float, Callable[[], None]]]()

    def call_later(self, seconds: float, work: Callable[[], None]) -> object:
        self.due.append((seconds, work))
        return self

    def go_off(self) -> None:
        """All that are set now."""
        due, self.due = self.due, []
        for _, work in due:
            work()


@pytest.fixture
def links(life: Life) -> Links:
    """Of site a to b, c and d; no thread of theirs has begun."""
    topic = {"pattern": "q"}
    made = [LinkSection.model_validate({"name": one, "to": [f"penstock://{one}:1"], "topic": [topic]}) for one in "bcd"]
    settings = life.settings.model_copy(update={"site": "a", "link": made})
    return Links(life.engine, Handover(life.engine, life.jobs.append), settings, Loop())  # type: ignore[arg-type]


def beat(links: Links) -> None:
    links._beat()


def ask(links: Links) -> None:
    links._ask()


class Task(NamedTuple):
    """Work that comes again."""

    owner: Any
    name: str
    due: Callable[[Links], None]
    each: bool  # it is done for each link


TASKS = {
    "what is remembered": Task(Outgoing, "note", beat, each=True),
    "how late it is": Task(Outgoing, "judge_delay", beat, each=True),
    "what is asked for": Task(Core, "asks", ask, each=False),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_look_that_fails_is_put_off_and_those_of_other_links_are_not(
    name: str, life: Life, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, before, tries, beside = TASKS[name], reports.counts.total(), list[int](), 0
    start = life.clock.mono()
    life.core.proxied = True  # type: ignore[assignment]  # there is something to ask for
    original: Callable[..., Any] = getattr(task.owner, task.name)

    def planted(one: Any, *what: Any) -> Any:
        nonlocal beside
        if not task.each or one.name == "b":
            tries.append((life.clock.mono() - start) // SECOND)
            raise Fault
        beside += 1
        return original(one, *what)

    monkeypatch.setattr(task.owner, task.name, planted)
    for _ in range(8):
        task.due(links)
        life.clock.advance(SECOND)
    assert tries == [0, 1, 3, 7]
    assert beside == (16 if task.each else 0)
    assert reports.counts.total() == before + 4
    assert life.engine.faults.fatal is None
    publisher = life.client(confirm=True)
    publisher.publish("q", b"1")
    life.run()
    assert publisher.confirms() == [(True, 1, True)]
    assert life.ready("q") == 1


def test_a_link_that_fails_at_a_commit_is_down_and_the_others_are_told(
    life: Life, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()

    def planted(self: Outgoing, lsn: int) -> None:
        if self.name == "c":
            raise Fault
        told.append(self.name)

    monkeypatch.setattr(Outgoing, "durable", planted)
    for one in links.outgoing.values():
        one._is("up")
    publisher = life.client(confirm=True)
    publisher.publish("q", b"1")
    life.run()
    assert publisher.confirms() == [(True, 1, True)]
    assert set(told) == {"b", "d"}
    states = [(one.name, one.state, one.why) for one in links.outgoing.values()]
    assert states == [("b", "up", None), ("c", "down", TOLD), ("d", "up", None)]
    assert life.engine.faults.fatal is None
    assert life.engine.faults.ended


def test_confirms_that_waited_for_a_site_each_leave(life: Life, links: Links) -> None:
    left = list[int]()

    def fails() -> None:
        raise Fault

    class Publisher:
        asker = Told("amqp")

        def confirm(self) -> None:
            fails()

    for confirm in (lambda: left.append(1), Publisher().confirm, lambda: left.append(3)):
        links._confirms.append((1, confirm))
    links.moved()
    assert left == [1, 3]
    assert links.unconfirmed == 0
    assert life.engine.faults.fatal is None


def test_a_site_that_is_given_up_is_so_in_the_end(life: Life, links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    level, loop = Core.level, links._loop
    assert isinstance(loop, Loop)
    links.behind.add("b")
    fails = True

    def planted(core: Core, *what: Any) -> Any:
        if fails:
            raise Fault
        return level(core, *what)

    monkeypatch.setattr(Core, "level", planted)
    links.later(1, lambda: links._give_up("b"))
    loop.go_off()
    assert "b" in links.behind
    assert [seconds for seconds, _ in loop.due] == [AGAIN_S]
    fails = False
    loop.go_off()
    assert "b" not in links.behind
    assert life.engine.faults.fatal is None


@pytest.mark.parametrize("name", ["beat", "go_on", "_ack"])
def test_a_stream_that_comes_is_ended_alone(
    name: str, life: Life, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[tuple[str, str]]()
    made = [object.__new__(Incoming) for _ in "bc"]
    for one, site in zip(made, "bc", strict=True):
        one.site = site
        links.incoming[site] = one
    beats = list[str]()

    def planted(self: Incoming, *_: object) -> None:
        if self.site == "b":
            raise Fault
        beats.append(self.site)

    monkeypatch.setattr(Incoming, name, planted)
    monkeypatch.setattr(Incoming, "end", lambda self, error: ended.append((self.site, str(error))))
    if name == "beat":
        links._beat()
    elif name == "go_on":
        life.engine.on_room += [one.go_on for one in made]
        life.engine.look_for_room()
    else:
        for one in made:
            life.engine._waiters.append((1, one.__getattribute__(name)))
        life.engine.durable(life.log.durable)
    assert ended == [("b", TOLD)]
    assert beats == ["c"]
    assert life.engine.faults.fatal is None


def test_a_stop_of_the_server_is_no_fault_of_a_link_that_waits_for_the_loop(links: Links) -> None:
    """Its thread may have something to tell, and the loop has no turn for it any more."""
    links.stop()
    link = links.outgoing["b"]
    link._over = False  # it has not looked since
    assert not link._call_targets()
    assert link._faults == 0


def test_a_site_whose_disk_is_full_asks_for_nothing(life: Life, links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not hear what it is given: that left its owner, and was nobody's until the disk had room again."""
    asked = list[bool]()
    life.core.proxied = True  # type: ignore[assignment]  # there is something to ask for
    monkeypatch.setattr(Core, "asks", lambda *_: asked.append(life.log.room.full) or [])
    for full in (False, True, False):
        life.log.room.full = full
        links._ask()
    assert asked == [False, False]


def test_what_cannot_be_heard_on_a_full_disk_is_no_fault_of_its_site(
    life: Life, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to be cut off, with another number each time that it came again: a thousand lines, and then none."""
    ended = list[PenstockError]()
    monkeypatch.setattr(Incoming, "end", lambda _, error: ended.append(error))
    one: Any = object.__new__(Incoming)
    one.site, one._engine, one._links, one._waits, one._level, one._ending = "b", life.engine, links, False, False, None
    one._queue = deque([(b"", None, 0, Answer[None]())])
    life.log.room.full = True
    one.go_on()
    assert [type(error) for error in ended] == [DiskFull]
    assert not links._warned


class Stream:
    """Of site b, as one that has come in."""

    site = "b"

    def __init__(self, life: Life, host: str) -> None:
        self.host, self._clock, self.ended = host, life.clock, list[str]()
        self.heard_at = life.clock.mono()

    def speaks(self) -> bool:
        return self._clock.mono() - self.heard_at < SPEAKS_US

    def end(self, error: PenstockError) -> None:
        self.ended.append(str(error))


def test_of_two_servers_with_one_folder_the_one_that_speaks_goes_on(life: Life, links: Links, caplog: Any) -> None:
    """Each ended the other's stream for as long as both ran, nobody here said so, and what both told was one log."""
    b = Site("b", 7, "g")
    first, second = Stream(life, "10.0.0.2"), Stream(life, "10.0.0.9")
    links.joins(first, b, (), ())  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(Unavailable, match="another server has a copy of this one's folder"):
            links.joins(second, b, (), ())  # type: ignore[arg-type]
        life.clock.advance(2 * SECOND)
        first.heard_at = life.clock.mono()
    assert links.incoming["b"] is first  # type: ignore[comparison-overlap]
    assert not first.ended
    [line] = [one.getMessage() for one in caplog.records if "two servers" in one.getMessage()]
    assert line == (
        "site 'b' speaks here, from 10.0.0.2, and was called from 10.0.0.9, too: if that lasts, two servers have the "
        "folder of one"
    )
    anew = Stream(life, first.host)  # the end of its stream is not heard yet
    links.joins(anew, b, (), ())  # type: ignore[arg-type]
    assert first.ended == ["the site has begun another stream"]
    life.clock.advance(SPEAKS_US)  # it was cut off, or is gone
    links.joins(second, b, (), ())  # type: ignore[arg-type]
    assert anew.ended == ["the site has begun another stream"]
    assert links.incoming["b"] is second  # type: ignore[comparison-overlap]
