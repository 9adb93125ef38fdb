"""A process that is forked while a connection is open: the child is told, and the parent goes on."""

from __future__ import annotations

import subprocess
import sys
import threading

from penstock.client import link
from penstock.client.link import Link
from penstock.client.urls import parse_url
from penstock.testing import Broker

PROGRAM = """if True:
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
            "close it before the fork, or start it with another method of multiprocessing than 'fork'"
        )
        told = done.stdout.splitlines()
        assert told == ["stored", "stored", parents, parents, parents, "(None, None)", others, "True", "b'parent'"]
        assert broker.stats("q")["ready"] == 1


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
    link._forking()
    done.append("forked")
    link._changing.release()
    forked.set()
    thread.join()
    real.close()
    assert done == ["ended", "forked"]
