"""Dead letters by exchange and by action: where they go, what their headers say, and that it is one step.

Dying messages whose bodies are large: a letter becomes several, each a group of its own.
"""

from __future__ import annotations

import json
from array import array
from functools import partial

import pytest

from penstock.core.commands import deliveries
from penstock.core.effects import Fetch, Verb
from penstock.core.queue.order.runs import Run
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling.letters import Letter, portions
from penstock.core.state.durable import canonical
from penstock.errors import InvalidArgument
from penstock.records.entries import Control, Group, Publishes, Rows, Topic
from penstock.records.event_actions import Action, OnExpire, PublishStep
from penstock.records.field_tables import Timestamp
from penstock.records.kinds import Kind
from penstock.records.properties import decode
from penstock.records.queue_settings import Retry
from unit.core.world import START, World, header


@pytest.fixture
def world() -> World:
    return World()


def reject(world: World, queue: Queue, *, times: int = 1) -> None:
    """A consumer takes one message and refuses it for good, so many times."""
    consumer = world.subscribe(queue, max_backlog=1)
    for _ in range(times):
        lsn = world.inbox[consumer][-1]
        world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.EXPIRE, by=consumer)
        world.turn()
    world.core.unsubscribe(world.now, consumer, requeue=True)
    world.turn()


def only(world: World, queue: Queue) -> int:
    [lsn] = [lsn for chunk in queue.snapshot()[0] for lsn in chunk]
    return lsn


def test_rejected_to_an_exchange(world: World) -> None:
    work = world.declare("work", dead_letter_exchange="amq.topic")
    dead = world.declare("dead")
    world.core.bind(world.now, "/", "amq.topic", "dead", "queue", "work")
    cause = world.publish("work", b"bad", properties=header(headers={"CC": ["x"], "mine": 1}, message_id="m")).first
    reject(world, work)
    assert world.core.dead_lettered == {"rejected": 1}
    lsn = only(world, dead)
    headers = world.headers(lsn)
    assert headers["mine"] == 1
    assert headers["CC"] == ["x"]
    assert headers["x-death"] == [{
        "count": 1, "reason": "rejected", "queue": "work", "time": Timestamp(START // 1_000_000), "exchange": "",
        "routing-keys": ["work", "x"],
    }]  # fmt: skip
    for which in ("first", "last"):
        assert [headers[f"x-{which}-death-{what}"] for what in ("reason", "queue", "exchange")] == [
            "rejected",
            "work",
            "",
        ]
    batch, row = world.rows[lsn]
    assert decode(batch.properties_of(row)).message_id == "m"
    assert batch.topic_of(row).exchange == "amq.topic"
    assert batch.topic_of(row).name == "work"
    [expire] = [e for e in world.entries if isinstance(e, Control) and e.kind is Kind.EXPIRE]
    told = json.loads(expire.header)
    assert told["reason"] == "forced_expire"
    assert told["dead"] == [[cause, lsn]]
    assert told["by"]
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)


def test_expired_keeps_its_expiration_in_the_history_alone(world: World) -> None:
    world.declare("short", dead_letter_exchange="", dead_letter_routing_key="dead")
    dead = world.declare("dead")
    world.publish("short", b"x", properties=header(expiration="1500"))
    world.advance(1)
    assert dead.ready == 0
    world.advance(1)
    lsn = only(world, dead)
    batch, row = world.rows[lsn]
    assert decode(batch.properties_of(row)).expiration is None
    [death] = world.headers(lsn)["x-death"]  # type: ignore[misc]
    assert death["original-expiration"] == "1500"
    assert death["reason"] == "expired"
    world.advance(100)
    assert dead.ready == 1


def test_limits_are_delivery_limit(world: World) -> None:
    queue = world.declare("q", max_deliveries=1, dead_letter_exchange="", dead_letter_routing_key="dead")
    dead = world.declare("dead")
    consumer = world.subscribe(queue)
    lsn = world.publish("q", b"x").first
    world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.CANCEL, by=consumer)
    world.turn()
    assert world.headers(only(world, dead))["x-first-death-reason"] == "delivery_limit"


