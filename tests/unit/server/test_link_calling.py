"""What is left of a call to another site that has ended: nothing, and no line of a library in the server's output."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from penstock.config.links import LinkSection
from penstock.errors import SettingsError
from penstock.records.schema import CARRIED
from penstock.server.links.calling import Connection, closed
from penstock.server.sockets.certificates import Authority


class Refusing(flight.FlightServerBase):
    """Ends each call, at once or when it has heard something."""

    hears = False

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        if self.hears:
            writer.begin(CARRIED)
            reader.read_chunk()
        raise flight.FlightUnavailableError("not here")


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    with Refusing("grpc://127.0.0.1:0") as server:
        yield server


def call(section: LinkSection, ends: str) -> None:
    """Raises what ended it."""
    connection = Connection(section, section.targets[0], b"{}")
    try:
        if ends == "later":
            connection.write(b"1")
        if ends != "by this site":
            connection.read()
    finally:
        closed(connection)
        closed(connection)


@pytest.mark.parametrize("ends", ["as it is called", "later", "by this site"])
def test_a_call_that_has_ended_leaves_no_line_of_arrow(
    ends: str, refusing: Refusing, capfd: pytest.CaptureFixture[str]
) -> None:
    """A site that is refused calls again every five seconds, for as long as nobody mends that."""
    refusing.hears = ends != "as it is called"
    section = LinkSection.model_validate(
        {"name": "b", "to": [f"penstock://127.0.0.1:{refusing.port}"], "topic": [{"pattern": "q"}]}
    )
    if ends == "by this site":
        call(section, ends)
    else:
        with pytest.raises(flight.FlightUnavailableError, match="not here"):
            call(section, ends)
    gc.collect()
    assert capfd.readouterr().err == ""


def test_a_ca_that_is_none_is_told_by_its_name(tmp_path: Path) -> None:
    """gRPC says of it that an address list is empty."""
    broken = tmp_path / "ca.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    section = LinkSection.model_validate(
        {"name": "b", "to": ["penstocks://127.0.0.1:1"], "ca": str(broken), "topic": [{"pattern": "q"}]}
    )
    with pytest.raises(SettingsError, match=r"link\.ca: .*ca\.pem holds no CA certificates in PEM"):
        call(section, "by this site")


@pytest.mark.parametrize("key", ["ca", "certificate", "key"])
def test_files_of_tls_are_files(tmp_path: Path, key: str) -> None:
    """A pipe held up each call and the end of the server, a device filled its memory."""
    made = Authority(1)
    chain, secret = made.client("b")
    told = {"ca": made.pem, "certificate": chain, "key": secret}
    for name, pem in told.items():
        (tmp_path / name).write_bytes(pem)
    (tmp_path / key).unlink()
    os.mkfifo(tmp_path / key)
    names = {name: str(tmp_path / name) for name in told}
    section = LinkSection.model_validate(
        {"name": "b", "to": ["penstocks://127.0.0.1:1"], "topic": [{"pattern": "q"}]} | names
    )
    with pytest.raises(SettingsError, match=rf"link\.{key}: .*{key} is no regular file"):
        call(section, "by this site")
