"""User guide, introduction, "Getting started", "Understanding queuing": what a queue is, with the chapter's names."""

from __future__ import annotations

import pytest

from scenario import Worker, amqp, bodies, broker_of, publish, waiting

WORK = {"name": "WorkToDo", "underlying_topic": "Work", "max_per_subscription_backlog": 1}


def test_three_messages_for_three_workers_and_each_gets_one() -> None:
    with broker_of(WORK) as broker:
        workers = [broker.subscribe("WorkToDo", name=f"worker-{n}") for n in range(3)]
        for n in range(3):
            broker.publish("Work", f'{{"task": {n}}}')
        inboxes = [bodies(worker.take()) for worker in workers]
        assert sorted(map(len, inboxes)) == [1, 1, 1]
        assert sorted(inboxes) == [[b'{"task": 0}'], [b'{"task": 1}'], [b'{"task": 2}']]


def test_three_messages_for_three_workers_over_amqp() -> None:
    with broker_of(WORK) as broker, amqp(broker) as channel:
        workers = [Worker(channel, "WorkToDo", prefetch=1) for _ in range(3)]
        publish(channel, "Work", "0", "1", "2")
        inboxes = [[body for _, body in worker.take(1)] for worker in workers]
        assert sorted(inboxes) == [[b"0"], [b"1"], [b"2"]]


def test_the_topic_below_is_there_for_others_live_and_as_a_replay() -> None:
    with broker_of(WORK) as broker:
        watcher = broker.subscribe("Work", name="auditor")
        worker = broker.subscribe("WorkToDo", max_backlog=10)
        broker.publish("Work", b"first")
        broker.publish("Work", b"second")
        assert bodies(watcher.take()) == [b"first", b"second"]
        for message in worker.take():
            message.ack()
        assert broker.stats("WorkToDo")["ready"] == 0
        replay = broker.subscribe("Work", bookmark="EPOCH", name="auditor-2")
        assert bodies(replay.take()) == [b"first", b"second"]  # the queue is done with them, the log is not
        assert bodies(watcher.take()) == []


def test_the_log_holds_a_message_once_for_all_queues() -> None:
    queues = [{"name": f"q{n}", "underlying_topic": "Work"} for n in range(3)]
    with broker_of(*queues) as broker:
        bookmark = broker.publish("Work", b"shared")
        got = [broker.subscribe(f"q{n}").take() for n in range(3)]
        assert [[message.bookmark for message in inbox] for inbox in got] == [[bookmark]] * 3
        got[0][0].ack()  # each queue goes its own way
        assert [broker.stats(f"q{n}")["leased"] for n in range(3)] == [0, 1, 1]


def test_a_queue_of_its_topics_name_takes_every_plain_subscription() -> None:
    with broker_of({"name": "Jobs"}) as broker:
        one, two = broker.subscribe("Jobs", name="one"), broker.subscribe("Jobs", name="two")
        broker.publish("Jobs", b"only for one of them")
        assert sorted([len(one.take()), len(two.take())]) == [0, 1]


def test_a_worker_that_fails_leaves_its_work_to_another() -> None:
    with broker_of({**WORK, "lease_period": "1m"}) as broker:
        broker.publish("Work", b"job")
        fails, waits = broker.subscribe("WorkToDo", name="fails"), broker.subscribe("WorkToDo", name="waits")
        assert bodies(fails.take()) == [b"job"]
        assert waits.take() == []
        broker.disconnect("fails")
        [again] = waits.take()
        assert (again.body, again.redelivered) == (b"job", True)


def test_a_worker_that_fails_over_amqp() -> None:
    with broker_of({**WORK, "lease_period": "1m"}) as broker, amqp(broker) as channel:
        publish(channel, "Work", "job")
        with amqp(broker) as other:
            assert Worker(other, "WorkToDo").take(1)[0][1] == b"job"
        [(method, body)] = Worker(channel, "WorkToDo").take(1)
        assert (method.redelivered, body) == (True, b"job")


def test_nothing_is_asked_for_twice_the_next_message_comes_by_itself() -> None:
    with broker_of(WORK) as broker:
        worker = broker.subscribe("WorkToDo")
        for n in range(3):
            broker.publish("Work", f"{n}")
        seen: list[bytes] = []
        while messages := worker.take():
            assert (len(messages), worker.outstanding) == (1, 1)  # as many as its backlog, and no more
            seen += bodies(messages)
            messages[0].ack()
        assert seen == [b"0", b"1", b"2"]


def test_what_was_delivered_and_acknowledged_is_known_after_a_crash() -> None:
    with broker_of({**WORK, "max_per_subscription_backlog": 10}) as broker:
        for n in range(4):
            broker.publish("Work", f"{n}")
        taken = broker.subscribe("WorkToDo", max_backlog=2).take()
        taken[0].ack()  # 2 takes its place
        broker.advance(1)  # beyond `ack_sync`
        broker.crash()
        broker.restart()
        again = broker.subscribe("WorkToDo", max_backlog=10).take()
        assert bodies(again) == [b"1", b"2", b"3"]
        assert [message.attempt for message in again] == [2, 2, 1]  # what was delivered is known too


def test_several_queues_on_one_topic_each_have_their_own_policies() -> None:
    once = {"name": "once", "underlying_topic": "Work", "semantics": "at-most-once"}
    twice = {"name": "twice", "underlying_topic": "Work", "max_deliveries": 2}
    large = {"name": "large", "underlying_topic": "Work", "filter": "/n > 0"}
    with broker_of(once, twice, large) as broker:
        for n in range(2):
            broker.publish("Work", f'{{"n": {n}}}')
        assert len(waiting(broker, "large")) == 1
        for queue, deliveries in (("once", 1), ("twice", 2)):
            for _ in range(deliveries):
                taken = broker.subscribe(queue, max_backlog=10, name="worker").take()
                assert len(taken) == 2
                broker.disconnect("worker")
            assert waiting(broker, queue) == []
        assert len(waiting(broker, "large")) == 1


@pytest.mark.parametrize(
    "kind",
    [
        {"kind": "distributed"},
        {"kind": "local"},
        {"kind": "group-local", "initial_owner": "one", "group_local_queue_domain": "CONSUME_INSTANCES"},
    ],
)
def test_every_kind_of_queue_works_alike_on_one_instance(kind: dict[str, object]) -> None:
    with broker_of({**WORK, **kind}, server={"name": "one"}) as broker:
        broker.publish("Work", b"job")
        [job] = broker.subscribe("WorkToDo").take()
        assert job.ack()
        broker.crash()
        broker.restart()
        assert waiting(broker, "WorkToDo") == []
