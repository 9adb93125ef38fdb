"""rabbitpy: confirms, a message that nobody takes, JSON bodies, and what is left."""

from __future__ import annotations

import json
import sys

import rabbitpy

COUNT = 10


def main(url: str) -> None:
    with rabbitpy.Connection(url) as connection, connection.channel() as channel:
        exchange = rabbitpy.TopicExchange(channel, "rabbitpy-x", durable=True)
        exchange.declare()
        queue = rabbitpy.Queue(channel, "rabbitpy", durable=True)
        queue.declare()
        queue.bind(exchange, "a.*")
        channel.enable_publisher_confirms()
        told = [
            rabbitpy.Message(channel, {"n": n}, {"headers": {"n": n}}).publish(exchange, "a.b", mandatory=True)
            for n in range(COUNT)
        ]
        got = list[tuple[int, int]]()
        while (message := queue.get()) is not None:
            got.append((message.json()["n"], message.properties["headers"]["n"]))
            message.ack()
        try:
            rabbitpy.Message(channel, "nobody's").publish(exchange, "b.b", mandatory=True)
            returned = ""
        except rabbitpy.exceptions.MessageReturnedException as error:
            returned = type(error).__name__
        print(json.dumps({"told": told, "got": got, "returned": returned}))


if __name__ == "__main__":
    main(f"amqp://guest:guest@127.0.0.1:{sys.argv[1]}/")
