"""Messages to those who asked for their severity.

python routing.py listen warning error      in one terminal
python routing.py say error "text"          in another
"""

import os
import sys

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/")


def say(severity: str = "info", text: str = "Hello World!") -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange="direct_logs", exchange_type="direct")
        channel.basic_publish(exchange="direct_logs", routing_key=severity, body=text)
    print("sent", severity, text)


def listen(*severities: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange="direct_logs", exchange_type="direct")
        own = channel.queue_declare(queue="", exclusive=True).method.queue
        for severity in severities:
            channel.queue_bind(exchange="direct_logs", queue=own, routing_key=severity)

        def on_message(channel, method, properties, body) -> None:
            print(method.routing_key, body.decode(), flush=True)

        channel.basic_consume(queue=own, on_message_callback=on_message, auto_ack=True)
        print("waiting", flush=True)
        channel.start_consuming()


if __name__ == "__main__":
    {"say": say, "listen": listen}[sys.argv[1]](*sys.argv[2:])
