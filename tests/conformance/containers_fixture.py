"""In the place of aiormq's and aio-pika's `docker_client`: the container that they ask for is the server under test."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from yarl import URL


class DockerNotAvailableError(Exception):
    """Never raised here."""


class DockerHostInfo(NamedTuple):
    """Nothing is needed of it."""


@dataclass
class ContainerInfo:
    """Where it is reached: `ports` by the names that a container gives them, such as `5672/tcp`."""

    id: str
    ports: dict[str, int]
    host: str = "localhost"


def check_docker_available() -> DockerHostInfo:
    return DockerHostInfo()


class DockerClient:
    """Of one server, which is there before and after."""

    def __init__(self, info: DockerHostInfo | None = None) -> None:
        self.info = info

    def run(self, image: str, ports: list[str], environment: dict[str, str] | None = None) -> ContainerInfo:
        """`image` and `environment` have no meaning for it."""
        there = {"5672/tcp": int(os.environ["AMQP_PORT"]), "5671/tcp": int(os.environ["AMQPS_PORT"])}
        return ContainerInfo("server", {port: there.get(port, 0) for port in ports})

    def kill(self, container: str) -> None:
        """It goes on: others use it."""

    remove = kill


@pytest.fixture(scope="session")
def rabbitmq_container() -> ContainerInfo:
    """aiormq's, which its sources leave out."""
    return DockerClient(DockerHostInfo()).run("", ["5672/tcp", "5671/tcp"])


@pytest.fixture(scope="session")
def amqp_direct_url(rabbitmq_container: ContainerInfo) -> URL:
    """aiormq's, which its sources leave out."""
    port = rabbitmq_container.ports["5672/tcp"]
    return URL.build(scheme="amqp", user="guest", password="guest", path="//", host="localhost", port=port)
