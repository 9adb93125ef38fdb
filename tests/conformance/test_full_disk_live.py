"""A real server whose disk is full: it says so, and gets out by a purge, with a restart in between and without, also
where the archive on that disk has to have first what is to go.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from live_server import LiveServer
from penstock.client import Client, connect
from penstock.errors import DiskFull
from penstock.log.writer import KEPT
from waiting import eventually

pytestmark = pytest.mark.conformance

BODY, QUOTA = b"x" * 1_000_000, 80 << 20
RULE = "what nobody needs any more goes when the log takes more than 50% of the room on its disk"


def takes(client: Client, body: bytes) -> bool:
    """Whether the server takes a message."""
    try:
        client.publish("q", body)
    except DiskFull:
        return False
    return True


def publish(client: Client, count: int) -> None:
    for _ in range(count):
        client.publish("q", BODY)


class OnSmallDisk(LiveServer):
    """A server on a disk with a quota."""

    program = (str(Path(__file__).resolve().parents[1] / "soak" / "hosted.py"),)
    http = "127.0.0.1:0"

    def told(self, path: str) -> dict[str, object]:
        """What HTTP says, whatever its status."""
        login = {"Authorization": f"Basic {b64encode(b'guest:guest').decode()}"}
        try:
            with urlopen(Request(f"http://{self.ready['http']}{path}", headers=login)) as answer:
                found: dict[str, object] = json.load(answer)
        except HTTPError as error:
            with error:
                found = json.load(error)
        return found

    def fill(self) -> int:
        """Publish until the disk is full, and have it stay so whatever else goes; how many were confirmed."""
        with connect(f"penstock://{self.ready['flight']}") as client:
            client.declare("q")
            for confirmed in range(1000):
                if not takes(client, BODY):
                    Path(os.environ["SOAK_QUOTA"]).write_text(str(QUOTA - KEPT.low_space // 2))
                    eventually(lambda: self.told("/healthz")["status"] == "full", "nobody says that it is full")
                    return confirmed
        raise AssertionError("the disk does not get full")

    def purge(self) -> int:
        """Purge, and wait until publishes are taken and the log has let go of what was there; how many messages.

        Its files go one by one: with the first of them there is room for a moment, and then the reserve has it.
        """
        with connect(f"penstock://{self.ready['flight']}") as client:
            count = client.purge("q")
            eventually(lambda: takes(client, b"goes on"), "the disk stays full", 60)
            assert client.health()["retention"] == RULE
            client.purge("q")
        eventually(lambda: self.held() < QUOTA // 3, "the log lets go of nothing", 60)
        eventually(lambda: self.told("/healthz")["status"] == "ok", "there is room, and it says that it is full")
        Path(os.environ["SOAK_QUOTA"]).write_text(str(QUOTA))
        return count

    def held(self) -> int:
        """Bytes of the folder on the disk."""
        held = 0
        for file in self.data.rglob("*"):
            with suppress(FileNotFoundError):  # it has just gone
                held += file.stat().st_blocks * 512
        return held


def test_a_full_disk_is_left_by_a_purge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "quota"
    quota.write_text(str(QUOTA))
    monkeypatch.setenv("SOAK_QUOTA", str(quota))
    with OnSmallDisk(tmp_path, flight=True) as server:
        eventually(lambda: f"setting log.retention: {RULE} (default)" in server.output(), server.output)
        assert server.told("/healthz")["retention"] == RULE
        assert server.told("/api/overview")["penstock"]["retention"]["rule"] == RULE  # type: ignore[index]
        sent = server.fill()
        assert sent > 20
        assert server.told("/readyz") == {"ready": False, "status": "full"}
        assert server.told("/leader") == {"role": "leading"}, (
            "who makes room comes by the way that balancers leave open"
        )
        assert server.purge() == sent
        assert server.fill() > sent // 2
        server.kill()
        server.start()
        assert server.told("/healthz")["status"] == "full"
        assert server.purge() > sent // 2
        server.stop()


def test_an_archive_on_the_same_disk_has_room_to_take_what_a_full_log_is_to_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishes left it none: retention waited for the archive, the archive for room, and all was acknowledged."""
    quota, settings = tmp_path / "quota", tmp_path / "penstock.toml"
    quota.write_text(str(2 * QUOTA))
    settings.write_text('[log]\narchive = { folder = "archive" }\n')
    monkeypatch.setenv("SOAK_QUOTA", str(quota))
    with OnSmallDisk(tmp_path, [str(settings)], flight=True) as server:
        with connect(f"penstock://{server.ready['flight']}") as client:
            client.declare("q")
            with pytest.raises(DiskFull, match="of that the archive on it needs .* MiB to go on"):
                publish(client, 2 * QUOTA // len(BODY))
            assert client.purge("q") > 0
            eventually(lambda: takes(client, BODY), "the disk stays full")
        server.stop()
