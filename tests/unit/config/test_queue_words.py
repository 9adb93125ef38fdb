"""What is written of a queue's setting is read again as the same; how a value is told to a person."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import pytest

from message_samples import AVRO
from penstock.config.load import in_force
from penstock.config.queue_arguments import arguments_of, given_names, queue_settings, queue_settings_from_mapping
from penstock.config.queue_settings import QUEUE_KEYS
from penstock.config.queue_values import Kind, QueueKey, Style, in_line, read_value, written
from penstock.config.settings import Settings
from penstock.records.message_types import MESSAGE_TYPES
from penstock.records.queue_settings import QueueSettings, Retry

STYLES: tuple[Style, ...] = ("amqp", "file", "python")


def values_of(key: QueueKey) -> Iterable[object]:
    """Values that a key takes, as they are kept inside."""
    match key.kind:
        case Kind.TEXT:
            return ["a b", ""]
        case Kind.CHOICE:
            return key.choices
        case Kind.BODIES:
            return [*MESSAGE_TYPES, AVRO]
        case Kind.COUNT:
            return [key.low, key.low + 1]
        case Kind.DURATION:
            return [max(key.low, 1000), 90_000_000] + ([] if key.rabbitmq else [max(key.low, 1500)])
        case Kind.SIZE:
            return [max(key.low, 1), 1000, 1 << 30]
        case Kind.RETRY:
            return [Retry(), Retry(1500, 1.5, 60_000_000, 0.0, 3)]
        case Kind.FILE:
            return [False, True]
        case Kind.WEIGHTS:
            return [(), (("a", 0.5), ("b", 3.0))]
        case Kind.LEASED:
            return [(0, 0), (7, 0), (0, 3), (7, 3)]
        case Kind.RATE:
            return [(0, 1, 0, 1), (100, 1_000_000, 0, 1), (0, 1, 5, 60_000_000), (10, 250_000, 3, 7_200_000_000)]
        case Kind.FLAG:
            return [True, False]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", [field.name for field in fields(QueueSettings)])
def test_a_value_that_is_written_is_read_again(name: str, style: Style) -> None:
    key = QUEUE_KEYS[name]
    for value in values_of(key):
        assert read_value(key, written(key, value, style), style, name) == value


def test_every_default_can_be_written_in_one_line() -> None:
    usual = QueueSettings()
    lines = {name: in_line(written(key, getattr(usual, name), "file")) for name, key in QUEUE_KEYS.items()}
    assert lines["lease_period"] == "0s"
    assert lines["retry"] == lines["max_length"] == "none"
    assert lines["unique"] == "false"
    assert lines["rate_limit"] == "0"


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("retry", Retry(attempts=8), "{ initial = 1s, factor = 2.0, max = 5m, jitter = 0.2, attempts = 8 }"),
        ("rate_limit", (100, 1_000_000, 5, 60_000_000), "{ queue = 100/s, key = 5/m }"),
        ("rate_limit", (10, 250_000, 0, 1), "10/250ms"),
        ("max_leased", (10, 2), "{ queue = 10, key = 2 }"),
        ("weights", (("a", 3.0),), "{ a = 3.0 }"),
        ("max_length_bytes", 1000, "1000B"),
    ],
)
def test_a_value_for_a_person_is_one_line_of_its_own_words(name: str, value: object, line: str) -> None:
    assert in_line(written(QUEUE_KEYS[name], value, "file")) == line


def test_a_path_is_not_said_where_it_could_not_be_read() -> None:
    key = QUEUE_KEYS["file_backed_metadata"]
    assert written(key, "/var/q.state", "file") == "/var/q.state"
    assert written(key, "/var/q.state", "amqp") is written(key, "/var/q.state", "python") is True


def test_shares_and_rates_are_told_as_arguments_that_give_them_again() -> None:
    values: dict[str, object] = {
        "fairness_key": "/t",
        "fairness_model": "fast",
        "weights": {"a": 3.0},
        "max_leased": {"queue": 10, "key": 2},
        "rate_limit": {"queue": "100/s", "key": "5/m"},
    }
    settings = queue_settings_from_mapping(values)
    told = arguments_of(settings, given_names(values), {})
    assert queue_settings(told) == settings
    assert told["x-rate-limit"] == {"queue": "100/s", "key": "5/m"}


def test_lists_are_told_in_words_and_addresses_as_the_file_has_them() -> None:
    told = {name: value for name, value, _ in in_force(Settings())}
    assert told["server.loopback_users"] == "guest"
    assert told["listen.amqp"] == "127.0.0.1:5672"
    assert in_line([]) == in_line(()) == "none"
