"""The pytest plugin: a broker inside the test, or a real server beside it.

    def test_a_job(penstock_broker):
        penstock_broker.publish("jobs", b"one")

Settings come from the fixture `penstock_config`, which a module or a conftest overrides:

    @pytest.fixture
    def penstock_config():
        return {"queue": [{"name": "jobs", "max_cancels": 2}]}

Loaded by every pytest run where Penstock is installed: it imports nothing until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.testing.broker import Broker
    from penstock.testing.process import Config, ServerProcess


@pytest.fixture
def penstock_config() -> Config:
    """Settings of `penstock_broker` and `penstock_server`: a mapping, TOML text, or the path of a settings file."""
    return {}


@pytest.fixture
def penstock_broker(penstock_config: Config) -> Iterator[Broker]:
    """A broker in this process, on a memory disk and a fake clock."""
    from penstock.testing.broker import Broker

    with Broker(penstock_config) as broker:
        yield broker


@pytest.fixture
def penstock_server(penstock_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server process on free ports, with a data folder of its own."""
    from penstock.testing.process import ServerProcess

    folder: Path = tmp_path_factory.mktemp("penstock")
    with ServerProcess(folder, penstock_config) as server:
        yield server
