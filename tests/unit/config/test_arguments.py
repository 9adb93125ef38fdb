"""Queue settings from AMQP arguments and Python keywords."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import get_args

import pytest

from penstock.config.queue_arguments import (
    arguments_of,
    given_arguments,
    given_names,
    queue_settings,
    queue_settings_from_mapping,
)
from penstock.config.queue_settings import QUEUE_KEYS
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.declared_types import QUEUE_TYPES, TypeName
from penstock.records.field_tables import Timestamp
from penstock.records.queue_settings import QueueSettings, Retry


def test_the_table_has_a_row_for_every_setting() -> None:
    assert [field.name for field in fields(QueueSettings)] == list(QUEUE_KEYS)


def test_the_table_of_types_has_a_row_for_every_type_of_queue() -> None:
    assert get_args(TypeName) == tuple(QUEUE_TYPES)


def test_no_arguments_give_the_defaults_of_amqp() -> None:
    assert queue_settings({}) == QueueSettings(fairness_model="round-robin")


def test_arguments_are_kebab_case_and_milliseconds() -> None:
    settings = queue_settings(
        {
            "x-lease-period": 30_000,
            "x-message-ttl": 5,
            "x-expiration": "2h",
            "x-filter": b"/total > 5",
            "x-max-backlog": 7,
            "x-retry": {"initial": 500, "max": "1m", "factor": 3, "attempts": 8},
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
            "x-delivery-limit": -1,
            "x-fairness-model": "fast",
        }
    )
    assert settings == QueueSettings(
        lease_period=30_000_000,
        message_ttl=5_000,
        expiration=7_200_000_000,
        filter="/total > 5",
        max_backlog=7,
        retry=Retry(initial=500_000, factor=3.0, max=60_000_000, attempts=8),
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
        fairness_model="fast",
    )


def test_arguments_that_nobody_knows_are_ignored() -> None:
    harmless = {"x-team": "billing", "x-queue-type": b"classic", "x-queue-mode": "lazy", "x-queue-version": 2}
    assert queue_settings(harmless) == queue_settings({})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"x-message-ttl": "30s"},
            "invalid arg 'x-message-ttl' for queue 'q' in vhost '/': '30s' is not a whole number",
        ),
        ({"x-message-ttl": -1}, "-1 is not in 0..315360000000"),
        ({"x-message-ttl": True}, "true is not a whole number"),
        ({"x-message-ttl": 315_360_000_001}, "is not in 0..315360000000"),
        ({"x-lease-period": 1.5}, "1.5 is not a whole number"),
        ({"x-lease-period": "30"}, "'30' needs a unit"),
        ({"x-filter": 3}, "invalid arg 'x-filter' for queue 'q' in vhost '/': 3 is not text"),
        ({"x-filter": b"\xff"}, "not UTF-8"),
        ({"x-leasing": "strickt"}, "'strickt' is not one of sublet, strict; did you mean 'strict'?"),
        ({"x-delivery-limit": -2}, "-2 is not in -1.."),
        ({"x-retry": "1s"}, "'1s' is not a table of initial"),
        ({"x-retry": {"inital": 1}}, "'x-retry.inital'"),
        ({"x-retry": {"factor": 0.5}}, "0.5 is not in 1..1000"),
        ({"x-retry": {"jitter": float("nan")}}, "nan is not in 0..1"),
        ({"x-retry": {"initial": 2000, "max": 1000}}, "shorter than the initial delay"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-semantics": "at-most-once", "x-fairness-model": "fast"}, "'fast' needs at-least-once"),
        ({"x-semantics": "at-most-once", "x-deliver": "early"}, "'early' needs at-least-once"),
        ({"x-semantics": "at-most-once", "x-retry": {}}, "nothing to retry"),
        ({"x-kind": "group-local"}, "needs x-initial-owner beside it"),
        ({"x-kind": "local", "x-initial-owner": "one"}, "belongs to group-local queues alone"),
        ({"x-group-local-queue-domain": "d"}, "belongs to group-local queues alone"),
        ({"x-max-length": -1}, "-1 is not in 0.."),
        ({"x-max-length": "3"}, "'3' is not a whole number"),
        ({"x-max-length": 3.0}, "3.0 is not a whole number"),
        ({"x-overflow": "reject"}, "'reject' is not one of drop-head, reject-publish, reject-publish-dlx"),
        ({"x-max-length": 3, "x-barrier-expression": "/b"}, "cannot be set beside x-barrier-expression"),
        ({"x-max-length": 3, "x-target-queue-depth": 1000}, "cannot be set beside x-target-queue-depth"),
        *(
            ({"x-rate-limit": value}, f"{told} is no rate: write messages and a time, as in '100/s' or '10/250ms'")
            for value, told in (
                (False, "false"),
                (True, "true"),
                (5, "5"),
                (0.0, "0.0"),
                (1.5, "1.5"),
                (["5/s"], "['5/s']"),
                ("0", "'0'"),
            )
        ),
        ({"x-rate-limit": {"key": False}}, "'x-rate-limit.key' for queue 'q' in vhost '/': false is no rate"),
        ({"x-max-leased": False}, "false is not a whole number"),
        ({"x-deliver": 5}, "5 is not one of early, durable"),
        ({"x-file-backed-metadata": 5}, "5 is not true or false"),
        ({"x-queue-type": "square"}, "unsupported queue type 'square', none of classic, quorum, stream"),
        ({"x-queue-type": "stream", "x-max-length": 5}, "of queue type rabbit_stream_queue"),
        ({"x-queue-type": "stream", "x-max-age": "7d"}, "invalid_max_age"),
        ({"x-queue-type": "stream", "x-max-age": "7D", "x-expiration": 5}, "is the same as"),
        ({"x-max-age": "7D"}, "of queue type rabbit_classic_queue"),
        ({"x-queue-type": b"quorum", "x-max-priority": 5}, "of queue type rabbit_quorum_queue"),
        ({"x-queue-type": "quorum", "x-initial-cluster-size": 1}, "of queue type rabbit_quorum_queue"),
        ({"x-queue-type": "stream", "x-max-in-memory-length": 1}, "of queue type rabbit_stream_queue"),
        ({"x-quorum-initial-group-size": 3}, "of queue type rabbit_classic_queue"),
        ({"x-dead-letter-strategy": "at-least-once"}, "of queue type rabbit_classic_queue"),
        ({"x-queue-type": "quorum", "x-max-in-memory-bytes": Timestamp(5)}, "5 is not a whole number from 0 on"),
        ({"x-queue-type": "stream", "x-queue-leader-locator": "nobody"}, "not one of client-local, balanced, rand"),
        ({"x-queue-type": "quorum", "x-quorum-initial-group-size": 0}, "0 is not a whole number from 1 on"),
        ({"x-queue-type": "stream", "x-initial-cluster-size": 0}, "0 is not a whole number from 1 on"),
        ({"x-queue-type": "quorum", "x-max-in-memory-length": -1}, "-1 is not a whole number from 0 on"),
    ],
)
def test_what_is_known_is_never_taken_without_effect(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        queue_settings(arguments, queue="q")
    assert text in str(caught.value)
    assert str(caught.value).startswith("invalid arg '")


@pytest.mark.parametrize("lease", ["30s", 30, 30.0, timedelta(seconds=30)])
def test_python_takes_text_seconds_and_timedelta(lease: object) -> None:
    assert queue_settings_from_mapping({"lease_period": lease}).lease_period == 30_000_000


def test_python_names_the_nearest_key() -> None:
    with pytest.raises(InvalidArgument, match=r"'lease_perod' is no setting of a queue; did you mean 'lease_period'\?"):
        queue_settings_from_mapping({"lease_perod": "30s"})
    with pytest.raises(InvalidArgument, match="lease_period of queue 'q': '30' needs|needs a unit"):
        queue_settings_from_mapping({"lease_period": "30"}, queue="q")
    for wrong in (True, [], float("inf"), float("nan")):
        with pytest.raises(InvalidArgument, match="is not a duration"):
            queue_settings_from_mapping({"lease_period": wrong})


def test_altering_keeps_what_is_not_named() -> None:
    before = queue_settings_from_mapping({"lease_period": "30s", "max_cancels": 2})
    after = queue_settings_from_mapping({"lease_period": None, "max_backlog": 5}, base=before)
    assert after == QueueSettings(max_cancels=2, max_backlog=5)


def test_at_most_once_brings_the_only_fairness_and_delivery_it_allows() -> None:
    settings = queue_settings_from_mapping({"semantics": "at-most-once"})
    assert (settings.fairness_model, settings.deliver) == ("round-robin", "durable")


@pytest.mark.parametrize(
    ("values", "arguments", "told"),
    [
        ({}, {}, {"x-fairness-model": "proportional"}),
        ({"fairness_model": "round-robin"}, {}, {"x-fairness-model": "round-robin"}),
        ({"lease_period": "30s", "message_ttl": "1s", "expires": "5s", "fairness_model": "fast"}, {"x-expires": 5000},
         {"x-expires": 5000, "x-lease-period": 30_000, "x-message-ttl": 1000, "x-fairness-model": "fast"}),
        ({"retry": {"initial": "1s", "attempts": 3, "max": "2s"}, "fairness_model": "fast"}, {},
         {"x-retry": {"initial": 1000, "factor": 2.0, "max": 2000, "jitter": 0.2, "attempts": 3},
          "x-fairness-model": "fast"}),
    ],
)  # fmt: skip
def test_settings_are_told_as_arguments_that_give_them_again(
    values: dict[str, object], arguments: dict[str, object], told: dict[str, object]
) -> None:
    settings, given = queue_settings_from_mapping(values), given_names(values)
    found = arguments_of(settings, given, arguments)
    assert found == told
    assert queue_settings(found) == settings


def test_a_time_is_no_number() -> None:
    with pytest.raises(PreconditionFailed, match="x-max-length.*is not a whole number"):
        queue_settings({"x-max-length": Timestamp(10)})


def test_what_the_plugin_against_duplicates_says() -> None:
    settings = queue_settings({"x-message-deduplication": True}, "q")
    assert (settings.dedup_key, settings.unique) == ("/@headers/x-deduplication-header", True)
    assert given_arguments({"x-message-deduplication": True}) == {"dedup_key", "unique"}
    own = queue_settings({"x-message-deduplication": True, "x-dedup-key": "/id"}, "q")
    assert (own.dedup_key, own.unique) == ("/id", True)
    assert not queue_settings({"x-message-deduplication": False}, "q").unique
    with pytest.raises(PreconditionFailed, match="'yes' is not true or false"):
        queue_settings({"x-message-deduplication": "yes"}, "q")


@pytest.mark.parametrize(
    "name",
    ["dead-letter-exchange", "dead-letter-routing-key", "exchange", "default-publish-target", "expiry-address"],
)
def test_a_name_or_key_that_no_client_could_say_is_refused(name: str) -> None:
    asked: dict[str, object] = {"x-dead-letter-exchange": "", "x-underlying-topic": "t"}
    assert queue_settings({**asked, f"x-{name}": "\u00e9" * 127 + "e"})
    with pytest.raises(PreconditionFailed, match="has 256 bytes, 255 are allowed"):
        queue_settings({**asked, f"x-{name}": "\u00e9" * 128})
