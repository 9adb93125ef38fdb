"""A process that is forked while a connection is open: the child is told, and the parent goes on."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from penstock.client import forks
from penstock.client.link import Link
from penstock.client.urls import parse_url
from penstock.testing import Broker

FORKED = """if True:
    import os, signal, sys
    import penstock

    def forked(work):
        # What `work` says in a child that ends as any process does.
        sys.stdout.flush()
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0, "the child was killed"
            return
        signal.alarm(30)
        try:
            print(work())
        except penstock.PenstockError as error:
            print(type(error).__name__, error)
        sys.exit(0)

    def anew():
        with penstock.connect(sys.argv[1]) as client:
            return client.publish("q", b"child").outcome
"""

PROGRAM = f"""{FORKED}
    forked(anew)  # there was no connection
    with penstock.connect(sys.argv[1]) as client:
        client.publish("q", b"parent")
    forked(anew)  # nor is one now
    client = penstock.connect(sys.argv[1])
    consumer = client.consume("q", backlog=3, timeout="20s")
    message = consumer.take()
    forked(lambda: client.publish("q", b"never"))
    forked(lambda: message.ack())
    forked(lambda: [consumer.take() for _ in range(3)])  # two have come here
    forked(lambda: (consumer.close(), client.close()))
    forked(anew)
    print(message.ack())
    consumer.flush()
    with consumer.take() as second:
        print(second.body)
    client.close()
"""


def test_a_child_is_told_and_its_parent_goes_on() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, broker.flight_url], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        parents = (
            "PreconditionFailed this connection was made before its process was forked, and is the parent's: connect "
            "in the process that uses it, or start it with another method of multiprocessing than 'fork'"
        )
        others = (
            "PreconditionFailed the process that this one was forked from had a connection open, and none works here: "
            "close it before the fork, with a result or a replay that was not read to its end, or start it with "
            "another method of multiprocessing than 'fork'"
        )
        told = done.stdout.splitlines()
        assert told == ["stored", "stored", parents, parents, parents, "(None, None)", others, "True", "b'parent'"]
        assert broker.stats("q")["ready"] == 1


KEPT = f"""{FORKED}
    url = sys.argv[1]

    def made(what):
        # What is left of a client that is closed.
        with penstock.connect(url) as client:
            client.publish("q", {{}})
            return what(client)

    def consumed(client):
        with client.consume("q") as consumer:
            return consumer, consumer.take()

    def batched(client):
        for batch in client.consume("q").batches():
            return batch

    def looped(client):
        for message in client.consume("q"):
            return message

    def replayed(client):
        replay = client.replay("q")
        return replay, list(replay)

    def left(client):
        replay = client.replay("q")
        return replay, next(replay), replay.close()

    def read(client):
        result = client.query("select * from q")
        return result, result.rows()

    def looked(client):
        batches = client.queue_batches("q")
        return batches, list(batches)

    for what in (consumed, batched, looped, replayed, left, read, looked):
        kept = made(what)
        forked(anew)
    kept = made(lambda client: client.query("select * from q"))
    forked(anew)
    print(len(kept.rows()) > 1)
    forked(anew)
    kept = penstock.connect(url)
    kept.publish("q", b"x")
    del kept
    forked(anew)
"""


OTHERS = f"""{FORKED}
    import asyncio, threading
    import penstock.aio

    def held(lock, work):
        # A fork while another thread has a lock.
        has, over = threading.Event(), threading.Event()

        def hold():
            with lock:
                has.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        has.wait()
        forked(work)
        over.set()
        thread.join()

    client, unused = penstock.aio.connect(sys.argv[1]), penstock.aio.connect(sys.argv[1])

    async def publish():
        return (await client.publish("q", b"x")).outcome

    async def query():
        return await client.query("select 1")

    consumer = client.consume("q")

    async def begin():
        await publish()
        return await consumer.take("20s")

    async def take():
        return await consumer.take("20s")

    async def end():
        await consumer.close()
        await client.close()

    message = asyncio.run(begin())
    for work in (publish, query, message.ack, take):
        forked(lambda: asyncio.run(work()))
    forked(lambda: asyncio.run(end()))
    print(asyncio.run(publish()))
    asyncio.run(end())
    forked(lambda: asyncio.run(publish()))
    lazy = penstock.aio.connect("penstock://127.0.0.1:1")

    async def late(client):
        return (await client.publish("q", b"x")).outcome

    try:
        asyncio.run(late(lazy))
    except penstock.Unavailable:
        forked(lambda: asyncio.run(late(lazy)))
    forked(lambda: asyncio.run(late(unused)))
    client = penstock.connect(sys.argv[1])
    held(client._kept._changed, lambda: client.publish("q", b"x"))
    client._kept._clock = lambda: 0.0  # what stays open for a moment stays open
    for _ in range(3):
        client.publish("q", b"x")
    print(client._kept.idle)
    forked(lambda: client.publish("q", b"x"))
    print(client.publish("q", b"x").outcome)
    held(client._kept._changed, client.close)
    client.close()
