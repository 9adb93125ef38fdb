"""Two servers that share a queue over links: real processes, sockets and disks."""

from __future__ import annotations

from pathlib import Path

from sites.house import Sites, publish, work
from waiting import eventually


def test_a_message_published_here_is_seen_there_worked_there_and_settled_at_both(tmp_path: Path) -> None:
    with Sites(tmp_path) as sites:
        publish(sites["a"], b"one", b"two")
        eventually(lambda: sites["b"].queue()["foreign"] == 2, lambda: f"{sites['b'].queue()} {sites['b'].output()}")
        assert sites["a"].queue()["ready"] == 2
        assert work(sites["b"], 2) == [b"one", b"two"]
        sites.empty()
