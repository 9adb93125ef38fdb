"""Flight's port whose certificate is renewed: the last word counts, whatever became of those before."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.server.flight import grpc_server
from waiting import eventually

NOTHING = cast("Any", None)


class Ports(grpc_server.Server):
    """Certificates that are good are served, others never; nothing listens."""

    def __init__(self) -> None:
        super().__init__(NOTHING, NOTHING, cast("Any", SimpleNamespace(batch_bytes=1)), lambda _: None)
        self.served = list[str]()
        self.refused = threading.Event()

    def _made(self, host: str, port: int, tls: dict[str, Any] | None) -> Any:
        assert tls is not None
        if tls["chain"] == "bad":
            self.refused.set()
            raise OSError(0, "Flight cannot listen there")
        self.served.append(tls["chain"])
        return SimpleNamespace(port=1, shutdown=lambda: None)


def test_a_certificate_that_cannot_be_served_holds_up_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was tried for ever, and those that came after it waited: the port was closed until the server ended."""
    monkeypatch.setattr(grpc_server, "Connections", lambda *_: SimpleNamespace(watch=lambda *_: None))
    ports = Ports()
    ports.listen("flight_tls", "127.0.0.1", 1, {"chain": "first"}, again=False)
    bad = threading.Thread(target=ports.renew, args=({"chain": "bad"},), daemon=True)
    bad.start()
    assert ports.refused.wait(20)
    good = {"chain": "good"}
    later = [threading.Thread(target=ports.renew, args=(good,), daemon=True) for _ in range(2)]
    for one in later:
        one.start()
    eventually(lambda: not any(one.is_alive() for one in (bad, *later)))
    assert ports.served[:2] == ["first", "good"]
    assert len(ports.served) == 2, "what is shown already was shown anew"
