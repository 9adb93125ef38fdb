"""A cluster is upgraded one member at a time, and goes on meanwhile; then there is no way back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import forked
from choices import EFFORT
from cluster_of_servers.house import PATIENCE_S, Cluster, Publisher, Server, drain
from penstock.records.kinds import FORMAT
from waiting import eventually

HERE = f'FORMAT = {FORMAT}\n"""Of the log'


def newer_version(folder: Path) -> list[str]:
    """What Python runs for one that reads a newer format of the log, and says so."""
    newer = folder / "newer"
    shutil.copytree(forked.SOURCE / "penstock", newer / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    where = newer / "penstock/records/kinds.py"
    text = where.read_text()
    assert HERE in text
    where.write_text(text.replace(HERE, HERE.replace(str(FORMAT), str(FORMAT + 1))))
    return ["-c", f"import sys; sys.path.insert(0, {str(newer)!r})\nfrom penstock.cli.main import main\nmain()"]


def start_as(server: Server, command: list[str]) -> None:
    server._command = command
    server.start()


@pytest.mark.skipif(EFFORT < 2, reason="a dozen starts of processes: make soak")
def test_members_are_upgraded_one_after_the_other(tmp_path: Path) -> None:
    """Both versions serve side by side until `finalize`, which an older member does not get over."""
    section = 'lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1'
    new = {"OPENBLAS_NUM_THREADS": "1"}  # processes of their own, which load one version or the other
    with Cluster(tmp_path, 2, section=section, flight=True, environ=new) as cluster:
        older, newer = cluster.command, newer_version(tmp_path)
        publisher = Publisher(cluster)
        first = cluster.leader()
        cluster.level()
        [second] = cluster.followers()
        publisher.more(20)
        second.stop()
        start_as(second, newer)
        cluster.level()
        publisher.more(20)
        assert first.stop() == 0, "it hands over"
        eventually(lambda: second.serves, "the newer one does not lead")
        publisher.more(20)
        start_as(first, older)
        cluster.level()
        assert cluster.status()["format"] == FORMAT, "the older version can be had back until then"
        done = forked.penstock("cluster", "finalize", "--url", cluster.url)
        assert f"p1 reads {FORMAT}" in done.stderr
        first.stop()
        start_as(first, newer)
        cluster.level()
        assert forked.penstock("cluster", "finalize", "--url", cluster.url).returncode == 0
        assert cluster.status()["format"] == FORMAT + 1
        first.stop()
        start_as(first, older)
        assert first.process is not None
        assert first.process.wait(PATIENCE_S) == 6
        assert f"log is of format {FORMAT + 1}, and this version reads formats up to {FORMAT}" in first.said()
        assert publisher.confirmed <= set(drain(second))
