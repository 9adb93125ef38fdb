"""Whatever happens to the messages of a queue: each that is acknowledged or expires is told of once, and no other."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.testing import Broker

CONFIG = {
    "queue": [
        {"name": "q", "lease_period": "4s", "max_cancels": 2, "max_deliveries": 3, "expiration": "30s"},
        {"name": "dead"},
        {"name": "done"},
        {"name": "seen"},
    ],
    "action": [
        {
            "on": {"queue": "q", "event": "expire"},
            "do": {"publish": {"topic": "dead", "data": '{"n": {{AMPS_DATA}}, "why": "{{AMPS_REASON}}"}'}},
        },
        {"on": {"queue": "q", "event": "delete"}, "do": {"publish": {"topic": "done"}}},
        {"on": {"topic": "q", "event": "publish"}, "do": {"publish": {"topic": "seen"}}},
    ],
}

STEP = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["ack", "cancel", "expire", "by name"]), st.integers(0, 5)),
    st.tuples(st.just("advance"), st.sampled_from([1, 5, 31])),
    st.tuples(st.sampled_from(["crash", "restart", "lost"]), st.just(0)),
)


def drained(broker: Broker, queue: str) -> list[bytes]:
    return [message.body for message in broker.subscribe(queue, max_backlog=None).take()]


@settings(max_examples=examples(60))
@given(steps=st.lists(STEP, max_size=25), seed=st.integers(0, 999))
def test_each_end_of_a_message_is_told_once(steps: list[tuple[str, int]], seed: int) -> None:
    published = 0
    with Broker(CONFIG, seed=seed) as broker:
        worker = broker.subscribe("q", max_backlog=3, name="worker")
        held = []
        for what, number in steps:
            held += worker.take()
            if what == "publish":
                for _ in range(number):
                    broker.publish("q", str(published))
                    published += 1
            elif what == "advance":
                broker.advance(number)
            elif what in {"crash", "restart"}:
                if what == "crash":
                    broker.crash()
                broker.restart()
                worker, held = broker.subscribe("q", max_backlog=3, name="worker"), []
            elif what == "lost":
                broker.disconnect("worker")
                worker, held = broker.subscribe("q", max_backlog=3, name="worker"), []
            elif held:
                message = held.pop(number % len(held))
                if what == "by name":
                    broker.ack("q", message.bookmark, by="somebody")
                else:
                    getattr(message, what)()
        broker.advance(0.2)
        dead, done, seen = (drained(broker, queue) for queue in ("dead", "done", "seen"))
        left = int(str(broker.stats("q")["queue_depth"]))
        reasons = Counter(reason for body in dead for reason in body.decode().split('"')[5].split(","))
        ended = [body.decode().split(",")[0].split(" ")[1] for body in dead] + [body.decode() for body in done]
        assert len(ended) == len(set(ended))
        assert reasons.keys() <= {"time_limit", "forced_expire", "max_cancels", "max_deliveries"}
        assert len(ended) + left == published  # over crashes too: what the log has is done, once
        assert sorted(map(int, seen)) == list(range(published))
