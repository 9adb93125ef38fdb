"""What `penstock doctor` says of links: whether they can be called, and their queues be shared."""

from __future__ import annotations

import socket
from pathlib import Path

from penstock.cli.checkup import Finding, examine_links
from penstock.config.load import load_text
from sites.house import Sites
from waiting import eventually

SETTINGS = """
[server]
name = "a"
{more}
[[link]]
name = "b"
to = ["penstock://127.0.0.1:{port}"]
topic = [{{ pattern = "orders.*" }}]
{link}
"""


def told(more: str = "", link: str = "", port: int = 1) -> list[Finding]:
    return list(examine_links(load_text(SETTINGS.format(more=more, link=link, port=port), source="p.toml")))


def test_each_address_is_called() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        [found] = told(port=port)
    assert (found.name, found.verdict) == ("link b", "good")
    [found] = told()
    assert (found.verdict, found.found.partition(": ")[0]) == ("poor", "penstock://127.0.0.1:1")


def test_files_that_cannot_be_read_and_confirms_that_wait_for_ever(tmp_path: Path) -> None:
    found = told(link=f'sync = true\npassword_file = "{tmp_path / "none"}"')
    assert [one.verdict for one in found] == ["bad", "poor", "poor"]
    assert "cannot be read" in found[0].advice
    assert "downgrade_after" in found[2].advice
    assert [one.found for one in told(link='sync = true\ndowngrade_after = "1s"')] == [found[1].found]


def test_queues_that_cannot_be_shared_and_owners_that_nobody_reaches() -> None:
    queue = '[[queue]]\nname = "{}"\n{}\n'
    found = told(
        queue.format("orders.a", "group_key = '/id'") + queue.format("other", "group_key = '/id'")
        + queue.format("orders.b", 'kind = "group-local"\ninitial_owner = "c"')
        + queue.format("orders.c", 'kind = "group-local"\ninitial_owner = "b"')
        + queue.format("orders.d", 'kind = "local"\ngroup_key = "/id"')
    )[1:]  # fmt: skip
    assert [one.found for one in found] == ["queue 'orders.a' has groups", "initial_owner 'c' of queue 'orders.b'"]


def test_of_a_server_that_runs_it_says_how_its_links_are(tmp_path: Path) -> None:
    """As the command tells it, asked of the server itself."""
    from penstock.cli.checkup import running_links
    from penstock.cli.driver_jobs import door_of

    with Sites(tmp_path) as sites:
        a, b = sites["a"], sites["b"]
        sites.linked()
        text = a.settings.read_text() + f'\n[listen]\nflight = "{a.flight}"\n'
        settings = load_text(text, source="p.toml")
        door = door_of(settings)
        assert door is not None
        [found] = running_links(settings, door)
        assert (found.name, found.verdict) == ("link b, running", "good")
        b.kill()
        eventually(lambda: [one.verdict for one in running_links(settings, door)] == ["poor"])
        [found] = running_links(settings, door)
        assert found.found.startswith("down since 20")
        assert "cannot be reached" in found.advice
