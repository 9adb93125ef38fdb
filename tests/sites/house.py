"""Sites as processes of their own on this machine, with links both ways between each two, over proxies where asked."""

from __future__ import annotations

import contextlib
import io
import json
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pika

import penstock
from cluster_of_servers.house import GUEST
from fault_proxy import Network, Way
from live_server import LiveServer
from penstock.cli.main import main
from ports import free_ports
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

    def __init__(self, folder: Path, name: str, port: int, settings: str = "penstock.toml") -> None:
        """settings: the file of its settings, in its folder."""
        self.name = name
        self.settings = folder / settings
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
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def queue(self, name: str = "work") -> dict[str, Any]:
        """Its statistics."""
        with self.client() as client:
            return dict(client.stats(name))

    def waiting(self, name: str = "work") -> int:
        """Messages that are in it, wherever they stand."""
        told = self.queue(name)
        return sum(told[state] for state in ("ready", "leased", "delayed", "foreign"))


class Started:
    """`with Instances(folder, files) as sites:` all were started; links come up by themselves."""

    sites: dict[str, Site]
    ways: dict[tuple[str, str], Way]

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

    def empty(self, queue: str = "work", seconds: float = 60.0) -> None:
        """Wait until no site has anything in the queue."""

        def left() -> dict[str, int]:
            return {one.name: count for one in self if (count := one.waiting(queue))}

        eventually(lambda: not left(), lambda: f"left: {left()}", seconds)


class Sites(Started):
    """`with Sites(folder, "ab") as sites:` of our own settings, each with links to all others."""

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
        self.ways = {}
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


class Instances(Started):
    """Sites of AMPSConfig files."""

    def __init__(self, folder: Path, files: Mapping[str, str], network: Network | None = None) -> None:
        """files: by site; `PORT:b` in them is where `b` is reached, through the network where there is one."""
        ports = dict(zip(files, free_ports(len(files)), strict=True))
        self.sites = {name: Site(folder / name, name, ports[name], "amps.xml") for name in files}
        self.ways = {}
        for name, text in files.items():
            for other, port in ports.items():
                if network is not None and f"PORT:{other}" in text:
                    way = self.ways[name, other] = network.way(port)
                    port = way.port
                text = text.replace(f"PORT:{other}", f"127.0.0.1:{port}")
            self[name].folder.mkdir(parents=True, exist_ok=True)
            self[name].settings.write_text(text)


def publish(site: Site, *bodies: bytes, queue: str = "work") -> None:
    """Each confirmed."""
    channel = site.connect().channel()
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def work(site: Site, count: int, queue: str = "work") -> list[bytes]:
    """What a worker at a site is given, acknowledged."""
    out = list[bytes]()
    with site.client() as client, client.consume(queue, backlog=count) as consumer:
        while len(out) < count:
            message = consumer.take(timeout=60.0)
            assert message is not None, f"only {out} of {count} came: {client.explain(queue)}"
            out.append(message.body)
            message.ack()
    return out


def penstock_says(site: Site, *arguments: str) -> Any:
    """`penstock link ...`, as JSON."""
    told, code = io.StringIO(), None
    with contextlib.redirect_stdout(told):
        try:
            main(["link", *arguments, "--json", "--url", site.url])
        except SystemExit as ended:
            code = ended.code
    assert not code, told.getvalue()
    return json.loads(told.getvalue())


def out(site: Site, link: str = "") -> dict[str, Any]:
    """The link that leads away from a site, or of several the one of this name."""
    [found] = [one for one in site.get("/api/links") if one["direction"] == "out" and link in ("", one["link"])]
    return dict(found)


def readiness(site: Site) -> tuple[int, dict[str, Any]]:
    """Whether it says that it is ready."""
    try:
        with urllib.request.urlopen(f"http://{site.ready['http']}/readyz", timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def worked_for_one_away(sites: Sites) -> None:
    """What b has published is worked at a, by an operator's word, after b was killed."""
    a, b = sites["a"], sites["b"]
    sites.linked()
    publish(b, b"one", b"two")
    eventually(lambda: a.queue()["foreign"] == 2)
    b.kill()
    eventually(lambda: out(a)["state"] == "down")
    assert penstock_says(a, "proxy", "work", "on")["proxied_transfer"] is True
    assert work(a, 2) == [b"one", b"two"]