def test_a_queue_that_rejects_to_itself_counts(world: World) -> None:
    queue = world.declare("q", dead_letter_exchange="")
    world.publish("q", b"x")
    reject(world, queue, times=3)
    [death] = world.headers(only(world, queue))["x-death"]  # type: ignore[misc]
    assert death["count"] == 3  # type: ignore[index,call-overload]


def test_two_timeouts_into_each_other_make_one_trip(world: World) -> None:
    a = world.declare("a", message_ttl=1_000_000, dead_letter_exchange="", dead_letter_routing_key="b")
    b = world.declare("b", message_ttl=1_000_000, dead_letter_exchange="", dead_letter_routing_key="a")
    world.publish("a", b"x")
    world.advance(1)
    assert (a.ready, b.ready) == (0, 1)
    world.advance(1)
    assert (a.ready, b.ready) == (0, 0)
    assert canonical(world.core.durable_state()) == world.folded()


def test_a_rejection_in_between_lets_it_go_round(world: World) -> None:
    a = world.declare("a", message_ttl=1_000_000, dead_letter_exchange="", dead_letter_routing_key="b")
    b = world.declare("b", dead_letter_exchange="", dead_letter_routing_key="a")
    world.publish("a", b"x")
    for _ in range(5):
        world.advance(1)
        assert (a.ready, b.ready) == (0, 1)
        reject(world, b)
        assert (a.ready, b.ready) == (1, 0)
    reasons = [(d["queue"], d["count"]) for d in world.headers(only(world, a))["x-death"]]  # type: ignore[union-attr,index,call-overload]
    assert reasons == [("b", 5), ("a", 5)]


def test_a_clients_own_history_starts_from_nothing(world: World) -> None:
    queue = world.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    dead = world.declare("dead")
    forged = {"x-death": [{"queue": "q", "reason": "rejected", "count": 99}], "x-first-death-queue": "other"}
    world.publish("q", b"x", properties=header(headers=forged))
    reject(world, queue)
    headers = world.headers(only(world, dead))
    assert [d["count"] for d in headers["x-death"]] == [1]  # type: ignore[union-attr,index,call-overload]
    assert headers["x-first-death-queue"] == "q"


def test_a_history_survives_a_restart(world: World) -> None:
    world.declare("q", dead_letter_exchange="")
    world.publish("q", b"x")
    reject(world, world.core.queue("/", "q"))
    world.restart(clean=False)
    queue = world.core.queue("/", "q")
    reject(world, queue)
    assert [d["count"] for d in world.headers(only(world, queue))["x-death"]] == [2]  # type: ignore[union-attr,index,call-overload]


def test_a_missing_exchange_drops_and_creating_it_repairs(world: World) -> None:
    queue = world.declare("q", dead_letter_exchange="later")
    dead = world.declare("dead")
    world.publish("q", b"1")
    reject(world, queue)
    assert queue.dying == queue.ready == 0
    world.core.declare_exchange(world.now, "/", "later", "fanout", internal=True)
    world.core.bind(world.now, "/", "later", "dead", "queue", "")
    world.publish("q", b"2")
    reject(world, queue)
    assert world.contents(dead) == [b"2"]


