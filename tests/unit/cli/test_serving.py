"""What `serve` does before there is a server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli import serving
from penstock.errors import SettingsError


@pytest.fixture
def hangup() -> Iterator[None]:
    """What SIGHUP does is put back."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: pytest.fail("it would have ended the process"))
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
def test_who_has_renewed_certificates_may_say_so_while_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: Any) -> object:
        os.kill(os.getpid(), signal.SIGHUP)
        raise SettingsError("all of it was done")

    monkeypatch.setattr(serving, "read_settings", read)
    with pytest.raises(SettingsError, match="all of it was done"):
        serving.serve("penstock.toml")
