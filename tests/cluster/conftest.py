"""One cluster, one server whose data folder the workers do not see, and one session for all tests here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from live_server import LiveServer
from penstock.client import Client
from spark_cluster import CONF, SOURCE, Cluster, may_hide


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:py4j"))
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


class Site:
    """A cluster and a server of which its machines see nothing but the address."""

    def __init__(self, folder: Path, cluster: Cluster, server: LiveServer, client: Client) -> None:
        self.folder, self.cluster, self.server, self.client = folder, cluster, server, client
        self.url = f"penstock://guest:guest@{server.ready['flight']}"


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-cluster-"))
    hidden = folder / "hidden"
    hidden.mkdir()
    with (
        Cluster(folder / "cluster", hide=hidden if may_hide() else None) as cluster,
        LiveServer(hidden / "server", flight=True) as server,
        penstock.connect(f"penstock://{server.ready['flight']}") as client,
    ):
        yield Site(folder, cluster, server, client)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(site: Site) -> Iterator[Any]:
    """A session on the cluster; the package is installed there, which here means that it is on PYTHONPATH."""
    from penstock.spark import session

    assert str(SOURCE) in os.environ.get("PYTHONPATH", str(SOURCE))
    made = session(site.cluster.url, memory="512m", conf=CONF)
    yield made
    made.stop()
