"""Two servers that share a queue over links: real processes, sockets and disks."""

from __future__ import annotations

from pathlib import Path

import pika

from sites.house import Sites
from waiting import eventually


def publish(sites: Sites, name: str, *bodies: bytes, queue: str = "work") -> None:
    channel = sites[name].connect().channel()
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def work(sites: Sites, name: str, count: int, queue: str = "work") -> list[bytes]:
    """What a worker at a site is given, acknowledged."""
    out = list[bytes]()
    with sites[name].client() as client:
        for message in client.consume(queue, backlog=count):
            out.append(message.body)
            message.ack()
            if len(out) == count:
                break
    return out


def test_a_message_published_here_is_seen_there_worked_there_and_settled_at_both(tmp_path: Path) -> None:
    with Sites(tmp_path) as sites:
        publish(sites, "a", b"one", b"two")
        eventually(lambda: sites["b"].queue()["foreign"] == 2, lambda: f"{sites['b'].queue()} {sites['b'].output()}")
        assert sites["a"].queue()["ready"] == 2
        assert work(sites, "b", 2) == [b"one", b"two"]
        sites.empty()
