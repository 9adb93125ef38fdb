"""The pytest fixtures, and the server process behind one of them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pika
import pika.exceptions
import pytest

from penstock.errors import SettingsError, Unavailable
from penstock.testing import Broker, ServerProcess
from penstock.testing.process import Config, as_toml, is_text
from waiting import eventually

PROJECT = Path(__file__).resolve().parents[3]


class TestWithSettings:
    @pytest.fixture
    def penstock_config(self) -> Config:
        return {"queue": [{"name": "jobs", "max_cancels": 2}]}

    def test_a_broker_with_my_queues(self, penstock_broker: Broker) -> None:
        penstock_broker.publish("jobs", b"one")
        [message] = penstock_broker.subscribe("jobs").take()
        assert message.ack()

    def test_a_server_with_my_queues(self, penstock_server: ServerProcess) -> None:
        """Start, publish, kill, start again on the same ports: the confirmed message is there."""
        url, pid = penstock_server.amqp_url, penstock_server.pid
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"one", pika.BasicProperties(delivery_mode=2))
        eventually(lambda: "is ready" in penstock_server.output())  # a kill would take the line with it
        penstock_server.kill()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.process_data_events(time_limit=60)
        with pytest.raises(Unavailable, match="does not run"):
            _ = penstock_server.amqp_url
        penstock_server.start()
        assert penstock_server.pid != pid
        assert penstock_server.amqp_url == url
        assert penstock_server.recovered_records > 0
        assert penstock_server.http_url.startswith("http://")
        assert penstock_server.flight_url.startswith("penstock://guest:guest@")
        again = pika.BlockingConnection(pika.URLParameters(url))
        assert again.channel().basic_get("jobs")[2] == b"one"
        again.close()
        assert penstock_server.stop() == 0
        assert penstock_server.output().count("is ready") == 2


def test_without_settings_there_are_defaults(penstock_broker: Broker) -> None:
    assert penstock_broker.publish("nobody-wants-this", b"one") == ""


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, {"queue": [{"name": "q", "ring_size": -5}]})
    with pytest.raises(Unavailable, match=r"status 2(.|\n)*ring_size"):
        server.start()


def test_the_plugin_is_what_the_package_declares() -> None:
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"penstock": "penstock.testing.plugin"}
    for entry in entry_points(group="pytest11", name="penstock"):  # where the package is installed
        assert entry.value == declared["penstock"]


def test_the_plugin_costs_other_projects_nothing() -> None:
    code = "import sys, penstock.testing.plugin; print(*[name for name in sys.modules if name.startswith('penstock')])"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT / "src", capture_output=True, text=True, check=True
    ).stdout.split()
    assert sorted(found) == [
        "penstock",
        "penstock.client",
        "penstock.errors",
        "penstock.testing",
        "penstock.testing.plugin",
        "penstock.version",
    ]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"server": {"sync": "off"}, "queue": [{"name": 'a "b" \\ \x7f\u00e9\n'}, {"name": "c"}]},
        {"retry": {"initial": "1s", "factor": 2.0, "on": True, "n": [1, 2.5, -3], "k.ey": {}}},
    ],
)
def test_settings_of_a_process_are_written_as_toml(config: dict[str, object]) -> None:
    assert tomllib.loads(as_toml(config)) == config


def test_settings_that_no_file_can_hold_are_refused() -> None:
    with pytest.raises(SettingsError, match="NoneType"):
        as_toml({"a": {"b": None}})


def test_text_and_paths_are_told_apart() -> None:
    assert is_text("")
    assert is_text("a = 1")
    assert is_text("[server]")
    assert not is_text("penstock.toml")
    assert not is_text("/etc/penstock/penstock.toml")
