"""What the tests ask servers that may die at any moment."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from cluster_of_servers.house import Cluster

HEAD = b"HTTP/1.1 %d Some\r\ncontent-type: application/json\r\ncontent-length: 29\r\n\r\n"


@pytest.mark.parametrize("status", [200, 503])
def test_who_dies_within_an_answer_has_not_answered(tmp_path: Path, status: int) -> None:
    [server] = Cluster(tmp_path, 1).servers
    with socket.create_server(("127.0.0.1", 0)) as dying:
        server.http = dying.getsockname()[1]

        def dies() -> None:
            with dying.accept()[0] as one:
                one.recv(1 << 16)
                one.sendall(HEAD % status)

        answers = threading.Thread(target=dies)
        answers.start()
        assert server.get("/readyz") == (0, {})
        answers.join()
