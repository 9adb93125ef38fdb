"""Celery: `celery -A tasks worker`, and in another terminal `python ask.py`.

Tasks go through the server, and so do their results: `rpc://` has a queue of answers for each who asks.
"""

import os

from celery import Celery

app = Celery(
    "tasks",
    broker=os.environ.get("AMQP_URL", "pyamqp://guest@localhost//"),
    backend=os.environ.get("RESULTS", "rpc://"),
)


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def unreliable(self):
    """Fails at first; Celery sends it again."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries
