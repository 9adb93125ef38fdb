"""What was published before a queue of several sites was declared is worked once, whichever of them declare it, and
when; and faults of which each has to be found."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest

from choices import EFFORT, SEED, tried
from penstock.core.commands.answering import ANSWERED_MOST, AnsweringCommands
from penstock.core.commands.links import LinkCommands
from penstock.core.commands.offering import WAITS_MOST, FindingCommands
from penstock.core.effects import Verb
from penstock.core.links.lasting import Began
from penstock.core.links.parcels import Enquiry, read_enquiry
from penstock.core.queue.order.runs import packed
from penstock.core.state.lsns import flat
from penstock.records.entries import Control
from sim.sites_finding import Finding, KeepingWorld, finding
from sim.sites_house import SiteWorld
from unit.core.walking import walk

SCHEDULES = {"ab": 9, "abc": 5, "row": 4} if EFFORT > 1 else {"ab": 7, "abc": 3, "row": 3}


@pytest.mark.parametrize("how", SCHEDULES)
def test_what_was_there_before_is_worked_once(how: str, effort: int) -> None:
    def run(seed: int) -> Any:
        return finding(seed, how)

    tried(run, SCHEDULES[how] * effort, ("found", "enquired", "granted", "killed"))


class Careless(FindingCommands):
    """Each takes for its own what its log has."""

    def _belong(self, *_: object) -> None:
        pass


class Forgetful(FindingCommands):
    """Nobody knows of a queue what had been heard of other sites when it was declared."""

    def _elder_queues(self, *_: object) -> Iterator[tuple[str, int]]:
        yield from ()

    def _elders(self, *args: Any) -> Iterator[tuple[int, int, Any]]:
        with mock.patch("penstock.core.commands.offering.heard_of", return_value=1 << 53):
            yield from FINDING["_elders"](self, *args)


class Generous(FindingCommands):
    """What is gone is given to whoever enquires."""

    def _became(self, *args: Any) -> Iterator[tuple[Any, int, int, int]]:
        for became, *rest in ASKED["_became"](self, *args):
            yield ("never" if became == "gone" else became), *rest  # type: ignore[misc]


class Silent(FindingCommands):
    """Nobody is told that what a site has found is its own."""

    def _hand_over(self, *_: object) -> None:
        pass


FAULTS = (Careless, Forgetful, Generous, Silent)
SOONEST: dict[type[FindingCommands], int] = {Silent: 14}
"""Schedules of a usual run that do not find it; the next one does."""

ASKED, FINDING = dict(vars(AnsweringCommands)), dict(vars(FindingCommands))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: type[FindingCommands]) -> None:
    planted = {name: value for name, value in vars(fault).items() if callable(value)}
    with mock.patch.multiple(FindingCommands, **planted):
        first = SEED + SOONEST.get(fault, 0)
        for seed in range(first, first + 200):
            try:
                Finding(seed, "abc" if seed % 2 else "ab", kills=False).run()
            except AssertionError:
                return
    raise AssertionError(f"nobody finds it: {fault.__doc__}")


class Found(Finding):
    """Step by step: links bring all, and nothing happens by chance."""

    def __init__(self, names: str = "ab", *, row: bool = False, **settings: object) -> None:
        super().__init__(1, names, row=row, settings=settings)
        self.a, self.b, self.c = (self.sites.get(name) for name in "abc")

    def look(self) -> None:
        """Each test says itself what becomes of its messages."""

    def with_queue(self, site: SiteWorld | None, point: str = "epoch") -> SiteWorld:
        assert isinstance(site, KeepingWorld)
        site.points = (point,)
        site.declare_again()
        return site

    def told(self, site: SiteWorld | None) -> SiteWorld:
        assert site is not None
        return site

    def level(self) -> None:
        """All that there is is told, enquired and found."""
        for _ in range(6):
            for site in self.sites.values():
                site.sync()
            for pair in self.pairs():
                if pair not in self.cut:
                    self.bring(pair, 1000)
            for site in self.sites.values():
                site.advance(0.2)
                asked = [one for one in site.core.enquiries(site.now) if (site.name, one.to) not in self.cut]
                site.turn()
                for one in asked:
                    self.hear_of(self.sites[one.to], site.name, one.ask)
                while walk(site):
                    pass

    def counts_of(self) -> dict[str, tuple[int, int]]:
        """Of each site that has the queue what is ready, and another's."""
        some = {name: site for name, site in self.sites.items() if site.has_queue}
        return {name: (site.queue.ready, site.queue.foreign_count) for name, site in some.items()}

    def forget(self) -> None:
        """Where messages of others stand is known no more, as far as no queue has them."""
        for _ in range(3):
            for site in self.sites.values():
                site.advance(2)
                site.core.asks(site.now)
            for sender, receiver in self.pairs():
                site = self.sites[sender]
                site.core.note_link(site.now, receiver, acked=site.core.last_lsn)
                site.turn()
        for site in self.sites.values():
            assert not any(here for numbers in site.core.carried.values() for _, here, _ in numbers.runs)

    def work_all(self, site: SiteWorld) -> int:
        """Somebody works all that he is given; how many."""
        consumer = site.subscribe(site.queue, max_backlog=1000)
        held = flat([run.chunk for run in consumer.leases.held()])
        site.core.settle(
            site.now, site.queue, [run.chunk for run in list(consumer.leases.held())], Verb.ACK, by=consumer
        )
        site.core.unsubscribe(site.now, consumer, requeue=True)
        site.turn()
        return len(held)


