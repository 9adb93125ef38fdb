"""`make soak-sites`: three sites that share a queue, a load everywhere, links cut in all ways, sites killed.

    PYTHONPATH=tests python -m soak.sites_soak --seconds 3600

Judged are: what was confirmed and nobody worked, what was worked twice though no site was killed meanwhile, the order
of each publisher in the log of each site, and that it all comes to rest when everything is healed.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import penstock
from fault_proxy import Fault, Network
from penstock.errors import Unavailable
from sites.house import Site, Sites
from sites.load import Books, Publisher, Worker
from soak import by_hand
from waiting import eventually

FAULTS = (Fault.CUT, Fault.SILENT, Fault.SLOW, Fault.TOWARDS, Fault.BACK, Fault.HALF_OPEN)
REST_S = 90.0


class SitesSoak:
    """One run.  What is wrong is in `wrong`."""

    def __init__(
        self, folder: Path, seconds: float, seed: int, *, names: str = "abc", pause: float = 0.01,
        least: Mapping[str, int] | None = None, say: Callable[[str], object] = print,
    ) -> None:  # fmt: skip
        """least: goes on until so many of what is counted have been."""
        self.least = dict(least or {})
        self.folder, self.seconds, self.names, self.pause, self.say = folder, seconds, names, pause, say
        self.random = random.Random(seed)
        self.books = Books()
        self.counts: Counter[str] = self.books.counts
        self.wrong = list[str]()

    def run(self) -> None:
        with Network() as network, Sites(self.folder, self.names, network=network) as sites:
            sites.linked()
            publishers = [Publisher(site, self.books, self.pause) for site in sites]
            workers = [Worker(site, self.books, self.random.choice((1, 5, 50))) for site in sites]
            for one in (*publishers, *workers):
                one.start()
            until = time.monotonic() + self.seconds
            while time.monotonic() < until or any(self.counts[what] < count for what, count in self.least.items()):
                self._trouble(sites, workers)
            self.say("everything is healed; publishers rest, workers finish")
            for way in sites.ways.values():
                way.heal()
            for publisher in publishers:
                publisher.end()
            for worker in workers:
                worker.resting.clear()
            eventually(lambda: not self.books.left(), lambda: f"never worked: {sorted(self.books.left())[:20]}", REST_S)
            sites.empty(seconds=REST_S)
            for worker in workers:
                worker.end()
            self._judge(sites)

    def _trouble(self, sites: Sites, workers: list[Worker]) -> None:
        what = self.random.choice((self._cut, self._cut, self._cut, self._kill, self._stop, self._move, self._pause))
        what(sites, workers)
        time.sleep(self.random.uniform(0.05, 0.6))

    def _cut(self, sites: Sites, workers: list[Worker]) -> None:
        pairs = self.random.sample(list(sites.ways), self.random.randint(1, 2))
        fault = self.random.choice(FAULTS)
        for pair in pairs:
            sites.ways[pair].fault(fault)
            self.counts["cuts"] += 1
        time.sleep(self.random.uniform(0.1, 1.5))
        for pair in pairs:
            sites.ways[pair].heal()

    def _kill(self, sites: Sites, workers: list[Worker]) -> None:
        site = self._any(sites)
        site.kill()
        self.books.killed(site.name)
        self.counts["kills"] += 1
        time.sleep(self.random.uniform(0.0, 0.5))
        site.start()

    def _stop(self, sites: Sites, workers: list[Worker]) -> None:
        site = self._any(sites)
        self.books.killed(site.name)  # leases end with it
        site.stop()
        self.books.killed(site.name)
        self.counts["stops"] += 1
        site.start()

    def _move(self, sites: Sites, workers: list[Worker]) -> None:
        """Workers of some sites rest, those of others begin."""
        for worker in workers:
            if self.random.random() < 0.5:
                worker.resting.set()
            else:
                worker.resting.clear()
        if all(worker.resting.is_set() for worker in workers):
            self.random.choice(workers).resting.clear()
        self.counts["moves"] += 1

    def _pause(self, sites: Sites, workers: list[Worker]) -> None:
        site = self._any(sites)
        to = self.random.choice([name for name in self.names if name != site.name])
        self._say(site, lambda client: client.pause_link(to))
        time.sleep(self.random.uniform(0.05, 0.5))
        self._say(site, lambda client: client.resume_link(to))
        self.counts["pauses"] += 1

    def _say(self, site: Site, what: Callable[[penstock.Client], object]) -> None:
        """To a server that may be slow, for the machine is full; not to one that answers nobody any more."""

        def said() -> bool:
            with contextlib.suppress(Unavailable), site.client() as client:
                what(client)
                return True
            self.counts["slow answers"] += 1
            return False

        eventually(said, f"site {site.name} does not answer", REST_S)

    def _any(self, sites: Sites) -> Site:
        return sites[self.random.choice(self.names)]

    def _judge(self, sites: Sites) -> None:
        books = self.books
        self.counts["given again"] = books.again()
        self.counts["worked elsewhere"] = sum(
            1 for body, some in books.given.items() if some[-1].site != body.decode().partition(":")[0]
        )
        self.wrong += books.wrong()
        for site in sites:
            self.wrong += disorder(site)
            found = site.queue()
            self.counts["transferred"] += found["transferred_in"]
            self.counts["double"] += found["double"]


def disorder(site: Site) -> list[str]:
    """Messages that stand in a site's log before an earlier one of the same publisher, or twice."""
    last = Counter[str]()
    found = list[str]()
    with site.client() as client:
        for message in client.replay("work", bookmark="EPOCH"):
            name, _, number = message.body.decode().partition(":")
            if int(number) <= last[name]:
                found.append(f"site {site.name} has {message.body!r} behind {name}:{last[name]}")
            last[name] = max(last[name], int(number))
    return found


def told(soak: SitesSoak) -> str:
    """What went on, in a line."""
    return ", ".join(f"{count:,} {what}" for what, count in sorted(soak.counts.items()))


def main() -> int:
    """Run it; 1 where something is wrong."""
    options = by_hand.options((__doc__ or "").partition("\n")[0])
    options.add_argument("--cuts", type=int, default=0, help="at least so many")
    options.add_argument("--kills", type=int, default=0, help="at least so many")
    given = options.parse_args()
    run = by_hand.Run(given, "sites")
    soak = SitesSoak(run.folder, given.seconds, given.seed, least={"cuts": given.cuts, "kills": given.kills})
    soak.run()
    print(told(soak))
    return run.end(soak.wrong[:50])


if __name__ == "__main__":
    sys.exit(main())
