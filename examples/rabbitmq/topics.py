"""Messages to those whose pattern matches: `*` is one word, `#` any number of them.

python topics.py listen "kern.*" "*.critical"       in one terminal
python topics.py say kern.info "text"               in another
"""

import os
import sys

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/")


def say(key: str = "anonymous.info", text: str = "Hello World!") -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange="topic_logs", exchange_type="topic")
        channel.basic_publish(exchange="topic_logs", routing_key=key, body=text)
    print("sent", key, text)


def listen(*patterns: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange="topic_logs", exchange_type="topic")
        own = channel.queue_declare(queue="", exclusive=True).method.queue
        for pattern in patterns:
            channel.queue_bind(exchange="topic_logs", queue=own, routing_key=pattern)

        def on_message(channel, method, properties, body) -> None:
            print(method.routing_key, body.decode(), flush=True)

        channel.basic_consume(queue=own, on_message_callback=on_message, auto_ack=True)
        print("waiting", flush=True)
        channel.start_consuming()


if __name__ == "__main__":
    {"say": say, "listen": listen}[sys.argv[1]](*sys.argv[2:])
