"""One message through one queue.

python hello_world.py receive        in one terminal
python hello_world.py send           in another
"""

import os
import sys

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/")


def send() -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue="hello")
        channel.basic_publish(exchange="", routing_key="hello", body="Hello World!")
    print("sent 'Hello World!'")


def receive() -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue="hello")
        channel.basic_consume(
            queue="hello",
            on_message_callback=lambda channel, method, properties, body: print("received", body.decode(), flush=True),
            auto_ack=True,
        )
        print("waiting", flush=True)
        channel.start_consuming()


if __name__ == "__main__":
    {"send": send, "receive": receive}[sys.argv[1]]()