def publish(steps: Found) -> tuple[SiteWorld, SiteWorld]:
    """Three messages of one site and two of another, where no queue is."""
    a, b = steps.told(steps.a), steps.told(steps.b)
    a.publish("q", b"{}", b"{}", b"{}")
    b.publish("q", b"{}", b"{}")
    steps.level()
    return a, b


@pytest.mark.parametrize("forgotten", [False, True])
def test_two_that_find_the_same_have_each_its_own(forgotten: bool) -> None:
    steps = Found()
    a, b = publish(steps)
    if forgotten:
        steps.forget()
    for site in (a, b):
        steps.with_queue(site)
    steps.level()
    assert steps.counts_of() == {"a": (3, 2), "b": (2, 3)}
    assert (steps.work_all(a), steps.work_all(b)) == (3, 2)
    steps.level()
    assert steps.counts_of() == {"a": (0, 0), "b": (0, 0)}


def test_who_finds_what_a_site_without_the_queue_has_published_has_it_also_when_that_one_looks_back() -> None:
    steps = Found()
    _, b = publish(steps)
    steps.with_queue(b)
    steps.level()
    assert steps.counts_of() == {"b": (5, 0)}
    steps.with_queue(steps.a)
    steps.level()
    assert steps.counts_of() == {"a": (0, 5), "b": (5, 0)}


@pytest.mark.parametrize("before", [True, False])
def test_what_was_worked_before_a_site_looks_back_does_not_come_again(before: bool) -> None:
    """Whether it was found, or came to the queue as it was published."""
    steps = Found()
    a, b = publish(steps) if before else (steps.told(steps.a), steps.told(steps.b))
    steps.with_queue(b)
    if not before:
        steps.level()
        publish(steps)
    steps.level()
    assert steps.work_all(b) == 5
    steps.level()
    steps.with_queue(a)
    steps.level()
    assert steps.counts_of() == {"a": (0, 0), "b": (0, 0)}


def test_a_third_site_hears_whose_messages_are_that_it_finds() -> None:
    steps = Found("abc")
    _, b = publish(steps)
    steps.with_queue(b)
    steps.level()
    steps.work_all(b)
    b.publish("q", b"{}")
    steps.told(steps.a).publish("q", b"{}")
    steps.level()
    steps.with_queue(steps.c)
    steps.level()
    assert steps.counts_of() == {"b": (2, 0), "c": (0, 2)}
    assert steps.work_all(b) == 2
    steps.level()
    assert steps.counts_of() == {"b": (0, 0), "c": (0, 0)}


def test_what_a_site_that_is_away_has_published_waits_unless_somebody_acts_for_it() -> None:
    steps = Found()
    _, b = publish(steps)
    steps.cut |= {("a", "b"), ("b", "a")}
    b.core.absent.add("a")
    steps.with_queue(b)
    steps.level()
    assert steps.counts_of() == {"b": (2, 3)}
    b.subscribe(b.queue, max_backlog=10)
    b.core.proxy(b.now, b.queue, True)
    b.core.asks(b.now)
    b.turn()
    assert b.queue.leased == 5


def test_a_start_in_between_loses_nothing_and_repeats_nothing() -> None:
    steps = Found()
    a, b = publish(steps)
    steps.with_queue(b)
    for _ in range(2):  # it is asked, found, and not answered
        steps.told(b).sync()
        steps.bring(("b", "a"), 1000)
        for one in b.core.enquiries(b.now):
            steps.hear_of(a, "b", one.ask)
        a.sync()
        steps.bring(("a", "b"), 1000)
        b.advance(1)
    b.core.enquiries(b.now)
    assert walk(b)
    assert steps.counts_of() == {"b": (2, 3)}
    b.sync()
    b.kill()
    for pair in steps.pairs():
        steps.heal(pair)
    steps.level()
    assert steps.counts_of() == {"b": (5, 0)}


