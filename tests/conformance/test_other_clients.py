"""aio-pika, and pika's SelectConnection."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import aio_pika
import pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import ChannelClosed, ChannelPreconditionFailed, DeliveryError

from live_server import LiveServer

pytestmark = pytest.mark.conformance


def url(server: LiveServer) -> str:
    return f"amqp://guest:guest@127.0.0.1:{server.port}/"


async def test_aio_pika_publishes_and_consumes(server: LiveServer, name: str) -> None:
    connection = await aio_pika.connect_robust(url(server))
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(name, durable=True)
        await queue.bind(exchange, "orders.*")
        await asyncio.gather(
            *(exchange.publish(aio_pika.Message(b"%d" % i, headers={"n": i}), "orders.new") for i in range(200))
        )
        got: list[int] = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    assert message.headers["n"] == int(message.body)
                    got.append(int(message.body))
                if len(got) == 200:
                    break
        assert got == list(range(200))
        assert (await channel.declare_queue(name, durable=True, passive=True)).declaration_result.message_count == 0


async def test_aio_pika_is_told_of_the_unroutable(server: LiveServer) -> None:
    connection = await aio_pika.connect(url(server))
    async with connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        with pytest.raises(DeliveryError):
            await channel.default_exchange.publish(aio_pika.Message(b"x"), "nowhere", mandatory=True)


async def test_aio_pika_rejects_to_a_dead_letter_queue(server: LiveServer, name: str) -> None:
    connection = await aio_pika.connect(url(server))
    async with connection:
        channel = await connection.channel()
        dead = await channel.declare_queue(f"{name}-dead")
        arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
        queue = await channel.declare_queue(name, arguments=arguments)
        await channel.default_exchange.publish(aio_pika.Message(b"poison"), name)
        message = await queue.get(timeout=30)
        assert message is not None
        await message.reject(requeue=False)
        letter: AbstractIncomingMessage | None = None
        while letter is None:
            letter = await dead.get(fail=False)
        assert letter.body == b"poison"
        deaths: Any = letter.headers["x-death"]
        assert deaths[0]["reason"] == "rejected"
        await letter.ack()


async def test_aio_pika_sees_channel_errors_and_goes_on(server: LiveServer, name: str) -> None:
    connection = await aio_pika.connect(url(server))
    async with connection:
        channel = await connection.channel()
        await channel.declare_queue(name, durable=False)
        with pytest.raises(ChannelPreconditionFailed):
            await channel.declare_queue(name, durable=True)
        with pytest.raises(ChannelClosed):
            await (await connection.channel()).get_queue("nobody-declared-it")
        assert await (await connection.channel()).declare_queue(name, durable=False)


async def test_aio_pika_calls_with_direct_replies(server: LiveServer, name: str) -> None:
    """A hundred calls at once over one channel, answered by another connection, as RPC layers do it."""
    async with await aio_pika.connect(url(server)) as asking, await aio_pika.connect(url(server)) as answering:
        requests = await (await answering.channel()).declare_queue(name)

        async def answer(message: AbstractIncomingMessage) -> None:
            assert message.reply_to is not None
            reply = aio_pika.Message(message.body * 2, correlation_id=message.correlation_id)
            await message.channel.basic_publish(reply.body, routing_key=message.reply_to, properties=reply.properties)

        await requests.consume(answer, no_ack=True)
        channel = await asking.channel(publisher_confirms=False)
        waiting: dict[str, asyncio.Future[bytes]] = {
            str(n): asyncio.get_running_loop().create_future() for n in range(100)
        }

        async def take(message: AbstractIncomingMessage) -> None:
            waiting[str(message.correlation_id)].set_result(message.body)

        replies = await channel.declare_queue("amq.rabbitmq.reply-to", passive=True)
        await replies.consume(take, no_ack=True)
        for n in waiting:
            request = aio_pika.Message(n.encode(), correlation_id=n, reply_to="amq.rabbitmq.reply-to")
            await channel.default_exchange.publish(request, name)
        got = await asyncio.wait_for(asyncio.gather(*waiting.values()), 30)
        assert got == [f"{n}{n}".encode() for n in range(100)]


def test_pika_calls_with_direct_replies(server: LiveServer, name: str) -> None:
    asking, answering = server.connect().channel(), server.connect().channel()
    answering.queue_declare(name, durable=True)
    for _, _, _ in asking.consume("amq.rabbitmq.reply-to", auto_ack=True, inactivity_timeout=0.01):
        break
    lasting = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1", delivery_mode=2)
    asking.basic_publish("", name, b"?", lasting)
    method = None
    while method is None:
        method, properties, _ = answering.basic_get(name, auto_ack=True)
    answering.queue_declare(properties.reply_to, passive=True)  # it still waits
    answering.basic_publish("", properties.reply_to, b"!", pika.BasicProperties(correlation_id="1"))
    for _, properties, body in asking.consume("amq.rabbitmq.reply-to", auto_ack=True, inactivity_timeout=30):
        assert (body, properties.correlation_id) == (b"!", "1")
        break
    asking.cancel()
    server.bury()


async def test_a_robust_connection_comes_back_after_a_restart(tmp_path: Any) -> None:
    with LiveServer(tmp_path / "own") as own:
        address = own.ready["amqp"]
        connection = await aio_pika.connect_robust(url(own), reconnect_interval=0.1)
        channel = await connection.channel()
        queue = await channel.declare_queue("work", durable=True)
        got: asyncio.Queue[tuple[bool, bytes]] = asyncio.Queue()

        async def take(message: AbstractIncomingMessage) -> None:
            await got.put((bool(message.redelivered), message.body))
            if message.redelivered:
                await message.ack()

        await queue.consume(take)
        await channel.default_exchange.publish(
            aio_pika.Message(b"x", delivery_mode=aio_pika.DeliveryMode.PERSISTENT), "work"
        )
        assert await asyncio.wait_for(got.get(), 30) == (False, b"x")
        own.kill()
        own.start(amqp=address)
        assert await asyncio.wait_for(got.get(), 20) == (True, b"x")
        await connection.close()


def test_select_connection(server: LiveServer, name: str) -> None:
    """The callback style: declare, confirm, consume, ack, close, on pika's own loop."""
    confirmed: list[int] = []
    got: list[bytes] = []
    failures: list[object] = []

    def opened(connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=channel_open)

    def channel_open(channel: Any) -> None:
        channel.add_on_close_callback(lambda _, reason: failures.append(reason) if reason.reply_code != 200 else None)
        channel.queue_declare(
            name,
            durable=True,
            callback=lambda _: channel.confirm_delivery(on_confirm, callback=lambda _: send(channel)),
        )

    def on_confirm(frame: Any) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        start = confirmed[-1] if confirmed else 0
        tag = frame.method.delivery_tag
        confirmed.extend(range(start + 1, tag + 1) if frame.method.multiple else [tag])
        close_when_all_came()

    def send(channel: Any) -> None:
        for number in range(500):
            channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))
        channel.basic_qos(prefetch_count=50, callback=lambda _: channel.basic_consume(name, on_message))

    def on_message(channel: Any, method: Any, _: Any, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)
        close_when_all_came()

    def close_when_all_came() -> None:
        """A message may be delivered, and acknowledged, before the disk has it and it is confirmed."""
        if len(got) == len(confirmed) == 500:
            connection.close()

    connection = pika.SelectConnection(
        server.parameters(), on_open_callback=opened, on_close_callback=lambda c, _: c.ioloop.stop()
    )
    guard = threading.Timer(60, lambda: connection.ioloop.add_callback_threadsafe(connection.ioloop.stop))
    guard.start()
    connection.ioloop.start()
    guard.cancel()
    connection.ioloop.close()
    assert not failures
    assert got == [b"%d" % number for number in range(500)]
    assert sorted(confirmed) == list(range(1, 501))
