"""A connection that is over is freed at once, by reference counts alone: nothing of it is left to the collector."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from penstock.log.simdisk import SimDisk
from penstock.records.properties import Properties, encode
from penstock.server.amqp.links import AmqpLink
from penstock.server.flight import crowding
from penstock.server.http.connections import HttpServer
from penstock.server.sockets.listening import Listener, bind, patient
from penstock.server.sockets.strangers import Guard
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Life, clock, message

OURS = ("penstock.server", "penstock.wire", "penstock.core.queue.dispatching.consumers", "penstock.core.queue.settling")
"""What there is once for each connection, channel, consumer, delivery."""


@pytest.fixture(scope="module", autouse=True)
def _no_collector() -> Iterator[None]:
    """What other tests have left is not looked through again for each of these."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    """How many objects there are of each of our classes."""
    kinds = [cast("type[object]", type(one)) for one in gc.get_objects()]
    return Counter(f"{kind.__module__}.{kind.__name__}" for kind in kinds if str(kind.__module__).startswith(OURS))


def more(before: Counter[str]) -> dict[str, int]:
    """Of which there are more now."""
    return {name: count for name, count in (alive() - before).items() if not name.endswith(".Happened")}  # for readers


# -- AMQP


def consume(client: Client) -> None:
    client.consume("q", "c")
    client.publish("q", b"1", b"2", b"3")
    client.life.run()
    client.ack(1)


def cancel(client: Client) -> None:
    consume(client)
    client.method(m.BasicCancel("c"))


def confirm(client: Client) -> None:
    client.channel(2, confirm=True)
    client.send(b"".join(message(b"x", channel=2) for _ in range(3)))


def transact(client: Client) -> None:
    client.channel(2)
    client.method(m.TxSelect(), 2)
    for end in (m.TxCommit, m.TxRollback):
        client.send(message(b"x", channel=2))
        client.method(end(), 2)
    client.send(message(b"x", channel=2))  # and one that neither ends


def get(client: Client) -> None:
    client.publish("q", b"1")
    client.life.run()
    client.method(m.BasicGet(queue="q"))


def own_queue(client: Client) -> None:
    client.method(m.QueueDeclare(queue="own", exclusive=True))
    client.consume("own", "own")
    client.publish("own", b"1", b"2")


def ask(client: Client) -> None:
    client.consume("amq.rabbitmq.reply-to", "r", no_ack=True)
    client.publish("q", b"?", properties=encode(Properties(reply_to="amq.rabbitmq.reply-to")))


def fail_channel(client: Client) -> None:
    consume(client)
    client.method(m.QueueDeclare(queue="none", passive=True))


def fail(client: Client) -> None:
    consume(client)
    client.method(m.BasicQos(prefetch_size=7))


def close(client: Client) -> None:
    consume(client)
    client.method(m.ChannelClose(200, "", 0, 0))
    client.method(m.ConnectionClose(200, "", 0, 0), 0)


def share(client: Client) -> None:
    client.method(m.BasicQos(prefetch_count=2, global_qos=True))
    consume(client)


def watch(client: Client) -> None:
    client.consume("q", "c", **{"x-info": True})
    client.publish("q", b"1")


USES = (consume, cancel, confirm, transact, get, own_queue, ask, fail_channel, fail, close, share, watch)


@pytest.mark.parametrize("apart", [False, True], ids=["here", "at a door"])
@pytest.mark.parametrize("use", USES)
def test_nothing_is_left_of_a_client_that_has_gone(use: Callable[[Client], None], apart: bool) -> None:
    life = Life(SimDisk(), clock(), apart=apart)
    life.declare("q")

    def visit() -> None:
        client = life.client()
        use(client)
        life.run()
        client.lose()
        life.run()
        vars(client).clear()  # it is a test's link, and knows its session
        purge()

    def purge() -> None:
        life.core.purge_queue(life.engine.now(), life.core.queue("/", "q"))
        life.run()

    visit()  # caches that are there once
    before = alive()
    visit()
    visit()
    assert not more(before)


# -- links


class Talk:
    """The session of a link."""

    def __init__(self, *_: object) -> None: ...

    def receive(self, data: bytes) -> int:
        return 0

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self) -> None: ...


async def left_of(listener: Listener, guard: Guard, say: bytes) -> dict[str, int]:
    """What is left of connections at a listener that have said something and gone."""
    host, port = listener.open(bind("127.0.0.1", 0))

    async def visit() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, (host, port))
            if say:
                await loop.sock_sendall(peer, say)
                await loop.sock_recv(peer, 1000)
        for come in (True, False):
            while bool(len(guard)) is not come:  # noqa: ASYNC110 - the other side has not heard of it
                await asyncio.sleep(0)
        await asyncio.sleep(0)

    await visit()
    before = found()
    for _ in range(3):
        await visit()
    listener.close()
    return dict(found() - before)


def found() -> Counter[str]:
    """Our objects, and those of whoever has connections for us."""
    counted = alive()
    names = Counter(type(one).__name__ for one in gc.get_objects())
    of_others = ("_SelectorSocketTransport", "TransportSocket", "RequestResponseCycle", "FlowControl", "Task")
    return counted + Counter({name: names[name] for name in of_others})


async def test_nothing_is_left_of_a_link() -> None:
    entry = patient(asyncio.get_running_loop())
    listener = entry.listener("amqp", lambda one: AmqpLink(Talk, one))
    assert await left_of(listener, entry.guards.of("amqp"), b"") == {}


async def test_nothing_is_left_of_a_request() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    server = HttpServer(app, 8192)
    await server.begin()
    entry = patient(asyncio.get_running_loop())
    listener = server.listener(entry, "http")
    assert await left_of(listener, entry.guards.of("http"), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == {}
    server.stop()
    await server.ended()


# -- what comes again and again


def test_how_large_stacks_are_is_said_without_garbage() -> None:
    crowding.with_stacks(crowding.STACK)
    gc.collect()
    crowding.with_stacks(crowding.STACK)
    assert gc.collect() == 0