def test_letters_leave_in_the_order_they_died(world: World) -> None:
    queue = world.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    dead = world.declare("dead")
    consumer = world.subscribe(queue)
    first = world.publish("q", *(b"%d" % n for n in range(6))).first
    chunks = [range(first + 4, first + 6), range(first, first + 2), range(first + 2, first + 4)]
    for chunk in chunks:
        world.core.settle(world.now, queue, [chunk], Verb.EXPIRE, by=consumer)
    world.turn()
    assert world.contents(dead) == [b"4", b"5", b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("portion", [1, 9])
def test_letters_of_several_queues_keep_the_order_of_each_queue(world: World, portion: int) -> None:
    for name in ("a", "b"):
        world.declare(
            name, underlying_topic="t", max_length=0, dead_letter_exchange="", dead_letter_routing_key="dead"
        )  # fmt: skip
    dead = world.declare("dead")
    topic, bodies = world.core.topic("/", "", "t"), [b"%d" % n for n in range(9)]
    for start in range(0, 9, portion):
        world.core.publish(world.now, Publishes(topic, header(), bodies[start : start + portion]))
    world.turn()
    died: dict[object, list[bytes]] = {"a": [], "b": []}
    for lsn in sorted(lsn for chunk in dead.snapshot()[0] for lsn in chunk):
        batch, row = world.rows[lsn]
        died[world.headers(lsn)["x-last-death-queue"]].append(batch.bodies[row])
    assert died == {"a": bodies, "b": bodies}  # how the two mingle is nobody's promise


def test_a_long_chain_does_not_recurse(world: World) -> None:
    count = 200
    for n in range(count):
        world.declare(f"q{n}", message_ttl=0, dead_letter_exchange="", dead_letter_routing_key=f"q{n + 1}")
    last = world.declare(f"q{count}")
    world.publish("q0", b"x")
    world.advance(0)
    assert world.contents(last) == [b"x"]
    assert len(world.headers(only(world, last))["x-death"]) == count  # type: ignore[arg-type]


def action(step: PublishStep, *reasons: str) -> Action:
    return Action("a", (OnExpire("q", reasons),), (step,))


def test_actions_render_templates() -> None:
    template = '{"why": "{{AMPS_REASON}}", "raw": {{AMPS_DATA}}, "text": "{{AMPS_DATA}}", "n": {{AMPS_DATA_LENGTH}}}'
    limits = action(PublishStep("graveyard", template), "max_deliveries", "max_cancels")
    every = action(PublishStep("log", "{{AMPS_TOPIC}} {{AMPS_BOOKMARK}} {{AMPS_DATETIME}} {{AMPS_INSTANCE_NAME}}"))
    world = World(actions=[limits, every])
    queue = world.declare("q", max_deliveries=1, max_cancels=1, retry=Retry())
    graveyard, log = world.declare("graveyard"), world.declare("log")
    consumer = world.subscribe(queue)
    body = b'{"a": "\\"x\\"\\n"}'
    lsn = world.publish("q", body).first
    world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.CANCEL, by=consumer)
    world.turn()
    [rendered] = world.contents(graveyard)
    value = json.loads(rendered)
    assert set(value["why"].split(",")) == {"max_cancels", "max_deliveries"}
    assert value["raw"] == json.loads(body)
    assert value["text"] == body.decode()
    assert value["n"] == len(body)
    assert world.contents(log) == [b"q 7|%d| 2023-11-14T22:13:20Z penstock-1" % lsn]
    [expire] = [e for e in world.entries if isinstance(e, Control) and e.kind is Kind.EXPIRE]
    assert [pair[0] for pair in json.loads(expire.header)["dead"]] == [lsn, lsn]
    lsn = world.publish("q", b"2").first
    world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.EXPIRE, by=consumer)
    world.turn()
    assert len(world.contents(graveyard)) == 1
    assert len(world.contents(log)) == 2
    assert canonical(world.core.durable_state()) == world.folded()


def test_actions_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="no variable {{AMPS_DATUM}}"):
        World(actions=[action(PublishStep("t", "{{AMPS_DATUM}}"))])
    with pytest.raises(InvalidArgument, match="no reason 'boredom'"):
        World(actions=[action(PublishStep("t"), "boredom")])


