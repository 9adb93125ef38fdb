"""A function on another machine.

python rpc.py serve         in one terminal
python rpc.py call 30       in another: the thirtieth Fibonacci number
"""

import os
import sys
import uuid

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/")


def fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def serve() -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue="rpc_queue")

        def on_request(channel, method, asked, body) -> None:
            channel.basic_publish(
                exchange="",
                routing_key=asked.reply_to,
                properties=pika.BasicProperties(correlation_id=asked.correlation_id),
                body=str(fibonacci(int(body))),
            )
            channel.basic_ack(delivery_tag=method.delivery_tag)

        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue="rpc_queue", on_message_callback=on_request)
        print("waiting", flush=True)
        channel.start_consuming()


def call(number: str = "30") -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        answers = channel.queue_declare(queue="", exclusive=True).method.queue
        mine, got = str(uuid.uuid4()), list[bytes]()

        def on_answer(channel, method, properties, body) -> None:
            if properties.correlation_id == mine:
                got.append(body)

        channel.basic_consume(queue=answers, on_message_callback=on_answer, auto_ack=True)
        channel.basic_publish(
            exchange="",
            routing_key="rpc_queue",
            properties=pika.BasicProperties(reply_to=answers, correlation_id=mine),
            body=number,
        )
        while not got:
            connection.process_data_events(time_limit=1)
        print(int(got[0]))


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