def test_a_pass_waits_for_sites_that_are_there_and_not_for_ever() -> None:
    for away, seconds in ((True, 0.0), (False, WAITS_MOST / 1e6)):
        steps = Found()
        _, b = publish(steps)
        steps.with_queue(b)
        b.core.enquiries(b.now)
        assert b.core.passes() == []
        if away:
            b.core.absent.add("a")
        b.advance(seconds)
        b.core.enquiries(b.now)
        assert len(b.core.passes()) == 1


def test_a_pass_waits_until_the_site_has_heard_of_the_others_after_a_start() -> None:
    steps = Found()
    _, b = publish(steps)
    steps.with_queue(b)
    b.sync()
    b.kill()
    b.core.await_sites(b.now, ["a"])
    for pair in steps.pairs():
        steps.heal(pair)
    steps.level()
    assert steps.counts_of() == {"b": (0, 0)}
    b.core.level(b.now, "a")
    steps.level()
    assert steps.counts_of() == {"b": (5, 0)}


def test_queues_of_an_older_checkpoint_say_nothing_of_what_they_had_heard() -> None:
    began = Began({4: ((0, 0),)})
    assert (began.of(4), began.of(5)) == (None, ())


@pytest.mark.parametrize(
    "words",
    [
        b"{}", b"[]", b'["/", "q", [[1, 2, 1]], 0, "first", 0]', b'["/","q",[],0,"why",0]', b'["/","q",[],0,["why"],0]',
        b'["/","q",[],0,"first",5]', b'["/","q",[[1,5,6],[2,5,6]],0,"first",5]', b'["/","q",[[1,5,7]],0,"first",5]',
        b'["/","q",[[1,2,3]],7,"first",0]', b'["/","q",[[1,2,3]],0,"transfer",0]', b'["/","q",[[1,2,3]],0,"first",-1]',
    ],
)  # fmt: skip
def test_what_is_no_enquiry_is_refused(words: bytes) -> None:
    with pytest.raises(ValueError, match="an enquiry of a link cannot be read"):
        read_enquiry(words)


def test_an_owner_that_never_had_the_queue_hands_over_once() -> None:
    steps = Found()
    a, b = publish(steps)
    steps.with_queue(b)
    steps.level()
    before = len(a.entries)
    steps.level()
    assert len(a.entries) == before
    assert isinstance(a.core, LinkCommands)


def test_what_was_worked_from_a_time_on_does_not_come_again_where_all_is_looked_for() -> None:
    steps = Found()
    a, b = publish(steps)
    b.advance(60)
    a.advance(60)
    since = datetime.fromtimestamp(a.wall / 1e6, UTC).strftime("%Y%m%dT%H%M%SZ")
    publish(steps)
    steps.with_queue(a, since)
    steps.level()
    assert steps.work_all(a) == 5, "what a site has published since that has no queue is the first's that finds it"
    steps.level()
    steps.with_queue(b)
    steps.level()
    assert steps.counts_of() == {"a": (0, 0), "b": (5, 0)}, "what is older nobody has worked"


@pytest.mark.parametrize("dies", [False, True])
def test_what_a_queue_would_have_looked_back_for_is_not_lost_when_it_goes_before(dies: bool) -> None:
    """It came to another site as that one's, for its queue said that it looks back; it never did."""
    steps = Found()
    a, b = steps.told(steps.a), steps.told(steps.b)
    steps.with_queue(a, "now")
    steps.cut |= {("a", "b"), ("b", "a")}
    b.publish("q", b"{}", b"{}")
    steps.with_queue(b)
    for pair in list(steps.pairs()):
        steps.heal(pair)
    b.sync()
    steps.bring(("b", "a"), 1000)
    assert steps.counts_of() == {"a": (0, 2), "b": (0, 0)}
    b.core.delete_queue(b.now, b.queue)
    b.turn()
    if dies:  # it has heard that, and b, which knows that, says it no more
        b.sync()
        steps.bring(("b", "a"), 1000)
        a.sync()
        b.core.note_link(b.now, "a", acked=b.core.last_lsn)
        b.advance(2)
        b.core.asks(b.now)
        b.turn()
        assert not b.core.departed
        b.sync()
        a.kill()
        for pair in list(steps.pairs()):
            steps.heal(pair)
    steps.level()
    assert steps.counts_of() == {"a": (2, 0)}


