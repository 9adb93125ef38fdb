"""Tasks shared by workers.

    python work_queues.py work                  in some terminals
    python work_queues.py task "a job..."       in another

Each dot of a task is a tenth of a second of work.  Queue and messages outlive the server, a worker has one task at a
time, and what a worker did not finish goes to another.
"""

import os
import sys
import time

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/")


def task(text: str = "Hello World!") -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue="task_queue", durable=True)
        lasting = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
        channel.basic_publish(exchange="", routing_key="task_queue", body=text, properties=lasting)
    print("sent", text)


def work() -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue="task_queue", durable=True)

        def on_task(channel, method, properties, body) -> None:
            time.sleep(0.1 * body.count(b"."))
            print("done", body.decode(), flush=True)
            channel.basic_ack(delivery_tag=method.delivery_tag)

        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue="task_queue", on_message_callback=on_task)
        print("waiting", flush=True)
        channel.start_consuming()


if __name__ == "__main__":
    {"task": task, "work": work}[sys.argv[1]](*sys.argv[2:])
