"""Links over TLS, to one of several addresses, with filters and patterns, through a site between two others."""

from __future__ import annotations

from pathlib import Path

import penstock
from ports import free_ports
from sites.house import Site, Sites, out, publish, work
from tls_lab import Files
from waiting import eventually


def rewritten(site: Site, *changes: tuple[str, str]) -> None:
    text = site.settings.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    site.settings.write_text(text)


def test_over_tls_where_the_first_address_does_not_answer(tmp_path: Path) -> None:
    files = Files(tmp_path / "files")
    secret, nobody = free_ports(2)
    sites = Sites(tmp_path)
    listen = f'\n[listen]\nflight_tls = "127.0.0.1:{secret}"\n'
    listen += f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
    b = sites["b"]
    b.settings.write_text(b.settings.read_text() + listen)
    plain = f'to = ["penstock://127.0.0.1:{b.flight_port}"]'
    addresses = f'to = ["penstocks://127.0.0.1:{nobody}", "penstocks://127.0.0.1:{secret}"]\nca = "{files.ca}"'
    rewritten(sites["a"], (plain, addresses))
    with sites:
        sites.linked()
        assert out(sites["a"])["address"] == f"penstocks://127.0.0.1:{secret}"
        publish(sites["a"], b"one")
        eventually(lambda: b.queue()["foreign"] == 1)
        assert work(b, 1) == [b"one"]
        sites.empty()


def _numbers(client: penstock.Client, topic: str) -> list[int]:
    return [message.json()["n"] for message in client.replay(topic, bookmark="EPOCH")]


def test_only_what_a_filter_lets_through_goes_to_a_topic_there(tmp_path: Path) -> None:
    kept = '\n[[topic]]\nname = "^orders[.]"\n'
    topics = '{ pattern = "work" }, { pattern = "^orders[.]", filter = "/n > 1" }'
    with Sites(tmp_path, more=kept, topics=topics) as sites:
        sites.linked()
        with sites["a"].client() as client:
            for number in range(4):
                client.publish("orders.eu", {"n": number})
            client.publish("work", b"last")
        eventually(lambda: sites["b"].queue()["foreign"] == 1)
        with sites["b"].client() as client:  # what a queue counts has come, and can be replayed once it is durable
            eventually(lambda: _numbers(client, "orders.eu") == [2, 3])


def test_a_site_between_two_others_hands_on_what_its_link_says(tmp_path: Path) -> None:
    """The link to c passes through what comes of a; that to a says nothing, and hands on nothing that comes of c."""
    sites = Sites(tmp_path, "abc", ways=("ab", "ba", "bc", "cb"))
    a, b, c = sites
    to_a, to_c = b.settings.read_text().split('[[link]]\nname = "c"')
    carried = 'topic = [{ pattern = "work" }]'
    assert carried in to_c
    passing = to_c.replace(carried, f'{carried}\npass_through = ["^group-"]')
    b.settings.write_text(f'{to_a}[[link]]\nname = "c"{passing}')
    with sites:
        sites.linked()
        publish(a, b"one")
        eventually(lambda: b.queue()["foreign"] == 1)
        eventually(lambda: c.queue()["foreign"] == 1, lambda: str(c.queue()))
        publish(c, b"two")
        eventually(lambda: b.queue()["foreign"] == 2)
        publish(b, b"three")
        eventually(lambda: c.queue()["foreign"] == 2, lambda: str(c.queue()))
        eventually(lambda: a.queue()["foreign"] >= 1, lambda: str(a.queue()))
        assert a.queue()["foreign"] == 1
