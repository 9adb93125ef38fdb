"""dramatiq: `dramatiq count_words`, and in another terminal `python count_words.py "some words to count"`."""

import os
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

dramatiq.set_broker(RabbitmqBroker(url=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/")))


@dramatiq.actor(max_retries=3, min_backoff=100)
def count_words(text):
    print(f"There are {len(text.split())} words in {text!r}.", flush=True)


if __name__ == "__main__":
    count_words.send(sys.argv[1])
    count_words.send_with_options(args=("and these later",), delay=300)
