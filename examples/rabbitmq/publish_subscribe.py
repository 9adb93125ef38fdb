"""One message to everybody who listens.

python publish_subscribe.py listen          in some terminals
python publish_subscribe.py say "text"      in another
"""

import os
import sys

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/")


def say(text: str = "Hello World!") -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange="logs", exchange_type="fanout")
        channel.basic_publish(exchange="logs", routing_key="", body=text)
    print("sent", text)


def listen() -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange="logs", exchange_type="fanout")
        own = channel.queue_declare(queue="", exclusive=True).method.queue  # the server names it; it goes with us
        channel.queue_bind(exchange="logs", queue=own)
        channel.basic_consume(
            queue=own,
            on_message_callback=lambda channel, method, properties, body: print(body.decode(), flush=True),
            auto_ack=True,
        )
        print("waiting", flush=True)
        channel.start_consuming()


if __name__ == "__main__":
    {"say": say, "listen": listen}[sys.argv[1]](*sys.argv[2:])
