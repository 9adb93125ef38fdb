"""All links of one server: who this site is, those that lead away and those that come, and what they need together.

The rules are the core's: who owns what, what is told, what is asked for.  Here is when: asks are looked for while links
are up, links begin anew when queues change, and the log is kept until every site has what it says to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from penstock.core.links.carried import Carries
from penstock.core.links.sharing import Site
from penstock.core.links.telling import Telling
from penstock.errors import InvalidArgument, NotFound, PreconditionFailed, Unavailable
from penstock.expr import TopicPattern
from penstock.records.chunks import LSN_LIMIT
from penstock.records.event_actions import LINK, DowngradeStep, LinkEvent, UpgradeStep
from penstock.records.message_types import typed
from penstock.records.schema import SITES_MOST
from penstock.server.base.faults import Chore, Told
from penstock.server.flight.handover import Abandoned, Handover
from penstock.server.links.calling import hello_words
from penstock.server.links.receiving import Incoming
from penstock.server.links.sending import Outgoing
from penstock.wire.flight.linking import ask_words, enquiry_words

if TYPE_CHECKING:
    from penstock.config.links import LinkSection, LinkTopic
    from penstock.config.settings import Settings
    from penstock.server.engine import Engine

T = TypeVar("T")

ASKING_S = 0.02
"""How often it is looked whether to ask other sites for messages, while a link is up."""

BEAT_S = 0.5

AGAIN_S = 60.0
"""Giving up a site that queues wait for is tried so often, should it fail."""

WARNED_MOST = 1000
"""Different sentences that are said of what comes over links."""

logger = logging.getLogger("penstock.links")


class Links:
    """The loop's thread, but for `call` and `post`."""

    def __init__(self, engine: Engine, handover: Handover, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        """handover: from the threads of links to the loop."""
        self.engine = engine
        self.site = Site(settings.site, engine.log.origin, settings.server.group)
        self.incoming: dict[str, Incoming] = {}  # by site
        self._handover = handover
        self._loop = loop
        self._timers = set[asyncio.TimerHandle]()
        self._over = False
        self._confirms = deque[tuple[int, Callable[[], None]]]()  # that wait until other sites have an LSN
        engine.core.meet(engine.now(), self.site)
        self.outgoing = {one.name: Outgoing(self, one, engine.core.link_state(one.name)) for one in settings.link}
        for section in settings.link:
            groups = Groups(TopicPattern(one) for one in section.pass_through)
            engine.core.carries(section.name, carried(section), cast("Collection[str]", groups))
        engine.core.absent.update(self.outgoing)
        waits = [one.section.name for one in self.outgoing.values() if one.section.level_within and not one.paused]
        self.behind = set(engine.core.await_sites(engine.now(), waits))  # sites that queues here wait for
        self._warned = set[str]()
        self._introduced = dict[str, set[str]]()  # the sites that each was told of, or told of itself
        self._offered = dict[str, int]()  # the last LSN when each site was told of the queues here
        self._judged = dict[str, int]()  # of what sites agree on, how many changes were looked at
        engine.row_readers.append(self.floor)
        engine.on_durable.append(self._durable)
        if any(one.section.sync for one in self.outgoing.values()):
            engine.elsewhere = self._persist
            engine.on_broken.append(lambda _: self._confirms.clear())
        engine.pace = self.pace
        self._began = engine.clock.mono()
        chore = partial(Chore, engine.faults, engine.clock)
        self._asking = chore(self._ask_others)
        self._looks = [chore(partial(self._look, one)) for one in self.outgoing.values()]
        engine.arm()

    def start(self) -> None:
        """Begin to call other sites."""
        for one in self.outgoing.values():
            one.start()
        for name in self.behind:
            self.later(self.outgoing[name].section.level_within / 1e6, partial(self._give_up, name))
        self._beat()
        self._ask()

    def stop(self) -> None:
        """Tell and hear nothing more."""
        self._over = True
        for timer in self._timers:
            timer.cancel()
        for one in self.outgoing.values():
            one.stop()
        for other in list(self.incoming.values()):
            other.end(Unavailable("the server stops"))

    def join(self, seconds: float) -> None:
        """Wait for threads; not on the loop."""
        for one in self.outgoing.values():
            one.join(seconds)

    # -- the threads of links

    def call(self, work: Callable[[], T]) -> T:
        """The result of work on the loop; what it decided may not be durable yet.  Unavailable as the server stops."""
        try:
            return self._handover.call(work, lambda: self._over, durable=False)
        except Abandoned:
            raise Unavailable("the server stops") from None

    def post(self, job: Callable[[], None]) -> bool:
        """Run it on the loop; False: the server stops."""
        try:
            self._handover.post(job)
        except Unavailable:
            return False
        return not self._over

    # -- what links ask for

    def meet(self, *sites: Site) -> None:
        """Other sites are there.  PreconditionFailed where a name is another's."""
        for site in sites:
            if site.origin != self.site.origin:
                self.engine.core.meet(self.engine.now(), site)
        self.engine.arm()

    def knows(self, link: str, sites: Sequence[Site]) -> None:
        """The site at the end of a link has told of these."""
        self.meet(*sites)
        self._introduced[link].update(site.name for site in sites)

    def hello(self, section: LinkSection) -> bytes:
        """What is said to a site at first."""
        self._offered[section.name] = self.engine.core.last_lsn
        self._introduced[section.name] = {site.name for site in self.known}
        said = self.engine.core.said_to(section.name)
        return hello_words(section.name, self.site, said, self.known, sync=section.sync)

    @property
    def known(self) -> Collection[Site]:
        """All sites that this one has met, and itself; who has the same queues knows those that their settings name."""
        return [site for site in self.engine.core.peers.sites.values() if site.origin][:SITES_MOST]

    def telling(self, section: LinkSection, upto: int) -> Telling:
        """What tells that site of this log, from there on."""
        return self.engine.core.telling(section.name, upto=upto, offered=self._offered[section.name])

    def agrees(self, site: str, offers: Sequence[object]) -> None:
        """A site has said what it has.  PreconditionFailed with a line for each thing on which the two differ.

        While it tells of itself here, what it has is told there, in order: a welcome was under way on another stream,
        may be older, and nobody would say again what it takes back.
        InvalidArgument for what cannot be read.
        """
        core, said = self.engine.core, read_offers(offers)
        try:
            lines = core.differences(site) if site in self.incoming else core.share(site, said)
        except ValueError as error:
            raise InvalidArgument(f"link: {error}") from error
        if lines:
            raise PreconditionFailed("; ".join(lines))

    def changed(self, name: str, *, up: bool) -> None:
        """A link came up, or is not up any more."""
        core = self.engine.core
        if up:
            core.link_up(name)
        else:
            core.absent.add(name)
        self.engine.log.follow(any(one.up for one in self.outgoing.values()))
        self.moved()

    def moved(self) -> None:
        """A link is further than before, or is waited for no longer."""
        confirms = self._confirms
        if confirms and confirms[0][0] <= (upto := self.persisted):
            while confirms and confirms[0][0] <= upto:
                self.engine.faults.run(confirms.popleft()[1])
            self.engine.arm()

    @property
    def persisted(self) -> int:
        """Every site that publishers wait for has all up to here."""
        return min((one.done for one in self.outgoing.values() if one.waited_for), default=LSN_LIMIT)

    @property
    def unconfirmed(self) -> int:
        """Confirms that wait for other sites."""
        return len(self._confirms)

    def _persist(self, lsn: int, confirm: Callable[[], None]) -> None:
        """It is durable here: confirm it when other sites have it."""
        if not self._confirms and lsn <= self.persisted:
            confirm()
        else:
            self._confirms.append((lsn, confirm))

    def joins(self, link: Incoming, site: Site, sites: Sequence[Site], offers: Sequence[object]) -> int:
        """A site begins to tell; how far its log is known here.  PreconditionFailed as `agrees`.

        Unavailable while another stream of that name and log speaks from another host: of two servers that are one site
        by a copied folder the one that is here goes on, else each would end the other's, and what both told would be
        one log.  From the same host it is the same server, which has begun anew before the end of the first was heard.
        """
        if site.origin == self.site.origin:
            raise PreconditionFailed(f"site {site.name!r} has this site's own log: a folder was copied")
        self.meet(site, *sites)
        core = self.engine.core
        before = self.incoming.get(site.name)
        if before is not None and before.host != link.host and before.speaks():
            what = f"site {site.name!r} speaks here, from {before.host}, and was called from {link.host}, too"
            self.warn(f"{what}: if that lasts, two servers have the folder of one")
            raise Unavailable(f"{what}: if this lasts, another server has a copy of this one's folder")
        self.incoming.pop(site.name, None)
        if before is not None:
            before.end(Unavailable("the site has begun another stream"))
        self.agrees(site.name, offers)
        self.incoming[site.name] = link
        if site.name in self.outgoing:
            self.outgoing[site.name].nudge()
        return core.heard(site.name)

    def level(self, site: str) -> None:
        """A site has told what happened before its link came up: queues here wait for it no longer."""
        if site in self.behind:
            logger.info("site %r has told what happened while this one was away", site)
            self._wait_no_longer(site)

    def _give_up(self, site: str) -> None:
        if site in self.behind:
            self.later(AGAIN_S, partial(self._give_up, site))  # if this fails
            seconds = self.outgoing[site].section.level_within / 1e6
            text = "site %r has not told in %g s what happened while this one was away: queues deliver without"
            logger.warning(text, site, seconds)
            self._wait_no_longer(site)

    def _wait_no_longer(self, site: str) -> None:
        if site in self.behind:
            self.engine.core.level(self.engine.now(), site)
            self.behind.discard(site)
            self.engine.arm()

    def warn(self, line: str) -> None:
        """Say a sentence once in the life of this server."""
        if line not in self._warned and len(self._warned) < WARNED_MOST:
            self._warned.add(line)
            logger.warning("%s", line)

    def leaves(self, link: Incoming) -> None:
        """A stream that another site called with has ended."""
        if self.incoming.get(link.site) is link:
            del self.incoming[link.site]

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something after a while, unless the server stops before."""

        def due() -> None:
            self._timers.discard(timer)
            if not self._over:
                self.engine.faults.run(work, Told("link"))

        timer = self._loop.call_later(seconds, due)
        self._timers.add(timer)

    # -- what operators ask for

    def facts(self) -> list[dict[str, object]]:
        """Those that lead away and those that come."""
        out = [self._facts_out(one) for one in self.outgoing.values()]
        return [*out, *(facts_in(one) for one in self.incoming.values())]

    def pause(self, name: str, *, paused: bool) -> dict[str, object]:
        """Have one wait, or go on; also over a restart, if that site was ever met.  NotFound."""
        link = self.outgoing.get(name)
        if link is None:
            raise NotFound(f"no [[link]] {name!r}")
        core = self.engine.core
        if core.peers.number(name) is not None:
            core.note_link(self.engine.now(), name, paused=paused)
        link.pause(paused=paused)
        if paused:
            self._wait_no_longer(name)
        return self._facts_out(link)

    def pace(self, step: DowngradeStep | UpgradeStep) -> None:
        """What an action asks: have confirms wait for links no longer, or again."""
        if isinstance(step, DowngradeStep) and self.engine.clock.mono() - self._began < step.grace_period:
            return
        for one in self.outgoing.values():
            if isinstance(step, DowngradeStep):
                one.downgrade(step.age)
            else:
                one.upgrade(step.age)

    def happened(self, link: str, event: LinkEvent) -> None:
        """Tell actions that watch links."""
        acts, one, peers = self.engine.acts, self.outgoing[link], self.engine.core.peers
        if self.engine.core.rules.link:
            number = peers.number(link)
            target = one.section.targets[0]
            scheme, _, at = (one.address or str(target)).partition("://")
            group = "" if number is None else peers.sites[number].group
            words = (link, group, at, one.section.user or target.user or "guest", scheme)
            acts.linked(event, link, dict(zip(LINK, words, strict=True)), one.why or "")

    def _facts_out(self, link: Outgoing) -> dict[str, object]:
        return facts_out(link) | {"awaited": link.name in self.behind}

    # -- what the server asks for

    def _durable(self) -> None:
        """More of the log is on the disk."""
        lsn = self.engine.log.durable
        self.engine.faults.run_each([partial(one.durable, lsn) for one in self.outgoing.values()])

    def floor(self) -> int | None:
        """The lowest LSN that some site was not told of yet."""
        return min((one.done + 1 for one in self.outgoing.values()), default=None)

    # -- time

    def _ask(self) -> None:
        self.later(ASKING_S, self._ask)
        self._asking.run()

    def _ask_others(self) -> None:
        if self.engine.refusal() is not None:  # what others gave this site would not hear of, and they would lack
            return
        core, now = self.engine.core, self.engine.now()
        asks = core.asks(now) if core.proxied or any(one.up for one in self.outgoing.values()) else []
        for words, some in ((ask_words, asks), (enquiry_words, core.enquiries(now))):
            for one in some:
                link = self.outgoing.get(one.to)
                if link is not None and link.up:
                    link.ask(words(one.ask))
        self.engine.arm()

    def _beat(self) -> None:
        self.later(BEAT_S, self._beat)
        now = self.engine.clock.mono()
        self.engine.faults.run_each([partial(other.beat, now) for other in self.incoming.values()])
        for look in self._looks:
            look.run()
        self.engine.arm()

    def _look(self, one: Outgoing) -> None:
        one.note()
        one.judge_silence()
        one.judge_delay()
        if one.up and not {site.name for site in self.known} <= self._introduced[one.name]:
            one.renew("another site is there")  # which may ask that one for messages, through this one
        elif one.up and self._differs(one.name):
            one.renew("queues have changed")  # and it is refused

    def _differs(self, site: str) -> bool:
        """Whether there is a reason now for which the link to a site would be refused."""
        before, self._judged[site] = self._judged.get(site), self.engine.core.sharing.changes
        return before != self._judged[site] and bool(self.engine.core.differences(site))


def carried(section: LinkSection) -> list[Carries]:
    """The topics of a link as the core takes them."""
    return [Carries(one.pattern, one.exchange, one.vhost, filter_of(one)) for one in section.topic]


def filter_of(topic: LinkTopic) -> str | None:
    """Its filter, which says of what type the bodies are."""
    return None if topic.filter is None else typed(topic.filter, topic.message_type)


class Groups(tuple[TopicPattern, ...]):
    """Groups of sites, each by its name or by a pattern of names, as topics are written."""

    __slots__ = ()

    def __contains__(self, group: object) -> bool:
        return isinstance(group, str) and any(one.matches(group) for one in self)


def read_offers(offers: Sequence[object]) -> list[Mapping[str, object]]:
    """What a site says of its queues, as objects; what is in them the core reads."""
    if not all(isinstance(one, dict) for one in offers):
        raise InvalidArgument("link: what a site says of a queue is no JSON object")
    return cast("list[Mapping[str, object]]", offers)


def facts_out(link: Outgoing) -> dict[str, object]:
    """A link that leads away, as people are told of it."""
    return {
        "link": link.name,
        "direction": "out",
        "state": link.state,
        "why": link.why,
        "address": link.address,
        "since": link.since,
        "sync": link.section.sync,
        "downgraded": link.downgraded,
        "topics": [one.pattern for one in link.section.topic],
        "told": link.told,
        "acked": link.done,
        "lag_seconds": link.owes_for / 1e6,
        "parcels": link.parcels,
        "messages": link.rows,
        "bytes": link.size,
        "asks": link.asks,
    }


def facts_in(link: Incoming) -> dict[str, object]:
    """A link that comes from another site, as people are told of it."""
    return {
        "link": link.site,
        "direction": "in",
        "state": "up",
        "why": None,
        "awaited": False,
        "address": link.peer,
        "since": link.since,
        "sync": link.command.sync,
        "downgraded": False,
        "topics": [],
        "told": link.upto,
        "acked": link.upto,
        "lag_seconds": 0.0,
        "parcels": link.parcels,
        "messages": link.rows,
        "bytes": link.size,
        "asks": link.asks,
    }