def test_an_answer_is_bounded_by_its_spans_and_all_is_answered_in_the_end() -> None:
    """Of a queue of which every other message is done, whatever is asked, and however often."""
    steps = Found()
    a, b = steps.with_queue(steps.a), steps.told(steps.b)
    a.publish("q", *[b"{}"] * 6_000)
    a.subscribe(a.queue, max_backlog=10_000)
    done = 1_024
    for consumer in list(a.queue.holders()):
        held = flat([run.chunk for run in consumer.leases.held()])
        a.core.settle(a.now, a.queue, [packed(held[::2])], Verb.ACK, by=consumer)
        a.core.unsubscribe(a.now, consumer, requeue=True)
    steps.with_queue(b)
    for pair in list(steps.pairs()):
        steps.heal(pair)
    for _ in range(3):
        before = len(a.entries)
        a.core.enquired(a.now, "b", Enquiry("/", "q", ((a.origin, 1, 1 << 52),)).words)
        a.turn()
        said = [len(one.body) for one in a.entries[before:] if isinstance(one, Control)]
        assert said
        assert sum(said) < 3 * 17 * ANSWERED_MOST
    for _ in range(4):
        steps.level()
    assert steps.counts_of() == {"a": (6_000 - done, 0), "b": (0, 6_000 - done)}


def row(point: str | None) -> tuple[Found, SiteWorld, SiteWorld, SiteWorld]:
    """What b in the middle published without a queue went to c, which looked back first; a has found it, too.

    point: of the queue that b has by then, if any.
    """
    steps = Found("abc", row=True)
    a, b, c = steps.told(steps.a), steps.told(steps.b), steps.told(steps.c)
    b.publish("q", *[b"{}"] * 5)
    steps.level()
    steps.with_queue(c)
    steps.level()
    if point:
        steps.with_queue(b, point)
    steps.with_queue(a)
    steps.level()
    counts = steps.counts_of()
    assert (counts["a"], counts["c"]) == ((0, 5), (5, 0))
    return steps, a, b, c


@pytest.mark.parametrize("point", [None, "now", "epoch"])
def test_what_both_ends_of_a_row_find_is_done_at_both_when_one_has_worked_it(point: str | None) -> None:
    steps, _, _, c = row(point)
    assert steps.work_all(c) == 5
    steps.level()
    assert not any(any(counts) for counts in steps.counts_of().values())


def test_what_both_ends_of_a_row_find_is_given_to_the_one_that_has_workers() -> None:
    steps, a, b, c = row("now")
    a.subscribe(a.queue, max_backlog=10)
    a.advance(1)
    for asker, asked in ((a, b), (b, c)):
        for one in asker.core.asks(asker.now):
            asked.core.answer(asked.now, asker.name, one.ask, via=asker.name)
        asked.turn()
    steps.level()
    assert (a.queue.leased, steps.counts_of()["c"]) == (5, (0, 5))
    for consumer in list(a.queue.holders()):
        a.core.settle(a.now, a.queue, [run.chunk for run in consumer.leases.held()], Verb.ACK, by=consumer)
    steps.level()
    assert steps.counts_of() == {"a": (0, 0), "b": (0, 0), "c": (0, 0)}


def test_what_was_done_is_given_to_nobody_by_a_pass_that_finds_it_later() -> None:
    steps, _, b, c = row(None)
    assert steps.work_all(c) == 5
    steps.level()
    steps.with_queue(b).subscribe(b.queue, max_backlog=10)
    steps.level()
    assert (b.queue.leased, b.queue.ready, b.queue.foreign_count, b.deliveries) == (0, 0, 0, [])


def test_what_one_end_of_a_row_took_for_its_own_and_worked_is_done_where_the_other_end_finds_it() -> None:
    steps = Found("abc", row=True)
    a, b = steps.with_queue(steps.a, "now"), steps.told(steps.b)
    b.publish("q", *[b"{}"] * 5)
    steps.level()
    assert steps.work_all(a) == 5
    steps.with_queue(b, "now")
    steps.with_queue(steps.c)
    steps.level()
    assert steps.counts_of() == {"a": (0, 0), "b": (0, 0), "c": (0, 0)}


@pytest.mark.parametrize("owner", [None, "a", "c"])
@pytest.mark.parametrize("seen", [True, False])
def test_what_the_middle_of_a_row_published_without_a_queue_is_worked_at_one_end(owner: str | None, seen: bool) -> None:
    """Also where one of them is the first owner of all: it asks the middle, which may have given it to the other.

    seen: it came to the one that works first as it was published, which else looks back as well.
    """
    shared = {} if owner is None else {"kind": "group-local", "initial_owner": owner, "group_local_queue_domain": "d"}
    steps = Found("abc", row=True, **shared)
    a, b, c = steps.told(steps.a), steps.told(steps.b), steps.told(steps.c)
    if seen:
        steps.with_queue(a, "now")
        steps.level()
    b.publish("q", *[b"{}"] * 5)
    steps.level()
    if not seen:
        steps.with_queue(a)
        steps.level()
    worked = steps.work_all(a)
    steps.level()
    steps.with_queue(c)
    steps.level()
    assert worked + steps.work_all(a) + steps.work_all(c) == 5
    steps.level()
    assert steps.counts_of() == {"a": (0, 0), "c": (0, 0)}
