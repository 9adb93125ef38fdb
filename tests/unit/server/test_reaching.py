"""Calls between members: an address that others have told, and files that are being renewed, end nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.errors import Unavailable
from penstock.server.cluster.speech import Peer, Tls, reach
from tls_lab import Files


def nobody() -> Peer:
    raise AssertionError("nobody was to be reached")


@pytest.mark.parametrize(
    "address", ["", "host", "::", "h:", "h:x", "127.0.0.1:99999", "h\0:1", "..:1", f"{'a' * 64}.b:1"]
)
def test_an_address_that_is_none_is_one_that_cannot_be_reached(address: str) -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        asyncio.run(reach(nobody, address, None))


def test_files_that_do_not_go_together_are_told_and_looked_at_again_with_the_next_call(tmp_path: Path) -> None:
    files = Files(tmp_path)
    half = tmp_path / "half.pem"
    half.write_bytes(Path(files.key).read_bytes()[:100])  # somebody writes it just now
    for key in (str(half), str(tmp_path / "none.pem")):
        with pytest.raises(Unavailable, match="certificate, key and ca cannot be used"):
            asyncio.run(reach(nobody, "127.0.0.1:1", Tls(files.certificate, key, files.ca)))