"""


def test_a_child_is_told_by_whatever_its_parent_has() -> None:
    """By a client of asyncio, whose threads were not there, it waited for ever; so it did by one with which its parent
    had published a moment ago, on whose upload it wrote, or was publishing in another thread."""
    with Broker({"queue": [{"name": "q"}]}) as broker:
        done = subprocess.run(
            [sys.executable, "-c", OTHERS, broker.flight_url], capture_output=True, text=True, timeout=300, check=False
        )
        told = [line.partition(" ")[0] for line in done.stdout.splitlines()]
        assert done.returncode == 0, (told, done.stderr)
        refused = "PreconditionFailed"
        assert told == [
            *[refused] * 4, "None", "stored", "Unavailable", "Unavailable", "stored",
            *(refused, "1", refused, "stored", "None"),
        ]  # fmt: skip


def test_what_is_left_of_a_closed_client_keeps_no_child_from_connecting() -> None:
    """Beside a message, a replay or a result that somebody kept, and after a client that he dropped, no child could
    connect: it waited for ever, or was ended by gRPC."""
    with Broker({"queue": [{"name": "q"}]}) as broker:
        done = subprocess.run(
            [sys.executable, "-c", KEPT, broker.flight_url], capture_output=True, text=True, timeout=300, check=False
        )
        told = done.stdout.splitlines()
        refused = [line for line in told if line.startswith("PreconditionFailed")]
        assert done.returncode == 0, (told, done.stderr)
        assert [line if line in ("stored", "True") else "told" for line in told] == [
            *["stored"] * 7, "told", "True", *["stored"] * 2,
        ]  # fmt: skip
        assert "a result or a replay that was not read to its end" in refused[0]


def test_a_fork_waits_for_who_ends_a_connection() -> None:
    """In a child that was forked meanwhile no connection worked, and nobody knew: it waited for ever."""
    done, closing, forked = list[str](), threading.Event(), threading.Event()

    class Slow:
        def close(self) -> None:
            closing.set()
            forked.wait(0.2)
            done.append("ended")

    one = Link(parse_url("penstock://127.0.0.1:1"), None)
    real, one.client = one.client, Slow()
    thread = threading.Thread(target=one.close)
    thread.start()
    assert closing.wait(20)
    forks._forking()
    done.append("forked")
    forks.changing.release()
    forked.set()
    thread.join()
    real.close()
    assert done == ["ended", "forked"]


LOADING = """if True:
    import os, signal, sys, threading

    began, forking = threading.Event(), threading.Event()

    class Slow:
        @staticmethod
        def find_spec(name, path, target=None):
            if name == "penstock.client.client":
                began.set()
                assert forking.wait(20)

    def load():
        {words}

    sys.meta_path.insert(0, Slow)
    import penstock
    os.register_at_fork(before=forking.set)
    thread = threading.Thread(target=load)
    thread.start()
    assert began.wait(20)
    if (child := os.fork()) == 0:
        signal.alarm(20)
        load()
        os._exit(0)
    thread.join()
    print(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("words", ["penstock.connect", "from penstock.client import Client"])
def test_a_fork_waits_for_who_loads_the_client_in_another_thread(words: str) -> None:
    """The child waited for ever for a thread that it does not have: so Python does at half a module."""
    program = [sys.executable, "-c", LOADING.format(words=words)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["0"], done.stderr
