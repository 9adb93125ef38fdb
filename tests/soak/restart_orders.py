"""All orders in which three members of a cluster are stopped and started again, while clients publish and take.

    PYTHONPATH=tests python -m soak.restart_orders [stopped killed]

36 orders of each kind.  Judged are: whether each stops in time, somebody confirms again and all are in sync again, what
was confirmed and is absent, what came twice at most once, and at the end the logs of all members.  `make soak-cluster`
runs it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import permutations, product
from pathlib import Path
from tempfile import TemporaryDirectory

from pika.exceptions import AMQPError

from cluster_of_servers.house import PATIENCE_S, Cluster, Publisher, Server, drain
from penstock.log.copies import compare
from penstock.log.disk import OsDisk

MEMBERS = 3
SECTION = 'lease = "1s"\nack_timeout = "1s"'
ONCE = """
[[queue]]
name = "once"
semantics = "at-most-once"
"""
GAP_S = 0.15
"""Between two members: what happens while some have gone and others have not is what the orders are about."""
STOP_S = 20.0
"""A member that is asked to stop has done so by then, whoever of the others is there."""

Order = tuple[int, ...]
EVERY = list(product(permutations(range(MEMBERS)), repeat=2))


class OncePublisher(Publisher):
    """Of the queue whose messages are delivered at most once."""

    queue, rest = "once", 0.01


class Taker(threading.Thread):
    """Takes from that queue with whoever serves, and counts."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster, self.found, self.over = cluster, Counter[bytes](), threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            for server in self.cluster.servers:
                if server.runs and not self.over.is_set():
                    with suppress(AMQPError, OSError):
                        self._take(server)
            self.over.wait(0.05)

    def _take(self, server: Server) -> None:
        channel = server.connect().channel()
        for method, _, body in channel.consume("once", inactivity_timeout=0.1):
            if self.over.is_set():
                return
            if method is not None:
                assert body is not None
                self.found[body] += 1
                channel.basic_ack(method.delivery_tag)


def go_through(folder: Path, kinds: Iterable[str], orders: Iterable[tuple[Order, Order]] = EVERY) -> str:
    """All of these, in one cluster; a line of what clients saw.  AssertionError for what is wrong."""
    with Cluster(folder, MEMBERS, section=SECTION, more=ONCE) as cluster:
        cluster.leader()
        cluster.level()
        plain, once, taker, over = Publisher(cluster), OncePublisher(cluster), Taker(cluster), threading.Event()

        def publish(publisher: Publisher) -> None:
            while not over.is_set():
                publisher.publish(time.monotonic() + 0.2)

        team = [threading.Thread(target=publish, args=(one,), daemon=True) for one in (plain, once)]
        for thread in (*team, taker):
            thread.start()
        for kind, (stops, starts) in product(kinds, orders):
            print(f"{kind} in the order {stops}, started again in the order {starts}", flush=True)
            through(cluster, plain, kind, stops, starts)
        over.set()
        for thread in team:
            thread.join()
        taker.over.set()
        taker.join()
        found = Counter(drain(cluster.leader()))
        taken = taker.found + Counter(drain(cluster.leader(), "once"))
        told = (
            f"{len(plain.confirmed)} confirmed, {len(plain.confirmed - found.keys())} lost; at most once: "
            f"{len(once.confirmed)} confirmed, {sum(many > 1 for many in taken.values())} twice"
        )
        assert plain.confirmed <= found.keys(), told
        assert max(taken.values(), default=0) <= 1, told
    wrong = compare([(one.name, OsDisk(one.folder / "data")) for one in cluster.servers]).wrong
    assert not wrong, wrong
    return told


def through(cluster: Cluster, publisher: Publisher, kind: str, stops: Order, starts: Order) -> None:
    """Stop all in one order, start them in another, and wait until all is as before."""
    for number in stops:
        server = cluster.servers[number]
        if not server.runs:
            continue  # it has ended, for another one led
        if kind == "killed":
            server.kill()
        else:
            begun = time.monotonic()
            server.stop()
            assert time.monotonic() - begun < STOP_S, f"{server.name} took {time.monotonic() - begun:.1f} s to stop"
        time.sleep(GAP_S)
    before, until = len(publisher.confirmed), time.monotonic() + PATIENCE_S
    for number in starts:
        cluster.servers[number].start()
        time.sleep(GAP_S)
    while len(publisher.confirmed) < before + 5:
        for server in cluster.servers:
            if not server.runs:
                assert server.process is not None
                assert server.process.poll() == 6, f"{server.name} ended with {server.process.poll()}"
                server.start()
        assert time.monotonic() < until, "nobody confirms"
        time.sleep(0.05)
    cluster.level()


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        print(go_through(Path(place), sys.argv[1:] or ("stopped", "killed")))