def test_dying_messages_die_after_a_crash_too(world: World) -> None:
    queue = world.declare("q", max_deliveries=1, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.declare("dead")
    consumer = world.subscribe(queue)
    lsn = world.publish("q", b"x").first
    world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.CANCEL, by=consumer)
    assert queue.dying == 1
    world.core.take_effects()  # the process stops before the body is read
    world.restart(clean=False)
    world.advance(0)
    assert world.contents(world.core.queue("/", "dead")) == [b"x"]
    assert world.contents(world.core.queue("/", "q")) == []


def test_letters_too_large_for_one_group_leave_in_several(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message goes with its letter; no group grows beyond what a batch of the log may hold."""
    monkeypatch.setattr(deliveries, "portions", partial(portions, most=10))
    work = world.declare("work", message_ttl=1_000_000, dead_letter_exchange="", dead_letter_routing_key="dead")
    dead = world.declare("dead")
    bodies = [b"aaaaaa", b"bbb", b"c" * 30, b"", b"dd", b"eeeeeeee", b"f"]
    world.publish("work", *bodies)
    world.wall += 2_000_000
    world.core.tick(world.now)
    while not world.core.journal:
        for effect in world.core.take_effects():
            if isinstance(effect, Fetch):
                world.fetch(effect)
    groups = [entry for entry in world.core.journal if isinstance(entry, Group)]
    assert len(groups) == len(world.core.journal) == 4
    for group in groups:
        published = [part for part in group.entries if isinstance(part, Publishes)]
        expired = [part for part in group.entries if isinstance(part, Control) and part.kind is Kind.EXPIRE]
        assert len(published) == len(expired) == 1
        assert sum(map(len, published[0].bodies)) <= 10 or len(published[0]) == 1
    world.turn()
    assert world.contents(dead) == bodies
    assert world.contents(work) == []
    work.check()
    assert canonical(world.core.durable_state()) == world.folded()


TOPIC = Topic("/", "", "jobs")


def rows(sizes: dict[int, int]) -> Rows:
    lsns = sorted(sizes)
    zeros, count = [0] * len(lsns), len(lsns)
    return Rows(lsns, [TOPIC] * count, [b""] * count, [b"x" * sizes[lsn] for lsn in lsns], zeros, zeros, zeros)


def cut(runs: list[Run], sizes: dict[int, int], most: int) -> list[list[list[int]]]:
    return [
        [list(run.chunk) for run in one.runs]
        for one in portions(Letter(runs, "max_deliveries", "me"), rows(sizes), most)
    ]


def test_one_that_is_small_enough_stays_whole() -> None:
    runs = [Run(range(5, 8), True)]
    assert cut(runs, {5: 10, 6: 10, 7: 10}, 30) == [[[5, 6, 7]]]


def test_parts_have_at_most_so_many_bytes_in_the_order_of_death() -> None:
    runs = [Run(range(20, 23), True), Run(array("q", [5, 9, 12]), False)]
    sizes = {5: 10, 9: 10, 12: 10, 20: 10, 21: 10, 22: 10}
    assert cut(runs, sizes, 20) == [[[20, 21]], [[22], [5]], [[9, 12]]]


def test_a_message_above_the_bound_is_a_part_of_its_own() -> None:
    assert cut([Run(range(1, 4), True)], {1: 5, 2: 100, 3: 5}, 20) == [[[1]], [[2]], [[3]]]


def test_what_was_not_fetched_weighs_nothing_and_is_there() -> None:
    assert cut([Run(range(1, 5), True)], {1: 15, 4: 15}, 20) == [[[1, 2, 3]], [[4]]]


def test_pairs_of_parts_name_all_and_nothing_else() -> None:
    scattered = Run(array("q", [5, 9, 12, 13]), False)
    parts = list(portions(Letter([scattered], "time_limit"), rows(dict.fromkeys((5, 9, 12, 13), 10)), 20))
    assert [part.pairs for part in parts] == [[5, 6, 9, 10], [12, 14]]
    assert {(part.reason, part.by) for part in parts} == {("time_limit", "")}
