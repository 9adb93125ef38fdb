"""Certificates that other servers are shown: that one ends is told while there is time, and once a day."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.config.load import load_text
from penstock.server.base.faults import reports
from penstock.server.sockets import certificates
from penstock.server.sockets.certificates import Ends
from tls_lab import Files

DAY_S = 86_400


def ends(files: Files, link: Files) -> Ends:
    """Of a member of a cluster that is a site, too; its own doors are their keeper's."""
    return Ends(
        load_text(
            f'''
[server]
name = "here"
[tls]
certificate = "{files.certificate}"
key = "{files.key}"
[cluster]
name = "home"
registry = "etcd://127.0.0.1:1"
secret = "sixteen letters!"
certificate = "{files.certificate}"
key = "{files.key}"
ca = "{files.ca}"
[[link]]
name = "east"
to = ["penstocks://127.0.0.1:1"]
topic = [{{ pattern = "a" }}]
certificate = "{link.certificate}"
key = "{link.key}"
'''
        )
    )


async def looked(one: Ends) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        one.start(loop, pool)
        await loop.run_in_executor(pool, lambda: None)  # behind the look
        await asyncio.sleep(0)
        one.stop()


async def test_what_soon_ends_and_what_cannot_be_used_is_told_once_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, link = Files(tmp_path / "files", days=60), Files(tmp_path / "link", days=3)
    one = ends(files, link)
    await looked(one)
    await looked(one)
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"link east: the certificate {link.certificate} ends on ")
    left = one.seconds_left()
    assert 59 * DAY_S < left.pop("cluster") <= 60 * DAY_S
    assert 2 * DAY_S < left.pop("link east") <= 3 * DAY_S
    assert left == {}
    caplog.clear()
    monkeypatch.setattr(certificates, "NAGGING_S", 0)
    files.sign_server(days=-1)
    link.put(link.key, b"")
    await looked(one)
    ended, gone = (record.getMessage() for record in caplog.records)
    assert ended.startswith(f"cluster: the certificate {files.certificate} ended on ")
    assert ended.endswith("the others refuse it")
    assert gone == f"link.key: {link.key} holds no private key in PEM"
    assert set(one.seconds_left()) == {"cluster"}


async def test_a_fault_in_a_look_is_counted_and_the_next_look_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ends(Files(tmp_path / "files"), Files(tmp_path / "link"))
    before = reports.counts["upkeep"]

    def fails(*_: object) -> None:
        raise KeyError("as planted")

    with monkeypatch.context() as planted:
        planted.setattr(certificates.Files, "look", fails)
        await looked(one)
    assert reports.counts["upkeep"] == before + 1
    await looked(one)
    assert set(one.seconds_left()) == {"cluster", "link east"}
