"""Why a message died, in the words of who refused it: on its dead letter, until it dies again for another reason."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Broker

DEAD = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}


@pytest.mark.parametrize(
    ("said", "told", "word"),
    [
        ("ValueError: a, b", "ValueError: a, b", "rejected"),
        ("x" * 1500, "x" * 1000, "rejected"),
        (None, "rejected", "rejected"),
    ],
)
def test_the_reason_of_a_reject_is_on_its_dead_letter(said: str | None, told: str, word: str) -> None:
    dead = {"name": "dead", "message_ttl": "10s", "dead_letter_exchange": "", "dead_letter_routing_key": "last"}
    config = {"queue": [{"name": "q", **DEAD}, dead, {"name": "last"}]}
    with Broker(config) as broker, penstock.connect(broker.flight_url) as client:
        client.publish("q", b"1", headers={"x-last-death-why": "a stranger's"})
        with client.consume("q", timeout=20) as consumer:
            next(iter(consumer)).reject(reason=said)
            consumer.flush()
        with client.consume("dead", timeout=20) as consumer:
            letter = next(iter(consumer))
            assert letter.reason == told
            assert letter.headers["x-last-death-reason"] == word
            assert ("x-last-death-why" in letter.headers) is (said is not None)
            letter.release()
            consumer.flush()
        broker.advance(11)
        with client.consume("last", timeout=20) as consumer:
            assert next(iter(consumer)).reason == "expired"
