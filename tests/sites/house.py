"""Sites as processes of their own on this machine, with links both ways between each two, over proxies where asked."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pika

import penstock
from cluster_of_servers.house import GUEST, free_ports
from fault_proxy import Network, Way
from live_server import LiveServer
from waiting import eventually

QUEUE = """
[[queue]]
name = "work"
{settings}
"""

LINK = """
[[link]]
name = "{name}"
to = ["penstock://127.0.0.1:{port}"]
topic = [{topics}]
{settings}
"""


class Site(LiveServer):
    """One site."""

    http = "127.0.0.1:0"

    def __init__(self, folder: Path, name: str, port: int) -> None:
        self.name = name
        self.settings = folder / "penstock.toml"
        self.flight = f"127.0.0.1:{port}"
        self.flight_port = port
        super().__init__(folder, [str(self.settings)], flight=True)

    @property
    def url(self) -> str:
        return f"penstock://guest:guest@127.0.0.1:{self.flight_port}"

    def client(self) -> penstock.Client:
        return penstock.connect(self.url)

    def get(self, path: str) -> Any:
        """JSON of an HTTP answer."""
        request = urllib.request.Request(f"http://{self.ready['http']}{path}", headers=GUEST)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def queue(self, name: str = "work") -> dict[str, Any]:
        """Its statistics."""
        with self.client() as client:
            return dict(client.stats(name))

    def waiting(self, name: str = "work") -> int:
        """Messages that are in it, wherever they stand."""
        told = self.queue(name)
        return sum(told[state] for state in ("ready", "leased", "delayed", "foreign"))


class Sites:
    """`with Sites(folder, "ab") as sites:` all were started; links come up by themselves."""

    def __init__(
        self, folder: Path, names: str = "ab", *, network: Network | None = None, queue: str = "",
        topics: str = '{ pattern = "work" }', link: str = "", more: str = "", each: Mapping[str, str] | None = None,
        ways: Collection[str] | None = None, lacks: str = "",
    ) -> None:  # fmt: skip
        """queue: settings of the queue `work`.  link: of each link.  more: of each site, each: of one.

        ways: which links there are, each as the names of who tells and who hears; None: all.  lacks: sites without it.
        """
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.sites = {name: Site(folder / name, name, ports[name]) for name in names}
        self.ways = dict[tuple[str, str], Way]()
        for name, site in self.sites.items():
            text = f'[server]\nname = "{name}"\ngroup = "group-{name}"\n'
            text += ("" if name in lacks else QUEUE.format(settings=queue)) + more + (each or {}).get(name, "")
            for other in names:
                if other == name or (ways is not None and name + other not in ways):
                    continue
                port = ports[other]
                if network is not None:
                    way = self.ways[name, other] = network.way(port)
                    port = way.port
                text += LINK.format(name=other, port=port, topics=topics, settings=link)
            site.folder.mkdir(parents=True, exist_ok=True)
            site.settings.write_text(text)

    def __getitem__(self, name: str) -> Site:
        return self.sites[name]

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites.values())

    def __enter__(self) -> Self:
        for site in self:
            site.spawn()
        for site in self:
            site.await_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for site in self:
            if kind is not None:
                print(f"--- {site.name}\n{site.output()}")
            with contextlib.suppress(Exception):
                site.__exit__(None, None, None)

    def linked(self) -> None:
        """Wait until all links are up."""

        def down() -> list[str]:
            return [
                f"{site.name} to {one['link']}: {one['state']}, {one['why']}"
                for site in self for one in site.get("/api/links")
                if one["state"] != "up"
            ]  # fmt: skip

        eventually(lambda: not down(), lambda: "; ".join(down()))

    def empty(self, queue: str = "work", seconds: float = 30.0) -> None:
        """Wait until no site has anything in the queue."""

        def left() -> dict[str, int]:
            return {one.name: count for one in self if (count := one.waiting(queue))}

        eventually(lambda: not left(), lambda: f"left: {left()}", seconds)


def publish(site: Site, *bodies: bytes, queue: str = "work") -> None:
    """Each confirmed."""
    channel = site.connect().channel()
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def work(site: Site, count: int, queue: str = "work") -> list[bytes]:
    """What a worker at a site is given, acknowledged."""
    out = list[bytes]()
    with site.client() as client:
        for message in client.consume(queue, backlog=count):
            out.append(message.body)
            message.ack()
            if len(out) == count:
                break
    return out
